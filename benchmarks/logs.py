"""Claim: following logs costs the ranks nothing, and 256 quiet logs nothing at all; a line is seen when it is written.

What `tlaunch logs` does, beside `tail` in the same round; a ratio is the median of the rounds' ratios. Four measurements:

* ranks: 64 ranks write as fast as they can while their logs are rotated, followed by nobody, by `logs -f --merge`, or by
  `tail -F` (into a file). With fewer cores than processes a follower takes its CPU time from the ranks, and the run takes
  longer; whether it slows writing itself is told by the CPU time that the ranks need for the same lines.
* throughput: all that eight logs hold (some 200 MB), to /dev/null and to a pipe that is read. tail copies bytes; logs
  makes them harmless for a terminal and writes the rank before each line, as `sed` does here after tail.
* latency: from the write of a line to its arrival in a pipe, a line every 50 ms, each in another of all logs.
* idle: the share of one core that following quiet logs takes.

Exits with 1 if what must hold does not. --scale shortens everything but the number of logs.
"""

from __future__ import annotations

import argparse
import compileall
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import launcher

BIN = Path(sys.executable).parent
TLAUNCH = str(BIN / "tlaunch")
PROGRAM = Path(__file__).parent / "programs" / "writes_lines.py"
PATIENCE_S = 900
BLOCK_BYTES = 1 << 17
RANKS, LINES_OF_RANK, MAX_SIZE = 64, 50_000, "1M"
LOGS, LINES_OF_LOG = 8, 330_000
LATENCY_LINES, LINE_EVERY_S = 100, 0.05
IDLE_S = 20.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
RANKS_MUST, RANKS_AIM = 1.1, 1.02
SED_MUST, SED_AIM = 1.5, 1.0
IDLE_MUST, IDLE_AIM = 0.01, 0.002
LATENCY_MUST_S = 0.1
NOBODY, MERGED, TAIL, LAUNCH = "nobody", "logs -f --merge", "tail -F", "logs -n 0"


@dataclass(frozen=True)
class Took:
    """Seconds."""

    wall_s: float
    cpu_s: float


class Checks:
    """Prints figures, and keeps in mind whether those that must hold do."""

    def __init__(self) -> None:
        self.failed = False

    def at_most(self, what: str, value: float, must: float, aim: float) -> None:
        holds = value <= must
        self.failed |= not holds
        print(f"  {what}: {value:.4g}  {'OK' if holds else 'NOT'}: must be <= {must:g}, aim {aim:g}", flush=True)


class Bench:
    """Runs in one temporary directory."""

    def __init__(self, folder: Path, scale: float) -> None:
        self.folder, self.scale = folder, scale
        self.runs = folder  # of the last run that was started

    def times(self, count: int) -> int:
        return max(1, round(count * self.scale))

    def new_run(self, ranks: int, *program: str, options: Sequence[str] = ()) -> list[str]:
        """The command of a run, in a folder of its own."""
        self.runs = Path(tempfile.mkdtemp(dir=self.folder))
        runs = ["--runs-dir", str(self.runs)]
        return [TLAUNCH, "run", "--console", "none", "--devices", str(ranks), *runs, *options, "--", *program]

    def logs_argv(self, *options: str) -> list[str]:
        return [TLAUNCH, "logs", "--runs-dir", str(self.runs), *options]

    def files(self, ranks: int) -> list[str]:
        return [str(self.runs / "latest" / f"device{rank}" / "train.log") for rank in range(ranks)]

    def writers(self, ranks: int, lines: int, *options: str) -> tuple[subprocess.Popen[bytes], Path]:
        """A run of ranks that write, and the folder where they note their CPU time."""
        noted = Path(tempfile.mkdtemp(dir=self.folder))
        argv = self.new_run(ranks, sys.executable, str(PROGRAM), str(lines), options=options)
        environment = {**os.environ, "BENCH_TIMES": str(noted)}
        return subprocess.Popen(argv, env=environment, stderr=subprocess.DEVNULL), noted

    @contextmanager
    def sleepers(self, ranks: int) -> Iterator[None]:
        """A run of ranks that write nothing, once all their logs are there."""
        run = subprocess.Popen(self.new_run(ranks, "sleep", "3600"), stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: all(Path(path).exists() for path in self.files(ranks)), run)
            yield
        finally:
            run.send_signal(signal.SIGTERM)
            run.wait(PATIENCE_S)


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert process.poll() is None, f"it has ended with {process.returncode}"
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


