"""Logs at their limits: many ranks that write as fast as they can, slow readers, more files than a process may open.

TLAUNCH_STRESS=1 has every rank write 50,000 lines, as many as anybody promised to survive.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import module_from_spec, spec_from_file_location
from itertools import pairwise
from pathlib import Path

import pytest

from launcher.core.events import AgentEnded, AgentStarted, Cause
from launcher.core.proc import identify, stat

PROGRAMS = Path(__file__).parents[1] / "programs"
SPEC = spec_from_file_location("acted_run", PROGRAMS / "acted_run.py")
acted_run = module_from_spec(SPEC)
SPEC.loader.exec_module(acted_run)

FULL = os.environ.get("TLAUNCH_STRESS") == "1"
LINES = 50_000 if FULL else 2_500
PATIENCE_S = 600 if FULL else 100  # how long to wait for what must happen; never how long it may take
NUMBERED = re.compile(rb"\[(\d+)\] (?:[-0-9]{10} [:0-9]{8} )?line (\d+) of rank (\d+), attempt (\d+): (x*)")
MANY = 1024

pytestmark = pytest.mark.timeout(3 * PATIENCE_S)


def start(launcher, ranks, *waits, options=()):
    """A run of ranks that number their lines."""
    program = [sys.executable, PROGRAMS / "numbered.py", LINES, launcher.directory, *waits]
    return launcher.start("run", "--devices", ranks, *options, "--", *program)


def show(launcher, *options):
    """What `tlaunch logs` writes, as bytes."""
    argv = launcher.argv("logs", *options)
    environment = launcher.environment({})
    return subprocess.run(
        argv, cwd=launcher.directory, env=environment, capture_output=True, check=True, timeout=PATIENCE_S
    ).stdout


def follow(launcher, name, *options):
    """Start to follow into a file; the process and the file."""
    path = launcher.directory / name
    with path.open("wb") as file:
        return launcher.start("logs", "--follow", *options, stdout=file), path


def stored(launcher, rank):
    return (launcher.latest / f"device{rank}" / "train.log").read_bytes()


def prefixed(rank, text):
    return b"".join(b"[%d] %s" % (rank, line) for line in text.splitlines(keepends=True))


def by_rank(text):
    """The lines of each rank, in the order in which they are shown."""
    lines = {}
    for line in text.splitlines(keepends=True):
        lines.setdefault(int(line[1 : line.index(b"]")]), []).append(line)
    return b"".join(b"".join(lines[rank]) for rank in sorted(lines))


def check_numbers(text, ranks, attempts=1):
    """Every rank's every line stands there, once, whole, in the order in which it was written."""
    seen = dict.fromkeys(range(ranks), 0)
    for line in text.splitlines():
        if match := NUMBERED.fullmatch(line):
            shown_rank, number, rank, attempt = map(int, match.groups()[:4])
            assert (shown_rank, attempt, number) == (rank, *divmod(seen[rank], LINES)), line
            assert len(match[5]) == number % 50, line
            seen[rank] += 1
        else:
            assert re.fullmatch(rb"\[\d+\] --- attempt [12] ---", line), line
    assert set(seen.values()) == {attempts * LINES}


def is_stopped(process):
    found = stat(process.pid)
    return found is not None and found.stopped


def test_every_line_of_64_ranks_is_followed_once_and_in_order(launcher, wait_until):
    """While 64 ranks write; afterwards all ways to read the logs give the same bytes."""
    head = start(launcher, 64, "half")
    wait_until(lambda: len(list(launcher.latest.glob("device*/train.log"))) == 64, "all logs", PATIENCE_S)
    followers = [follow(launcher, "merged", "--merge"), follow(launcher, "plain")]
    for _, path in followers:
        wait_until(lambda path=path: path.stat().st_size, "followed lines", PATIENCE_S)
    (launcher.directory / "go").touch()
    assert head.wait(PATIENCE_S) == 0
    plain = show(launcher)
    check_numbers(plain, 64)
    for process, path in followers:
        assert process.wait(PATIENCE_S) == 0
        assert by_rank(path.read_bytes()) == plain
    assert by_rank(show(launcher, "--merge")) == plain
    assert b"".join(prefixed(rank, stored(launcher, rank)) for rank in range(64)) == plain


