"""Logs at their limits: many ranks that write as fast as they can, slow readers, more files than a process may open.

TLAUNCH_STRESS=1 has 64 ranks write 50,000 lines each, as many as are promised to survive.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from launcher.cli.text.log_stream import PIPE_BYTES
from launcher.core.events import AgentEnded, AgentStarted, Cause
from launcher.core.machine.proc import identify
from tests.programs import acted_run

PROGRAMS = Path(__file__).parents[1] / "programs"
FULL = os.environ.get("TLAUNCH_STRESS") == "1"
LINES = 50_000 if FULL else 1_000
RANKS = 64 if FULL else 16
PATIENCE_S = 600 if FULL else 100  # how long to wait for what must happen; never how long it may take
NUMBERED = re.compile(rb"\[(\d+)\] (?:[-0-9]{10} [:0-9]{8} )?line (\d+) of rank (\d+), attempt (\d+): (x*)")
MANY = 1024
MODES = [(), ("--merge",)]

pytestmark = pytest.mark.timeout(3 * PATIENCE_S)


def start(launcher, wait_until, ranks, *waits, options=(), lines=LINES):
    """A run of ranks that number their lines, once all have a log."""
    program = [sys.executable, PROGRAMS / "numbered.py", lines, launcher.directory, *waits]
    head = launcher.start("run", "--devices", ranks, *options, "--", *program)
    wait_until(lambda: len(list(launcher.latest.glob("device*/train.log"))) == ranks, "all logs", PATIENCE_S)
    return head


def show(launcher, *options):
    done = launcher.call("logs", *options, encoding=None)
    assert done.returncode == 0, done.stderr
    return done.stdout


def follow(launcher, name, *options):
    """Start to follow into a file; the process and the file."""
    path = launcher.directory / name
    with path.open("wb") as file:
        return launcher.start("logs", "--follow", *options, stdout=file), path


def stored(launcher, ranks):
    logs = [(launcher.latest / f"device{rank}" / "train.log").read_bytes() for rank in range(ranks)]
    return b"".join(b"[%d] %s" % (rank, line) for rank, log in enumerate(logs) for line in log.splitlines(True))


def by_rank(text):
    lines = {}
    for line in text.splitlines(keepends=True):
        lines.setdefault(int(line[1 : line.index(b"]")]), []).append(line)
    return b"".join(b"".join(lines[rank]) for rank in sorted(lines))


def check_numbers(text, ranks, attempts=1, lines=LINES):
    """Every rank's every line stands there, once, whole, in the order in which it was written."""
    seen = dict.fromkeys(range(ranks), 0)
    for line in text.splitlines():
        if match := NUMBERED.fullmatch(line):
            shown_rank, number, rank, attempt = map(int, match.groups()[:4])
            assert (shown_rank, attempt, number) == (rank, *divmod(seen[rank], lines)), line
            assert len(match[5]) == number % 50, line
            seen[rank] += 1
        else:
            assert re.fullmatch(rb"\[\d+\] --- attempt [12] ---", line), line
    assert set(seen.values()) == {attempts * lines}


def test_every_line_of_many_ranks_is_followed_once_and_in_order(launcher, wait_until):
    head = start(launcher, wait_until, RANKS, "half")
    followers = [follow(launcher, "merged", "--merge"), follow(launcher, "plain")]
    for _, path in followers:
        wait_until(lambda path=path: path.stat().st_size, "followed lines", PATIENCE_S)
    (launcher.directory / "go").touch()
    assert head.wait(PATIENCE_S) == 0
    plain = show(launcher)
    check_numbers(plain, RANKS)
    for process, path in followers:
        assert process.wait(PATIENCE_S) == 0
        assert by_rank(path.read_bytes()) == plain
    assert by_rank(show(launcher, "--merge")) == plain
    assert stored(launcher, RANKS) == plain


def test_attempts_of_many_ranks_are_followed(launcher, wait_until):
    head = start(launcher, wait_until, 4, "restarts", options=("--max-restarts", 2, "--grace", 1))
    merged, merged_path = follow(launcher, "merged", "--merge")
    as_json, json_path = follow(launcher, "as_json", "--json")
    assert head.wait(PATIENCE_S) == 0
    assert merged.wait(PATIENCE_S) == as_json.wait(PATIENCE_S) == 0
    plain = show(launcher)
    check_numbers(plain, 4, attempts=3)
    assert by_rank(merged_path.read_bytes()) == plain
    assert stored(launcher, 4) == plain
    for line in map(json.loads, json_path.read_bytes().splitlines()):
        own = re.search(r"attempt (\d)", line["text"])[1]
        assert line["text"].startswith("---") or line["attempt"] == int(own), line