@contextmanager
def running(argv: Sequence[str], stdout: int) -> Iterator[subprocess.Popen[bytes]]:
    """A follower; it is ended behind the block."""
    process = subprocess.Popen(argv, stdout=stdout, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def cpu_s(pid: int) -> float:
    """What a process has taken so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def median_ratio(rows: Sequence[dict[str, float]], name: str, peer: str) -> float:
    return statistics.median(row[name] / row[peer] for row in rows)


# --- ranks ---


def measure_ranks(bench: Bench, rounds: int, checks: Checks) -> None:
    lines = bench.times(LINES_OF_RANK)
    walls: list[dict[str, float]] = []
    cpus: list[dict[str, float]] = []
    for number in range(rounds):
        names = (NOBODY, MERGED, TAIL)
        took = {name: written(bench, lines, name) for name in names[number % 3 :] + names[: number % 3]}
        walls.append({name: each.wall_s for name, each in took.items()})
        cpus.append({name: each.cpu_s for name, each in took.items()})
    print(f"{RANKS} ranks write {lines} lines each, rotated at {MAX_SIZE}, {rounds} rounds:")
    for name in (NOBODY, MERGED, TAIL):
        wall_s, rank_cpu_s = (statistics.median(row[name] for row in rows) for rows in (walls, cpus))
        per_line_us = rank_cpu_s / RANKS / lines * 1e6
        print(f"  followed by {name}: {wall_s:.2f} s; {per_line_us:.2f} us of a rank's CPU time per line")
    for name in (MERGED, TAIL):
        print(f"  run's time, {name} / nobody: {median_ratio(walls, name, NOBODY):.3f}")
    print(f"  ranks' CPU time, {TAIL} / nobody: {median_ratio(cpus, TAIL, NOBODY):.3f}")
    checks.at_most(f"ranks' CPU time, {MERGED} / nobody", median_ratio(cpus, MERGED, NOBODY), RANKS_MUST, RANKS_AIM)


def written(bench: Bench, lines: int, follower: str) -> Took:
    """The run's time, and the CPU time of all its ranks."""
    started_s = time.perf_counter()
    run, noted = bench.writers(RANKS, lines, "--log-max-size", MAX_SIZE)
    wait_until((bench.runs / "latest" / f"device{RANKS - 1}" / "train.log").exists, run)
    argv = {MERGED: bench.logs_argv("-f", "--merge"), TAIL: ["tail", "-n", "+1", "-F", *bench.files(RANKS)]}
    with tempfile.TemporaryFile(dir=bench.folder) as shown, running(argv.get(follower, ["true"]), shown.fileno()):
        assert run.wait(PATIENCE_S) == 0
        wall_s = time.perf_counter() - started_s
    return Took(wall_s, sum(float(path.read_text(encoding="ascii")) for path in noted.iterdir()))


# --- throughput ---


def measure_throughput(bench: Bench, rounds: int, checks: Checks) -> None:
    lines = bench.times(LINES_OF_LOG)
    assert bench.writers(LOGS, lines)[0].wait(PATIENCE_S) == 0
    files = bench.files(LOGS)
    size_bytes = sum(Path(path).stat().st_size for path in files)
    tail = ["tail", "-q", "-n", "+1", *files]
    cases = {
        "tail": tail,
        "tail -F": ["tail", "-q", "-n", "+1", "-F", *files],  # stopped at its last byte
        "tail | sed": ["sh", "-c", 'tail -q -n +1 "$@" | sed "s/^/[0] /"', "sh", *files],
        "logs": bench.logs_argv(),
        "logs -f": bench.logs_argv("-f"),
        LAUNCH: bench.logs_argv("-n", "0"),
    }
    print(f"{LOGS} logs of together {size_bytes / 1e6:.0f} MB, {rounds} rounds:")
    for place in ("/dev/null", "a pipe"):
        shown = {name: argv for name, argv in cases.items() if place == "a pipe" or name != "tail -F"}
        rows = [{name: shown_in(argv, place, size_bytes) for name, argv in shown.items()} for _ in range(rounds)]
        tell_speeds(place, rows, size_bytes, checks)
    for name in ("--merge", "--grep retry", "--json", "--collapse"):
        selects = name.startswith("--grep")  # then -n counts what was found, and all is read
        read = lines if selects else bench.times(20_000)
        took = shown_in(bench.logs_argv(*name.split(), *([] if selects else ["-n", str(read)])), "a pipe", None)
        print(f"  logs {name}: {LOGS * read / took.wall_s / 1e3:.0f} thousand lines/s", flush=True)
    tell_live_speed(bench)


def tell_speeds(place: str, rows: Sequence[dict[str, Took]], size_bytes: int, checks: Checks) -> None:
    walls = [{name: took.wall_s for name, took in row.items()} for row in rows]
    cpus = [{name: took.cpu_s for name, took in row.items()} for row in rows]
    speeds = {name: size_bytes / 1e6 / statistics.median(row[name] for row in walls) for name in walls[0]}
    launch_s = statistics.median(row[LAUNCH] for row in walls)
    shown = ", ".join(f"{name} {speed:.0f} MB/s" for name, speed in speeds.items() if name != LAUNCH)
    print(f" to {place}: {shown}; launch of logs {launch_s:.2f} s")
    for name in ("logs", "logs -f"):
        speed, cpu_speed = median_ratio(walls, "tail", name), median_ratio(cpus, "tail", name)
        once_up = statistics.median(row["tail"] / (row[name] - row[LAUNCH]) for row in walls)
        print(
            f"  speed of {name} / tail: {speed:.2f} by time, {cpu_speed:.2f} by CPU time, {once_up:.2f} once launched"
        )
        print(f"  speed of {name} / tail | sed: {median_ratio(walls, 'tail | sed', name):.2f} by time")
        checks.at_most(f"CPU time of {name} / tail | sed", median_ratio(cpus, name, "tail | sed"), SED_MUST, SED_AIM)


def shown_in(argv: Sequence[str], place: str, size_bytes: int | None) -> Took:
    """Until the command ends, or a `tail -F` has shown all bytes."""
    before = os.times()
    started_s = time.perf_counter()
    if place == "a pipe":
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            got_bytes = 0
            while block := os.read(process.stdout.fileno(), BLOCK_BYTES):
                got_bytes += len(block)
                if "-F" in argv and got_bytes == size_bytes:
                    break
            wall_s = time.perf_counter() - started_s
            process.kill()
    else:
        subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
        wall_s = time.perf_counter() - started_s
    after = os.times()
    spent_s = after.children_user + after.children_system - before.children_user - before.children_system
    return Took(wall_s, spent_s)


def tell_live_speed(bench: Bench) -> None:
    """Of `logs -f` beside one rank that writes as fast as it can: to the last line, while both share the cores."""
    started_s = time.perf_counter()
    run, _ = bench.writers(1, bench.times(4 * LINES_OF_LOG))
    wait_until(Path(bench.files(1)[0]).exists, run)
    with subprocess.Popen(bench.logs_argv("-f"), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        got_bytes, last_s = 0, 0.0
        while block := os.read(process.stdout.fileno(), BLOCK_BYTES):
            got_bytes, last_s = got_bytes + len(block), time.perf_counter()
    assert run.wait(PATIENCE_S) == 0
    speed = got_bytes / 1e6 / (last_s - started_s)
    print(f"  logs -f beside one rank that writes as fast as it can: {speed:.0f} MB/s, launch included", flush=True)


# --- latency, idle ---


def measure_latency(bench: Bench, ranks: int, rounds: int, checks: Checks) -> None:
    with bench.sleepers(ranks):
        peers = {"logs -f": bench.logs_argv("-f"), TAIL: ["tail", "-q", "-n", "+1", "-F", *bench.files(ranks)]}
        rows = [{name: latencies(bench, ranks, argv) for name, argv in peers.items()} for _ in range(rounds)]
    print(f"from the write of a line to a pipe, {ranks} logs:")
    for name in peers:
        all_s = sorted(each for row in rows for each in row[name])
        median_s, late_s = statistics.median(all_s), all_s[len(all_s) * 95 // 100]
        print(f"  {name}: median {median_s * 1e3:.2f} ms, 95th percentile {late_s * 1e3:.2f} ms")
    medians = [{name: statistics.median(row[name]) for name in peers} for row in rows]
    print(f"  median, logs -f / {TAIL}: {median_ratio(medians, 'logs -f', TAIL):.2f}")
    median_s = statistics.median(row["logs -f"] for row in medians)
    checks.at_most("median of logs -f, seconds", median_s, LATENCY_MUST_S, LATENCY_MUST_S / 10)


def latencies(bench: Bench, ranks: int, argv: Sequence[str]) -> list[float]:
    """Seconds, of lines that are written to all logs in turn."""
    files = bench.files(ranks)
    with running(argv, subprocess.PIPE) as process:
        assert process.stdout is not None
        arrived(process.stdout.fileno(), files[0], b"the first line\n")  # it follows
        time.sleep(1.5)  # tail has told of all files, we have looked at all
        drain(process.stdout.fileno())
        took = []
        for number in range(max(20, bench.times(LATENCY_LINES))):
            line = b"%d\n" % time.time_ns()
            took.append(arrived(process.stdout.fileno(), files[number * 7 % ranks], line))
            time.sleep(LINE_EVERY_S)
    return took


def arrived(pipe: int, file: str, line: bytes) -> float:
    """How long until a line that is written now comes out of the pipe."""
    writer = os.open(file, os.O_WRONLY | os.O_APPEND)
    started_s = time.perf_counter()
    os.write(writer, line)
    seen = b""
    while line not in seen:
        block = os.read(pipe, BLOCK_BYTES)
        assert block, "the follower has ended"
        seen += block
    took_s = time.perf_counter() - started_s
    os.close(writer)
    return took_s


def drain(pipe: int) -> None:
    while select.select([pipe], [], [], 0)[0] and os.read(pipe, BLOCK_BYTES):
        pass


def measure_idle(bench: Bench, ranks: int, rounds: int, checks: Checks) -> None:
    seconds = max(5.0, IDLE_S * bench.scale)
    with bench.sleepers(ranks):
        peers = {"logs -f": bench.logs_argv("-f"), TAIL: ["tail", "-q", "-F", *bench.files(ranks)]}
        rows = [{name: idle_share(argv, seconds) for name, argv in peers.items()} for _ in range(rounds)]
    medians = {name: statistics.median(row[name] for row in rows) for name in peers}
    print(f"{ranks} quiet logs for {seconds:.0f} s:")
    print("  " + ", ".join(f"{name} {share:.3%} of one core" for name, share in medians.items()))
    if ranks == 256:
        checks.at_most("share of one core", medians["logs -f"], IDLE_MUST, IDLE_AIM)


def idle_share(argv: Sequence[str], seconds: float) -> float:
    with running(argv, subprocess.DEVNULL) as process:
        time.sleep(3)
        before_s = cpu_s(process.pid)
        time.sleep(seconds)
        return (cpu_s(process.pid) - before_s) / seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ["ranks", "throughput", "latency", "idle", "idle-1024"]
    parser.add_argument("--rounds", type=int, help="of every measurement")
    parser.add_argument("--scale", type=float, default=1.0, help="of lines and seconds")
    parser.add_argument("--only", choices=names, action="append", help="this measurement; may be repeated")
    arguments = parser.parse_args()
    wanted = arguments.only or names
    checks = Checks()
    compileall.compile_dir(Path(launcher.__file__).parent, quiet=1)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), arguments.scale)
        if "ranks" in wanted:
            measure_ranks(bench, arguments.rounds or 3, checks)
        if "throughput" in wanted:
            measure_throughput(bench, arguments.rounds or 5, checks)
        if "latency" in wanted:
            for ranks in (8, 256):
                measure_latency(bench, ranks, arguments.rounds or 2, checks)
        if "idle" in wanted:
            measure_idle(bench, 256, arguments.rounds or 1, checks)
        if "idle-1024" in wanted:
            measure_idle(bench, 1024, arguments.rounds or 1, checks)
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
