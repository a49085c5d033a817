"""Play schedules with the real `tlaunch run`, some at once: `python tests/torture/play.py SEED... [--keep]`.

Prints of each what is wrong (and then the whole schedule, what was struck, and the end of the launcher's output) and
exits with 1, or prints nothing and exits with 0. Each schedule is played by a process of its own, a subreaper, which
inherits whatever the run leaves behind.
"""

from __future__ import annotations

import argparse
import json
import os
import pprint
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from oracle import Facts, Struck, complaints, longest_s
from schedules import Blow, Schedule, make_schedule

from launcher.core.machine.proc import every_process
from launcher.supervise.spawn import become_subreaper

PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "torture_rank.py"
AT_ONCE = 10  # most of a schedule's time is waiting
PATIENCE_S = 60  # for what must happen at all
PLAY_S = 240  # the most that a schedule takes
READY_PATIENCE_S = 5  # ranks may never be ready all together
TICK_S = 0.01
SHOWN_CHARACTERS = 4096
BULK = "xxxxxxxx"  # as torture_rank.py prints it
STALL_LOOK_S = 0.05
STALL_S = 0.1  # a look that comes later than that had no core
MAX_CORES = 8  # of more, processes find another one


class Stalls:
    """How long cores stand still, be it that another machine has them: a thread on each looks at the clock."""

    def __init__(self) -> None:
        self._over = threading.Event()
        cores = sorted(os.sched_getaffinity(0))[:MAX_CORES]
        self._seconds, self._looked_at = dict.fromkeys(cores, 0.0), dict.fromkeys(cores, time.monotonic())
        self._threads = [threading.Thread(target=self._watch, args=(core,), daemon=True) for core in cores]
        for thread in self._threads:
            thread.start()

    @property
    def seconds(self) -> float:
        """So far, those of all cores together."""
        now = time.monotonic()
        return sum(self._seconds.values()) + sum(self._late_s(core, now) for core in self._looked_at)

    def end(self) -> float:
        self._over.set()
        for thread in self._threads:
            thread.join()
        return sum(self._seconds.values())

    def _watch(self, core: int) -> None:
        os.sched_setaffinity(0, {core})  # of this thread alone
        while not self._over.wait(STALL_LOOK_S):
            self._look(core)
        self._look(core)

    def _look(self, core: int) -> None:
        now = time.monotonic()
        late_s, self._looked_at[core] = self._late_s(core, now), now
        self._seconds[core] += late_s

    def _late_s(self, core: int, now: float) -> float:
        late_s = now - self._looked_at[core] - STALL_LOOK_S
        return late_s if late_s > STALL_S else 0.0