def test_attempts_of_many_ranks_are_followed(launcher, wait_until):
    """Over two restarts no line is lost, and each is said to be of the attempt that wrote it."""
    head = start(launcher, 8, "restarts", options=("--max-restarts", 2, "--grace", 1))
    wait_until((launcher.latest / "device7" / "train.log").exists, "the last rank's log", PATIENCE_S)
    (merged, merged_path), (told, told_path) = (
        follow(launcher, "merged", "--merge"),
        follow(launcher, "told", "--json"),
    )
    assert head.wait(PATIENCE_S) == 0
    assert merged.wait(PATIENCE_S) == told.wait(PATIENCE_S) == 0
    plain = show(launcher)
    check_numbers(plain, 8, attempts=3)
    assert by_rank(merged_path.read_bytes()) == plain
    assert b"".join(prefixed(rank, stored(launcher, rank)) for rank in range(8)) == plain
    for line in map(json.loads, told_path.read_bytes().splitlines()):
        own = re.search(r"attempt (\d)", line["text"])[1]
        assert line["text"].startswith("---") or line["attempt"] == int(own), line


@pytest.mark.parametrize("options", [(), ("--merge",)], ids=["plain", "merged"])
def test_a_stopped_follower_holds_nobody_up_and_loses_nothing(launcher, wait_until, suspend, options):
    """Ranks write all that they have and the run ends, while it is stopped; then it shows the rest."""
    head = start(launcher, 8, "half")
    wait_until(lambda: len(list(launcher.latest.glob("device*/train.log"))) == 8, "all logs", PATIENCE_S)
    follower, path = follow(launcher, "followed", *options)
    wait_until(lambda: path.stat().st_size, "followed lines", PATIENCE_S)
    suspend(follower.pid)
    (launcher.directory / "go").touch()
    assert head.wait(PATIENCE_S) == 0
    assert is_stopped(follower)
    follower.send_signal(signal.SIGCONT)
    assert follower.wait(PATIENCE_S) == 0
    check_numbers(path.read_bytes(), 8)


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("options", [(), ("--merge",)], ids=["plain", "merged"])
def test_a_slow_reader_of_the_follower_holds_nobody_up(launcher, wait_until, options, blocking):
    """The run ends while hardly anything of it was read; then all of it can be, however the pipe takes it."""
    head = start(launcher, 8, "half")
    wait_until(lambda: len(list(launcher.latest.glob("device*/train.log"))) == 8, "all logs", PATIENCE_S)
    pipe, stdout = os.pipe()
    os.set_blocking(stdout, blocking)
    follower = launcher.start("logs", "--follow", *options, stdout=stdout)
    os.close(stdout)
    with os.fdopen(pipe, "rb", buffering=0) as reader:
        read = [reader.read(100)]
        (launcher.directory / "go").touch()
        assert head.wait(PATIENCE_S) == 0
        assert follower.poll() is None
        while block := reader.read(1 << 16):
            read.append(block)
            time.sleep(0.002)
    assert follower.wait(PATIENCE_S) == 0
    check_numbers(b"".join(read), 8)


# --- logs that are truncated under their writers ---

STEADY = """
import os, time
def write(number):
    os.write(1, b"line %07d %s\\n" % (number, b"x" * 80))
for number in range(20_000):
    write(number)
while not os.path.exists("stop"):
    write(number := number + 1)
    time.sleep(0.0002)
print("the end", flush=True)
"""


