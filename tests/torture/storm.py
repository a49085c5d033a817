"""Wilder schedules than those of play.py: programs of any kind, every option, any signal or command at any moment.

    python tests/torture/storm.py --count 2000 [--first SEED] [--at-once 4] [--keep]

Less can be said of how such a run must end than of those in schedules.py: it ends in time and leaves nothing, its exit code
is one that its ranks and what befell it allow, its report agrees, no traceback of ours is shown, and a rank that is
certainly to blame could have failed. Prints each schedule that breaks one of these rules, and exits with 1 if any did.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from play import command_line, lines, reap
from storm_programs import PYTHON, SHELL, Program

from launcher.core.machine.proc import every_process, stat
from launcher.supervise.spawn import become_subreaper

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 90.0  # on a busy machine
STOPPED_AFTER_S = 4.0  # what does not end by itself
TICK_S = 0.02
OURS = re.compile(r'^  File ".*/launcher/(?!preload/)\w+/', re.MULTILINE)
SIGNALS = tuple(
    getattr(signal, f"SIG{name}")
    for name in ["TERM", "INT", "HUP", "QUIT", "KILL", "USR1", "USR2", "STOP", "CONT", "ABRT", "SEGV"]
)
COMMANDS = (
    "ps", "why", "status", "report", "logs", "stacks", "prune --keep 0 -y", "stop", "stop", "stop", "stop --kill",
)  # fmt: skip
READERS = ("ps", "why", "status", "report", "logs")
CONSOLES = ("rank0", "all", "collapse", "status", "none")


@dataclass(frozen=True)
class Act:
    after_s: float
    what: str  # a command of tlaunch, or the target of a signal: launcher, agent, rank, child, preload
    number: int = 0


@dataclass(frozen=True)
class Storm:
    seed: int
    programs: tuple[Program, ...]
    is_python: bool
    options: tuple[str, ...]
    acts: tuple[Act, ...]
    setting: str  # "", "small disk" or "few descriptors"

    @property
    def detaches(self) -> bool:
        return "--detach" in self.options


def make_storm(seed: int) -> Storm:
    """The same for the same seed, on every machine."""
    rng = random.Random(seed)
    is_python = rng.random() < 0.5
    known = PYTHON if is_python else SHELL
    ranks = rng.randint(2, 8)
    good = known[0]
    if rng.random() < 0.2:  # all at the same instant
        programs = (rng.choice(known),) * ranks
    else:
        programs = tuple(good if rng.random() < 0.4 else rng.choice(known) for _ in range(ranks))
    options = [
        "--devices",
        str(ranks),
        "--grace",
        rng.choice(("0.3", "0.5", "1", "2")),
        "--console",
        rng.choice(CONSOLES),
    ]
    options += ["--max-restarts", rng.choice("12")] if rng.random() < 0.2 else []
    options += ["--hang-timeout", "1.5"] if rng.random() < 0.12 else []
    options += [
        option
        for option, chance in (("--no-preload", 0.15), ("--detach", 0.15), ("--elastic", 0.07))
        if rng.random() < chance
    ]
    acts = tuple(sorted((_act(rng) for _ in range(rng.choice((0, 0, 1, 1, 2, 3)))), key=lambda act: act.after_s))
    setting = rng.choices(("", "small disk", "few descriptors"), (88, 6, 6))[0]
    return Storm(seed, programs, is_python, tuple(options), acts, setting)


def _act(rng: random.Random) -> Act:
    after_s = rng.choice((rng.uniform(0, 0.4), rng.uniform(0.2, 1.2), rng.uniform(0.5, 3)))
    if rng.random() < 0.45:
        return Act(after_s, rng.choice(COMMANDS))
    target = rng.choice(("launcher", "launcher", "launcher", "rank", "rank", "child", "agent", "preload", "both"))
    return Act(after_s, target, signal.SIGKILL if target == "both" else rng.choice(SIGNALS))


@dataclass
class Weather:
    """One storm in a directory of its own, and what is wrong with it."""

    storm: Storm
    folder: Path
    done: list[Act] = field(default_factory=list)  # those that reached a target
    wrong: list[str] = field(default_factory=list)
    code: int | None = None

    def __post_init__(self) -> None:
        self.tag = f"storm-{self.storm.seed}-{os.getpid()}"
        self.runs, self.temporary, self.state = (self.folder / name for name in ("runs", "tmp", "state"))
        for made in (self.runs, self.temporary, self.state):
            made.mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TLAUNCH_", "RANK"))}
        mine = {
            "STORM": self.tag,
            "TMPDIR": str(self.temporary),
            "XDG_STATE_HOME": str(self.state),
            "PYTHONPATH": str(ROOT),
        }
        self._environment = {**kept, **mine, "TLAUNCH_RUNS_DIR": str(self.runs)}
        self._detached: list[int] = []  # launcher and agent of a detached run
        self._commands: list[tuple[str, subprocess.Popen[bytes]]] = []

    # --- the run ---

    def play(self) -> None:
        is_mounted = self.storm.setting == "small disk" and self._mount()
        try:
            self._run()
            self._look_at_processes()
            for command in READERS if self.storm.seed % 3 == 0 else ():
                self._begin(command)
            self._await_commands()
            self._look_at_files()
            self._look_at_the_end()
        finally:
            if is_mounted:
                subprocess.run(["umount", "-l", self.runs], check=True)

    def _run(self) -> None:
        for rank, program in enumerate(self.storm.programs):
            (self.folder / f"rank{rank}").write_text(program.source)
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            self.launcher = subprocess.Popen(
                self._argv(), cwd=self.folder, env=self._environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                start_new_session=True,
            )  # fmt: skip
        began_s = time.monotonic()
        waiting, stop_s = list(self.storm.acts), STOPPED_AFTER_S
        while self._runs() and time.monotonic() < began_s + PATIENCE_S:
            passed_s = time.monotonic() - began_s
            if waiting and passed_s >= waiting[0].after_s:
                self._do(waiting.pop(0))
            elif passed_s >= stop_s:
                self._do(Act(passed_s, "stop" if stop_s == STOPPED_AFTER_S else "stop --kill"))
                stop_s = passed_s + 20
            time.sleep(TICK_S)
        self.code = self.launcher.poll()
        if self._runs():
            left = "; ".join(f"{pid} {command_line(pid)}" for pid in self._tagged())
            self.wrong.append(f"it had not ended after {PATIENCE_S:g} s: {left}")
            self._kill_all()
            self.code = self.launcher.wait()

    def _argv(self) -> list[str]:
        program = [sys.executable, "storm_rank.py"] if self.storm.is_python else ["sh", "-c", 'exec sh "./rank$RANK"']
        if self.storm.is_python:
            source = "import os\nname = 'rank' + os.environ['RANK']\nexec(compile(open(name).read(), name, 'exec'))\n"
            (self.folder / "storm_rank.py").write_text(source)
        command = [*self._tlaunch(), "run", *self.storm.options, "--", *program]
        few = self.storm.setting == "few descriptors"
        return ["sh", "-c", 'ulimit -n 64; exec "$@"', "sh", *command] if few else command

    def _tlaunch(self) -> list[str]:
        return [sys.executable, "-m", "launcher"]

    def _runs(self) -> bool:
        """Return whether the launcher is alive or, of a detached run, the launcher or its agent."""
        if self.launcher.poll() is None:
            return True
        if not self.storm.detaches:
            return False
        if not self._detached:  # its directory may be removed later
            started = next((event for event in self.events() if event["event"] == "AgentStarted"), None)
            if started is None:  # its console may be killed first
                return bool(self._tagged())
            self._detached = [started[name]["pid"] for name in ("head", "agent")]
        found = [stat(pid) for pid in self._detached]
        time.sleep(5 * TICK_S)
        return any(one is not None and one.living for one in found)

    def _mount(self) -> bool:
        size = "size=300k,nr_inodes=60"
        return not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", size, "storm", self.runs], stderr=subprocess.DEVNULL, check=False
        ).returncode

    # --- acts ---

    def _do(self, act: Act) -> None:
        if act.what in COMMANDS:
            self._begin(act.what)
            self.done.append(act)
            return
        for pid in self._targets(act.what):
            with suppress(ProcessLookupError):
                os.kill(pid, act.number)
                self.done.append(act)
                if act.number == signal.SIGSTOP:
                    time.sleep(0.3)
                    os.kill(pid, signal.SIGCONT)

    def _begin(self, command: str) -> None:
        with (self.folder / f"command{len(self._commands)}").open("wb") as output:
            words = [*self._tlaunch(), *command.split()]
            process = subprocess.Popen(
                words, cwd=self.folder, env=self._environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        self._commands.append((command, process))

    def _targets(self, what: str) -> list[int]:
        events = self.events()
        agents = [event["agent"]["pid"] for event in events if event["event"] == "AgentStarted"]
        heads = [event["head"]["pid"] for event in events if event["event"] == "AgentStarted" and event["head"]]
        ranks = [event["pid"] for event in events if event["event"] == "RankStarted"]
        preload = [event["pid"] for event in events if event["event"] == "Preloading"]
        ours = self._tagged()
        launchers = heads or ([] if self.launcher.poll() is not None else [self.launcher.pid])
        known = {
            *agents,
            *launchers,
            *ranks,
            *preload,
            self.launcher.pid,
            *(process.pid for _, process in self._commands),
        }
        others = [pid for pid in ours if pid not in known and "watch-ranks" not in command_line(pid)]
        targets = {
            "launcher": launchers, "agent": agents, "rank": ranks, "preload": preload, "child": others, "both": [],
        }[what]  # fmt: skip
        if what == "both":
            return [*launchers, *agents] if agents else []
        living = [pid for pid in targets if pid in ours]
        return [random.Random(self.storm.seed).choice(living)] if living else []

    def events(self) -> list[dict[str, Any]]:
        with suppress(OSError, ValueError):
            found = [path for path in self.runs.glob("2*/events.jsonl") if path.is_file()]
            return lines(found[0]) if found else []
        return []

    def _tagged(self) -> list[int]:
        mark = f"STORM={self.tag}".encode()
        found = []
        for process in every_process():
            with suppress(OSError):
                if process.living and mark in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                    found.append(process.pid)
        return found

    # --- afterwards ---

    def _await_commands(self) -> None:
        for command, process in self._commands:
            try:
                code = process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.wrong.append(f"`{command}` took more than {PATIENCE_S:g} s")
                process.kill()
                process.wait()
                continue
            if code < 0 or code > 3:
                self.wrong.append(f"`{command}` ended with {code}")

    def _look_at_processes(self) -> None:
        """What the launcher was killed with may take the grace period, and the kernel's time."""
        self._await_commands()
        deadline_s = time.monotonic() + 20
        while (left := self._tagged()) and time.monotonic() < deadline_s:
            reap_others(self.launcher)
            time.sleep(5 * TICK_S)
        self.wrong += [f"a process is left: {pid} {command_line(pid)}" for pid in left]
        self._kill_all()
        reap_others(self.launcher)

    def _kill_all(self) -> None:
        while left := self._tagged():
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.launcher.poll()
            time.sleep(TICK_S)

    def _look_at_files(self) -> None:
        self.wrong += [f"a file is left in TMPDIR: {path.name}" for path in self.temporary.iterdir()]
        for path in self.folder.rglob("*"):
            if path.name.endswith(".partial") and not self._was_struck(
                "agent", FATAL
            ):  # else it was killed as it wrote
                self.wrong.append(f"a half file is left: {path.relative_to(self.folder)}")
            if path.name == "agent.log" and self.storm.setting != "few descriptors":
                self.wrong.append(f"agent.log: {path.read_text(errors='replace')[-1500:]}")
        for path in (self.folder / "err", *self.folder.glob("command*")):
            if OURS.search(text := path.read_text(errors="replace")):
                self.wrong.append(f"a traceback of ours in {path.name}: {text[-1500:]}")

    def _look_at_the_end(self) -> None:
        assert self.code is not None
        code = 128 - self.code if self.code < 0 else self.code
        allowed = self.allowed()
        report = self._report()
        if not self.storm.detaches and code not in allowed:
            self.wrong.append(f"exit code {code}, but only {sorted(allowed)} can be")
        if report is None:
            return
        if report["exit_code"] not in allowed:
            self.wrong.append(f"report.json has exit code {report['exit_code']}, but only {sorted(allowed)} can be")
        # Once the report is written, SIGQUIT ends the launcher as it ends any program.
        has_quit = self._was_struck("launcher", frozenset({signal.SIGQUIT})) or any(
            act.what == "stop --kill" for act in self.done
        )
        quit_late = code == 128 + signal.SIGQUIT and has_quit
        excused = self.storm.detaches or quit_late or self._was_struck("launcher", FATAL)
        if report["exit_code"] != code and not excused:
            self.wrong.append(f"report.json has exit code {report['exit_code']}, the launcher {code}")
        self.wrong += self._wrong_culprits(report)

    def _report(self) -> dict[str, Any] | None:
        with suppress(OSError, ValueError):
            for path in self.runs.glob("2*/report.json"):
                found = json.loads(path.read_text())
                return found if isinstance(found, dict) else None
        return None

    def _was_struck(self, target: str, numbers: frozenset[int]) -> bool:
        return any(act.number in numbers and act.what in {target, "both"} for act in self.done)

    def allowed(self) -> set[int]:
        """Every exit code that the ranks and what befell them allow."""
        codes = {0, *(code for program in self.storm.programs for code in program.codes)}
        codes |= {128 + act.number for act in self.done if act.number}
        if self._was_struck("launcher", FATAL):
            codes.add(1)
        if any(act.what == "stop" for act in self.done):
            codes.add(143)
        if any(act.what == "stop --kill" for act in self.done):
            codes |= {131, 137, 143}
        if "--hang-timeout" in self.storm.options:
            codes.add(124)
        disturbed = any(program.breaks_run for program in self.storm.programs)
        if self.storm.setting or disturbed or self._was_struck("agent", FATAL) or self._was_struck("preload", FATAL):
            codes |= {1, 2, 126, 127, 137}
        if any(act.what in {"child", "prune --keep 0 -y"} for act in self.done) or "--elastic" in self.storm.options:
            codes |= {1, 126}
        if any(program.hangs for program in self.storm.programs) or self._was_struck("rank", frozenset(SIGNALS)):
            codes.add(1)
        return codes

    def _wrong_culprits(self, report: dict[str, Any]) -> Iterator[str]:
        may_fail = self.storm.setting or any(program.breaks_run for program in self.storm.programs)
        if may_fail or any(act.what not in READERS for act in self.done):
            return
        for attempt in report.get("attempts", ()):
            verdict = attempt.get("verdict")
            if not verdict or verdict["confidence"] != "certain" or verdict["culprit"] is None:
                continue
            program = self.storm.programs[verdict["culprit"]]
            if program.codes == {0} and not program.hangs:
                yield f"rank {verdict['culprit']} is certainly to blame, which ends well: {verdict['reason']}"