def test_a_slow_reader_of_the_follower_holds_nothing_up(launcher, wait_until):
    """The run ends while hardly anything of it was read; then all of it can be, however the pipe takes it."""
    lines = max(LINES, 2 * PIPE_BYTES // (4 * 64))  # of 64 bytes, one with another: more than the pipe takes
    head = start(launcher, wait_until, 4, "half", lines=lines)
    with ExitStack() as stack:
        followers = []
        for options, blocking in zip(MODES, (True, False), strict=True):
            pipe, stdout = os.pipe()
            os.set_blocking(stdout, blocking)
            follower = launcher.start("logs", "--follow", *options, stdout=stdout)
            os.close(stdout)
            followers.append((follower, stack.enter_context(os.fdopen(pipe, "rb", buffering=0))))
        beginnings = [reader.read(100) for _, reader in followers]
        (launcher.directory / "go").touch()
        assert head.wait(PATIENCE_S) == 0
        assert [follower.poll() for follower, _ in followers] == [None] * 2
        for (follower, reader), beginning in zip(followers, beginnings, strict=True):
            read = [beginning]
            while block := reader.read(1 << 16):
                read.append(block)
                time.sleep(0.002)
            assert follower.wait(PATIENCE_S) == 0
            check_numbers(b"".join(read), 4, lines=lines)


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


def test_a_log_that_is_truncated_while_its_rank_writes(launcher, wait_until):
    """As logrotate does with `copytruncate`: console and followers go on, and report what is gone."""
    program = ("--", sys.executable, "-c", STEADY)
    commands = [("run", "--devices", 1, *program), *(("logs", "--follow", *options) for options in MODES)]
    log = launcher.latest / "device0" / "train.log"
    shown = [(launcher.directory / f"stdout{number}", launcher.directory / f"stderr{number}") for number in range(3)]
    processes = []
    for command, (stdout, stderr) in zip(commands, shown, strict=True):
        with stdout.open("wb") as out, stderr.open("wb") as errors:
            processes.append(launcher.start(*command, stdout=out, stderr=errors))
        wait_until(log.exists, "the log", PATIENCE_S)
    for path, _ in shown:
        wait_until(lambda path=path: path.stat().st_size >= 20_000 * 94, "lines", PATIENCE_S)
    shutil.copy(log, launcher.directory / "train.log.1")
    os.truncate(log, 0)
    for _, path in shown:
        wait_until(lambda path=path: b"truncated" in path.read_bytes(), "a report", PATIENCE_S)
    (launcher.directory / "stop").touch()
    assert [process.wait(PATIENCE_S) for process in processes] == [0, 0, 0]
    for path, report in shown:
        *lines, last = path.read_text().splitlines()
        # The follower may have read half of a line when the log was truncated: it ends there.
        whole = [line for line in lines if re.fullmatch(r"(?:\[0\] )?line \d{7} x{80}", line)]
        numbers = [int(line.split("line ")[1][:7]) for line in whole]
        gaps = [after - before for before, after in pairwise(numbers) if after != before + 1]
        assert len(lines) - len(whole) <= len(gaps) <= 1
        assert min(gaps, default=1) > 0
        assert last.removeprefix("[0] ") == "the end"
        lost_bytes = int(re.search(r"(\d+) bytes are lost", report.read_text())[1])
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


def test_1024_logs_are_shown_and_followed_within_the_usual_limit(launcher, many):
    """Of 1,024 open files, which is where most shells begin: the command raises its own."""
    hellos = {f"[{rank}] hello of {rank}" for rank in range(MANY)}
    done = launcher.ended(limited(launcher, "-S -n 1024"))
    assert (set(done.stdout.splitlines()), done.stderr) == (hellos, "")
    argv = limited(launcher, "-S -n 1024", "--follow", "--merge")
    process = launcher.begin(argv, stdout=subprocess.PIPE)
    assert {process.stdout.readline().decode().rstrip() for _ in range(MANY)} == hellos
    for rank in range(MANY):
        with many.train_log(rank).open("a") as file:
            file.write("and more\n")
    acted_run.append(many, AgentEnded(Cause.FINISHED, 0))
    assert len(process.stdout.read().splitlines()) == MANY


def test_too_few_files_are_refused_with_what_to_do(launcher, many):
    done = launcher.ended(limited(launcher, "-n 256"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "ulimit -Hn" in done.stderr
    assert "--rank" in done.stderr
    assert launcher.ended(limited(launcher, "-n 256", "--rank", "0-9")).stdout.count("hello") == 10
