"""Measure how fast complete logs are shown."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from common.checks import Bound, Checks, median_ratio
from common.processes import PATIENCE_S, children_cpu_s, wait_until

from following.bench import BLOCK_BYTES, FOLLOWED, TAIL, Bench, Took

LOGS, LINES = 8, 330_000
LINES_OF_OTHER_WAYS = 20_000  # --merge, --json and --collapse are slower
SED_BOUND = Bound(must=1.5, aim=1.0)
COPIED, LABELLED, SHOWN, LAUNCH = "tail", "tail | sed", "logs", "logs -n 0"
PIPE = "a pipe"


def measure(bench: Bench, rounds: int, checks: Checks) -> None:
    lines = bench.times(LINES)
    assert bench.writers(LOGS, lines)[0].wait(PATIENCE_S) == 0
    size_bytes = sum(Path(path).stat().st_size for path in bench.files(LOGS))
    print(f"{LOGS} logs of together {size_bytes / 1e6:.0f} MB, {rounds} rounds:")
    for place in ("/dev/null", PIPE):
        shown = {name: argv for name, argv in cases(bench).items() if place == PIPE or name != TAIL}
        rows = [{name: shown_in(argv, place, size_bytes) for name, argv in shown.items()} for _ in range(rounds)]
        tell_speeds(place, rows, size_bytes, checks)
    tell_other_ways(bench, lines)
    tell_live_speed(bench)


def cases(bench: Bench) -> dict[str, list[str]]:
    files = bench.files(LOGS)
    return {
        COPIED: ["tail", "-q", "-n", "+1", *files],
        TAIL: ["tail", "-q", "-n", "+1", "-F", *files],  # stopped at its last byte
        LABELLED: ["sh", "-c", 'tail -q -n +1 "$@" | sed "s/^/[0] /"', "sh", *files],
        SHOWN: bench.logs_argv(),
        FOLLOWED: bench.logs_argv("-f"),
        LAUNCH: bench.logs_argv("-n", "0"),
    }


def tell_speeds(place: str, rows: Sequence[dict[str, Took]], size_bytes: int, checks: Checks) -> None:
    walls = [{name: took.wall_s for name, took in row.items()} for row in rows]
    cpus = [{name: took.cpu_s for name, took in row.items()} for row in rows]
    speeds = {name: size_bytes / 1e6 / statistics.median(row[name] for row in walls) for name in walls[0]}
    launch_s = statistics.median(row[LAUNCH] for row in walls)
    shown = ", ".join(f"{name} {speed:.0f} MB/s" for name, speed in speeds.items() if name != LAUNCH)
    print(f" to {place}: {shown}; launch of logs {launch_s:.2f} s")
    for name in (SHOWN, FOLLOWED):
        speed, cpu_speed = median_ratio(walls, COPIED, name), median_ratio(cpus, COPIED, name)
        once_up = statistics.median(row[COPIED] / (row[name] - row[LAUNCH]) for row in walls)
        print(
            f"  speed of {name} / tail: {speed:.2f} by time, {cpu_speed:.2f} by CPU time, {once_up:.2f} once launched"
        )
        print(f"  speed of {name} / tail | sed: {median_ratio(walls, LABELLED, name):.2f} by time")
        checks.tell(f"CPU time of {name} / tail | sed", median_ratio(cpus, name, LABELLED), SED_BOUND)


def tell_other_ways(bench: Bench, lines: int) -> None:
    for name in ("--merge", "--grep retry", "--json", "--collapse"):
        selects = name.startswith("--grep")  # then -n counts what was found, and all is read
        read = lines if selects else bench.times(LINES_OF_OTHER_WAYS)
        took = shown_in(bench.logs_argv(*name.split(), *([] if selects else ["-n", str(read)])), PIPE, None)
        print(f"  logs {name}: {LOGS * read / took.wall_s / 1e3:.0f} thousand lines/s", flush=True)


def shown_in(argv: Sequence[str], place: str, size_bytes: int | None) -> Took:
    """Until the command ends, or a `tail -F` has shown all bytes."""
    before_s, started_s = children_cpu_s(), time.perf_counter()
    if place == PIPE:
        wall_s = read_through(argv, size_bytes if "-F" in argv else None)
    else:
        subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
        wall_s = time.perf_counter() - started_s
    return Took(wall_s, children_cpu_s() - before_s)


def read_through(argv: Sequence[str], most_bytes: int | None) -> float:
    """Seconds to the end of what the command writes, or to so many bytes; then it is ended."""
    started_s = time.perf_counter()
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        got_bytes = 0
        while got_bytes != most_bytes and (block := os.read(process.stdout.fileno(), BLOCK_BYTES)):
            got_bytes += len(block)
        took_s = time.perf_counter() - started_s
        process.kill()
    return took_s


def tell_live_speed(bench: Bench) -> None:
    """Of `logs -f` beside one rank that writes as fast as it can: to the last line, while both share the cores."""
    started_s = time.perf_counter()
    run, _ = bench.writers(1, bench.times(4 * LINES))
    wait_until(Path(bench.files(1)[0]).exists, run)
    with subprocess.Popen(bench.logs_argv("-f"), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        got_bytes, last_s = 0, 0.0
        while block := os.read(process.stdout.fileno(), BLOCK_BYTES):
            got_bytes, last_s = got_bytes + len(block), time.perf_counter()
    assert run.wait(PATIENCE_S) == 0
    speed = got_bytes / 1e6 / (last_s - started_s)
    print(f"  logs -f beside one rank that writes as fast as it can: {speed:.0f} MB/s, launch included", flush=True)