FATAL = frozenset({signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV})


def reap_others(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        reap()


def play(seed: int, *, keep: bool) -> list[str]:
    """Play one and print what is wrong with it."""
    folder = Path(tempfile.mkdtemp(prefix=f"storm-{seed}-"))
    weather = Weather(make_storm(seed), folder)
    try:
        weather.play()
        if weather.wrong or keep:
            storm = weather.storm
            print(f"seed {seed}: {'; '.join(weather.wrong) or 'nothing is wrong'}")
            print(f"  {[program.name for program in storm.programs]} {' '.join(storm.options)} {storm.setting}")
            print(f"  done: {weather.done}; exit code {weather.code}")
            print("  " + (folder / "err").read_text(errors="replace")[-1500:].replace("\n", "\n  "), flush=True)
        return weather.wrong
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def play_apart(seed: int, *, keep: bool) -> None:
    if os.fork() == 0:
        status = 2
        try:
            become_subreaper()
            status = 1 if play(seed, keep=keep) else 0
        except BaseException:  # noqa: BLE001 - it must never return into the caller's code
            print(f"seed {seed}: {traceback.format_exc()}", flush=True)
        os._exit(status)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--keep", action="store_true", help="keep the directories, and show all storms")
    arguments = parser.parse_args()
    failures = running = 0
    for number in range(arguments.count):
        if running == arguments.at_once:
            failures, running = failures + (os.wait()[1] != 0), running - 1
        play_apart(arguments.first + number, keep=arguments.keep)
        running += 1
        if number % 100 == 99:
            print(f"{number + 1} begun, {failures} failed", flush=True)
    failures += sum(os.wait()[1] != 0 for _ in range(running))
    print(f"{arguments.count} played, {failures} failed", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