class Play:
    """One schedule in a directory of its own, from the start of the command to the look at what it left."""

    def __init__(self, schedule: Schedule, folder: Path) -> None:
        self._schedule = schedule
        self._folder = folder
        self._name = f"torture-{schedule.seed}-{os.getpid()}"
        self._records, self._plan, self._temporary = folder / "records", folder / "plan", folder / "tmp"
        self._runs, self.output = folder / "runs", folder / "output"
        self._temporary.mkdir()
        self._plan.write_text(json.dumps([[asdict(part) for part in attempt] for attempt in schedule.attempts]))

    def play(self) -> Facts:
        self.facts = Facts(self._schedule, None, time.time_ns())
        self._stalls = Stalls()
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                self._argv(), cwd=self._folder, env=self._environment(), stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        self._strike_all()
        self._await(lambda: self._process.poll() is not None)
        self.facts.status, self.facts.ended_ns = self._process.returncode, time.time_ns()
        self._look_around()
        self._read()
        self.facts.stalled_s = self._stalls.end()
        return self.facts

    def told(self) -> str:
        """The end of what the launcher printed, without the ranks' bulk."""
        printed = self.output.read_text(errors="replace").splitlines(keepends=True)
        return "".join(line for line in printed if not line.startswith(BULK))[-SHOWN_CHARACTERS:]

    def _argv(self) -> list[str]:
        schedule = self._schedule
        return [
            sys.executable, "-m", "launcher", "run", "--devices", str(schedule.ranks), "--runs-dir", str(self._runs),
            "--name", self._name, "--grace", str(schedule.grace_s), "--max-restarts", str(schedule.max_restarts),
            *([] if schedule.preload else ["--no-preload"]), "--", sys.executable, str(PROGRAM),
        ]  # fmt: skip

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TLAUNCH_", "RANK"))}
        mine = {"TORTURE_PLAN": self._plan, "TORTURE_RECORDS": self._records, "TMPDIR": self._temporary}
        return {**kept, **{name: str(path) for name, path in mine.items()}}

    # --- blows ---

    def _strike_all(self) -> None:
        due = {blow: self._due_s(blow) for blow in self._schedule.blows}
        waiting = list(due)
        deadline = time.monotonic() + PATIENCE_S
        while waiting and self._process.poll() is None and time.monotonic() < deadline:
            for blow in list(waiting):
                moment = due[blow]()
                if moment is not None and time.monotonic() >= moment:
                    waiting.remove(blow)
                    self._strike(blow)
            time.sleep(TICK_S)

    def _due_s(self, blow: Blow) -> Callable[[], float | None]:
        """A function that tells when, monotonic; None while what the blow waits for has not happened."""
        started = time.monotonic()
        seen: list[float] = [started] if blow.after == "launch" else []

        def moment() -> float | None:
            if not seen and (self._has_happened(blow.after) or time.monotonic() > started + READY_PATIENCE_S):
                seen.append(time.monotonic())
            return seen[0] + blow.after_s if seen else None

        return moment

    def _has_happened(self, what: str) -> bool:
        if what == "agent":
            return bool(self._events())
        return len({record["rank"] for record in lines(self._records)}) == self._schedule.ranks

    def _strike(self, blow: Blow) -> None:
        if blow.target == "head":
            self._strike_head(blow)
            return
        found = self._find(blow)
        # The pid may be anyone's by now: what the run has started inherits a path that only this play knows.
        if found and self._is_ours(found["pid"]):
            struck = Struck(blow, time.time_ns(), found.get("attempt", 0))
            with suppress(ProcessLookupError):
                os.kill(found["pid"], blow.signal)
                self.facts.struck.append(struck)

    def _strike_head(self, blow: Blow) -> None:
        if self._process.poll() is None:
            self.facts.struck.append(Struck(blow, time.time_ns()))
            self._process.send_signal(blow.signal)
        if blow.again_after_s is not None:
            time.sleep(blow.again_after_s)
            self._process.send_signal(blow.signal)

    def _find(self, blow: Blow) -> dict[str, Any] | None:
        """The pid of a target that lives, and the attempt of a rank."""
        events = self._events()
        if blow.target == "agent":
            return next((event["agent"] for event in events if event["event"] == "AgentStarted"), None)
        if blow.target == "preload":
            return next((event for event in reversed(events) if event["event"] == "Preloading"), None)
        attempt, found = 0, None
        for event in events:
            if event["event"] == "AttemptStarted":
                attempt = event["number"]
            elif event.get("global_rank") == blow.rank:
                found = {"pid": event["pid"], "attempt": attempt} if event["event"] == "RankStarted" else None
        return found

    def _agents(self) -> list[int]:
        return [event["agent"]["pid"] for event in self._events() if event["event"] == "AgentStarted"]

    def _events(self) -> list[dict[str, Any]]:
        found = list(self._runs.glob("*/events.jsonl"))
        return lines(found[0]) if found else []

    # --- what is left ---

    def _look_around(self) -> None:
        """Only where the launcher itself was killed may something go on after it, for a while."""
        killed = self.facts.status == -signal.SIGKILL and self.facts.hit("head", signal.SIGKILL)
        patience_s = longest_s(self._schedule) if killed else 0
        zombies: list[int] = []
        all_ended = self._await(lambda: zombies.extend(reap()) or not self._survivors(), patience_s)
        zombies += reap()
        if zombies and not killed:
            self.facts.left.append(f"{len(zombies)} zombies came to the launcher's parent")
        if not all_ended:
            self.facts.left += [f"a process is left: {survivor}" for survivor in self._survivors()]
            self._kill_survivors()
        self.facts.left += [f"a file is left in TMPDIR: {path.name}" for path in self._temporary.iterdir()]
        groups = [path for agent in self._agents() for path in control_groups(agent)]
        self.facts.left += [
            f"control group {path} is left"
            for path in groups
            if not self._await(lambda p=path: not p.exists()) and not (killed and self._was_forgotten(path))
        ]
        ports = {record["port"] for record in lines(self._records) if "port" in record}
        self.facts.left += [f"port {port} is not free" for port in ports if not self._await(lambda p=port: is_free(p))]

    def _was_forgotten(self, group: Path) -> bool:
        """Whether it is empty, and its agent ended well a moment before the head was killed that would have removed it.

        A later run removes it.
        """
        ended = any(event["event"] == "AgentEnded" for event in self._events())
        if ended and (group / "cgroup.procs").read_text() == "":
            group.rmdir()
        return not group.exists()

    def _survivors(self) -> list[str]:
        """Every process of the run: below this one, or with the run's own environment."""
        children: dict[int, list[int]] = {}
        for process in every_process():
            children.setdefault(process.parent, []).append(process.pid)
            if process.pid != os.getpid() and self._is_ours(process.pid):
                children.setdefault(os.getpid(), []).append(process.pid)
        below = children.pop(os.getpid(), [])
        for pid in below:  # grows meanwhile
            below += children.pop(pid, [])
        return [f"{pid} {command_line(pid)}" for pid in sorted(set(below))]

    def _is_ours(self, pid: int) -> bool:
        with suppress(OSError):
            return f"TORTURE_PLAN={self._plan}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
        return False

    def _kill_survivors(self) -> None:
        while survivors := self._survivors():
            for survivor in survivors:
                with suppress(ProcessLookupError):
                    os.kill(int(survivor.split()[0]), signal.SIGKILL)
            self._process.poll()
            reap()
            time.sleep(TICK_S)

    def _await(self, condition: Callable[[], object], patience_s: float = PATIENCE_S) -> bool:
        """Time for which cores stand still is no part of the patience."""
        deadline = time.monotonic() + patience_s - self._stalls.seconds
        while not condition():
            if time.monotonic() > deadline + self._stalls.seconds:
                return False
            time.sleep(TICK_S)
        return True

    # --- what was written ---

    def _read(self) -> None:
        self.facts.records = lines(self._records)
        self.facts.events = self._events()
        for report in self._runs.glob("*/report.json"):
            self.facts.report = json.loads(report.read_text())
        for log in self._runs.glob("*/device*/train.log"):
            self.facts.logs[int(log.parent.name.removeprefix("device"))] = log.read_text(errors="replace")


