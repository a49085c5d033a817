"""Measure the cost of a follower for the ranks that write."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence

from common.checks import Bound, Checks, median_ratio
from common.processes import PATIENCE_S, running, wait_until

from following.bench import TAIL, Bench, Took

RANKS, LINES = 64, 50_000
CPU_BOUND = Bound(must=1.1, aim=1.02)
NOBODY, MERGED = "nobody", "logs -f --merge"
FOLLOWERS = (NOBODY, MERGED, TAIL)
Row = Mapping[str, float]


def measure(bench: Bench, rounds: int, checks: Checks) -> None:
    lines = bench.times(LINES)
    rows = [{name: written(bench, lines, name) for name in turned(number)} for number in range(rounds)]
    walls = [{name: took.wall_s for name, took in row.items()} for row in rows]
    cpus = [{name: took.cpu_s for name, took in row.items()} for row in rows]
    print(f"{RANKS} ranks write {lines} lines each, {rounds} rounds:")
    tell(walls, cpus, lines, checks)


def turned(number: int) -> tuple[str, ...]:
    """Another one first in each round."""
    first = number % len(FOLLOWERS)
    return FOLLOWERS[first:] + FOLLOWERS[:first]


def tell(walls: Sequence[Row], cpus: Sequence[Row], lines: int, checks: Checks) -> None:
    for name in FOLLOWERS:
        wall_s, rank_cpu_s = (statistics.median(row[name] for row in rows) for rows in (walls, cpus))
        per_line_us = rank_cpu_s / RANKS / lines * 1e6
        print(f"  followed by {name}: {wall_s:.2f} s; {per_line_us:.2f} us of a rank's CPU time per line")
    for name in (MERGED, TAIL):
        print(f"  run's time, {name} / nobody: {median_ratio(walls, name, NOBODY):.3f}")
    print(f"  ranks' CPU time, {TAIL} / nobody: {median_ratio(cpus, TAIL, NOBODY):.3f}")
    checks.tell(f"ranks' CPU time, {MERGED} / nobody", median_ratio(cpus, MERGED, NOBODY), CPU_BOUND)


def written(bench: Bench, lines: int, follower: str) -> Took:
    """The run's time, and the CPU time of all its ranks."""
    started_s = time.perf_counter()
    run, noted = bench.writers(RANKS, lines)
    wait_until((bench.runs / "latest" / f"device{RANKS - 1}" / "train.log").exists, run)
    argv = {MERGED: bench.logs_argv("-f", "--merge"), TAIL: ["tail", "-n", "+1", "-F", *bench.files(RANKS)]}
    with tempfile.TemporaryFile(dir=bench.folder) as shown, running(argv.get(follower, ["true"]), shown.fileno()):
        assert run.wait(PATIENCE_S) == 0
        wall_s = time.perf_counter() - started_s
    return Took(wall_s, sum(float(path.read_text(encoding="ascii")) for path in noted.iterdir()))