@pytest.mark.parametrize("options", [(), ("--merge",)], ids=["plain", "merged"])
def test_a_log_that_is_truncated_while_its_rank_writes(launcher, wait_until, options):
    """As logrotate does with `copytruncate`: console and follower go on, and report what is gone."""
    console, shown, said, console_said = (launcher.directory / name for name in ("console", "shown", "said", "stderr"))
    with console.open("wb") as out, console_said.open("wb") as errors:
        head = launcher.start("run", "--devices", 1, "--", sys.executable, "-c", STEADY, stdout=out, stderr=errors)
    wait_until((launcher.latest / "device0" / "train.log").exists, "the log", PATIENCE_S)
    with shown.open("wb") as out, said.open("wb") as errors:
        follower = launcher.start("logs", "--follow", *options, stdout=out, stderr=errors)
    for path in (console, shown):
        wait_until(lambda path=path: path.stat().st_size >= 20_000 * 94, "lines", PATIENCE_S)
    log = launcher.latest / "device0" / "train.log"
    shutil.copy(log, launcher.directory / "train.log.1")
    os.truncate(log, 0)
    for path in (said, console_said):
        wait_until(lambda path=path: b"truncated" in path.read_bytes(), "a report", PATIENCE_S)
    (launcher.directory / "stop").touch()
    assert head.wait(PATIENCE_S) == follower.wait(PATIENCE_S) == 0
    for path, report in ((console, console_said), (shown, said)):
        *lines, last = path.read_text().splitlines()
        # The follower may have read half of a line when the log was truncated: it ends there.
        whole = [line for line in lines if re.fullmatch(r"(?:\[0\] )?line \d{7} x{80}", line)]
        numbers = [int(line.split("line ")[1][:7]) for line in whole]
        gaps = [after - before for before, after in pairwise(numbers) if after != before + 1]
        assert len(lines) - len(whole) <= len(gaps) <= 1
        assert min(gaps, default=1) > 0
        assert last.removeprefix("[0] ") == "the end"
        lost_bytes = int(re.search(r"(\d+) bytes are gone", report.read_text())[1])
        assert 15_000 * 94 <= lost_bytes <= 94 * numbers[-1]
    assert b"\0" not in log.read_bytes()


# --- more files than a process may open ---


@pytest.fixture
def many(launcher):
    """A run of 1,024 ranks that goes on: this process is its agent."""
    run_dir = acted_run.make(launcher.runs / "many", [AgentStarted(identify(os.getpid()), None, MANY)], ranks=MANY)
    for rank in range(MANY):
        run_dir.train_log(rank).write_text(f"hello of {rank}\n")
    return run_dir


def limited(launcher, limit, *arguments):
    """The command's argv, under `ulimit` with these options."""
    return ["sh", "-c", f'ulimit {limit} && exec "$@"', "sh", *launcher.argv("logs", *arguments, "many")]


def run_limited(launcher, limit, *arguments):
    return subprocess.run(
        limited(launcher, limit, *arguments), cwd=launcher.directory, env=launcher.environment({}),
        capture_output=True, encoding="utf-8", timeout=PATIENCE_S, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("options", [(), ("--merge",)], ids=["plain", "merged"])
def test_1024_logs_are_shown_and_followed_within_the_usual_limit(launcher, many, options):
    """Of 1,024 open files, which is where most shells begin: the command raises its own."""
    hellos = {f"[{rank}] hello of {rank}" for rank in range(MANY)}
    done = run_limited(launcher, "-S -n 1024", *options)
    assert set(done.stdout.splitlines()) == hellos
    assert ("hold no time" in done.stderr) == (done.stderr != "") == bool(options)
    argv = limited(launcher, "-S -n 1024", "--follow", *options)
    with subprocess.Popen(
        argv, cwd=launcher.directory, env=launcher.environment({}), stdout=subprocess.PIPE
    ) as process:
        seen = {process.stdout.readline().decode().rstrip() for _ in range(MANY)}
        assert seen == hellos
        for rank in range(MANY):
            with many.train_log(rank).open("a") as file:
                file.write("and more\n")
        acted_run.append(many, AgentEnded(Cause.FINISHED, 0))
        assert len(process.stdout.read().splitlines()) == MANY


def test_too_few_files_are_refused_with_what_to_do(launcher, many):
    """A limit that may not be raised: nothing is shown by halves, and fewer ranks can be chosen."""
    done = run_limited(launcher, "-n 256")
    assert (done.returncode, done.stdout) == (2, "")
    assert "ulimit -Hn" in done.stderr
    assert "--rank" in done.stderr
    assert run_limited(launcher, "-n 256", "--rank", "0-9").stdout.count("hello") == 10