def lines(path: Path) -> list[dict[str, Any]]:
    """Of a file of JSON lines, whose last one may be half written."""
    try:
        *whole, _ = path.read_bytes().split(b"\n")
    except OSError:
        return []
    return [json.loads(line) for line in whole]


def reap() -> list[int]:
    """The pids of ended children, those that this process has inherited. Call when the command itself is reaped."""
    found = []
    with suppress(ChildProcessError):
        while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
            found.append(pid)
    return found


def control_groups(agent_pid: int) -> list[Path]:
    """What is left of the one that an agent made."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    points = [Path(point) for _, point, kind, *_ in mounts if kind == "cgroup2"]
    # Unlike a glob, a walk does not mind that other plays remove theirs meanwhile.
    found = [Path(directory) for point in points for directory, _, _ in os.walk(point)]
    return [path for path in found if path.name.startswith("tlaunch-") and path.name.endswith(f"-{agent_pid}")]


def is_free(port: str) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", int(port)))
        except OSError:
            return False
    return True


def command_line(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def play(seed: int, *, keep: bool = False) -> tuple[list[str], str]:
    """What is wrong, and all that helps to find out why."""
    folder = Path(tempfile.mkdtemp(prefix=f"torture-{seed}-"))
    played = Play(make_schedule(seed), folder)
    try:
        facts = played.play()
        shown = f"{pprint.pformat(facts.schedule, width=160)}\n"
        shown += "".join(f"struck: {struck}\n" for struck in facts.struck)
        shown += "".join(f"{timed(record, facts.started_ns)}\n" for record in facts.records + facts.events)
        shown += f"status {facts.status}, cores stood still for {facts.stalled_s:.2f} s\n{played.told()}"
        return list(complaints(facts)), shown
    finally:
        if not keep:
            shutil.rmtree(folder)


def timed(fields: dict[str, Any], started_ns: int) -> str:
    rest = {name: value for name, value in fields.items() if name not in {"time_ns", "schema", "server_index"}}
    return f"  {(fields['time_ns'] - started_ns) / 1e9:7.3f} s {rest}"


def _give_up(seed: int, *_: object) -> None:
    raise TimeoutError(f"the schedule of seed {seed} has not ended after {PLAY_S} s")


def play_apart(seed: int, *, keep: bool) -> None:
    """Fork a process that plays a schedule, prints what is to be said of it, and exits with 1 if anything is wrong."""
    if os.fork() == 0:
        status = 2
        try:
            become_subreaper()
            signal.signal(signal.SIGALRM, partial(_give_up, seed))
            signal.alarm(PLAY_S)
            wrong, shown = play(seed, keep=keep)
            if wrong or keep:
                print(f"seed {seed}: {'; '.join(wrong) or 'nothing is wrong'}\n{shown}", flush=True)
            status = 1 if wrong else 0
        except BaseException:  # noqa: BLE001 - it must never return into the caller's code
            traceback.print_exc()
        os._exit(status)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", type=int, nargs="+", metavar="SEED")
    parser.add_argument("--keep", action="store_true", help="keep the run directories, and show all that happened")
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    statuses = []
    for number, seed in enumerate(arguments.seeds):
        if number >= AT_ONCE:
            statuses.append(os.wait()[1])
        play_apart(seed, keep=arguments.keep)
    statuses += [os.wait()[1] for _ in range(len(arguments.seeds) - len(statuses))]
    return 1 if any(statuses) else 0


if __name__ == "__main__":
    sys.exit(main())
