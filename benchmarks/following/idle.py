"""Measure the CPU time of following logs without new lines."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Sequence

from common.checks import Bound, Checks
from common.processes import cpu_s, running

from following.bench import FOLLOWED, TAIL, Bench

MEASURED_S, MIN_S = 20.0, 5.0
START_S = 3  # until a follower has looked at all logs


def measure(bench: Bench, rounds: int, checks: Checks, *, ranks: int, bound: Bound | None = None) -> None:
    seconds = max(MIN_S, MEASURED_S * bench.scale)
    with bench.sleepers(ranks):
        peers = {FOLLOWED: bench.logs_argv("-f"), TAIL: ["tail", "-q", "-F", *bench.files(ranks)]}
        rows = [{name: idle_share(argv, seconds) for name, argv in peers.items()} for _ in range(rounds)]
    medians = {name: statistics.median(row[name] for row in rows) for name in peers}
    print(f"{ranks} quiet logs for {seconds:.0f} s:")
    print("  " + ", ".join(f"{name} {share:.3%} of one core" for name, share in medians.items()))
    if bound is not None:
        checks.tell("share of one core", medians[FOLLOWED], bound)


def idle_share(argv: Sequence[str], seconds: float) -> float:
    with running(argv, subprocess.DEVNULL) as process:
        time.sleep(START_S)
        before_s = cpu_s(process.pid)
        time.sleep(seconds)
        return (cpu_s(process.pid) - before_s) / seconds
