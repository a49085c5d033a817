"""--log-max-size, through the real command: logs stay small, nothing of them is lost, and nobody waits."""

import gzip
import json
import os
import signal
import sys
from contextlib import suppress

import psutil
import pytest

from launcher.core.proc import stat
from launcher.logs.index import index_path, parse, part_path

MAX_BYTES = 64 << 10


def writes(lines, then=""):
    """A program whose ranks number their lines."""
    text = f"for n in range({lines}): print(f'line {{n:06}} of ' + os.environ['RANK'] + ' ' + 'x' * 50)"
    return [sys.executable, "-c", f"import os, sys, time\n{text}\nsys.stdout.flush()\n{then}"]


def lines_of(rank, count):
    return [f"line {number:06} of {rank} {'x' * 50}" for number in range(count)]


def keeper_of(head):
    """The process that rotates: below the agent, in a session of its own, and no rank."""
    for process in psutil.Process(head.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.nice() == 5:
                return process
    return None


def lives(process):
    found = stat(process.pid)
    return found is not None and found.living


def parts_of(launcher, rank):
    return sorted((launcher.latest / f"device{rank}").glob("train.log.*.gz"))


def test_logs_are_small_at_the_end_and_whole(launcher):
    """The live file holds the end, the parts are plain gzip, and together they are what ranks wrote."""
    done = launcher.run("run", "--devices", 3, "--log-max-size", "64K", "--", *writes(8000))
    assert done.returncode == 0, done.stderr
    for rank in range(3):
        log = launcher.latest / f"device{rank}" / "train.log"
        assert log.stat().st_blocks * 512 <= MAX_BYTES + 8192
        freed = b"".join(gzip.decompress(part.read_bytes()) for part in parts_of(launcher, rank))
        assert len(freed) > 100 * 4096
        shown = launcher.run("logs", "--rank", rank).stdout
        assert shown.splitlines() == lines_of(rank, 8000)
        assert shown.encode().startswith(freed)
    assert not list(launcher.latest.rglob("*.partial"))


def test_attempts_are_found_in_a_log_that_was_rotated(launcher):
    """Each line belongs to the attempt that wrote it; the verdict reads what the last attempt wrote, and nothing older."""
    program = writes(3000, "if os.environ['RANK'] == '1': time.sleep(0.5); print('no more', int(os.environ['TLAUNCH_ATTEMPT'])); sys.exit(7)\ntime.sleep(60)")  # fmt: skip
    done = launcher.run("run", "--devices", 2, "--log-max-size", "64K", "--max-restarts", 2, "--", *program)
    assert done.returncode == 7, done.stderr
    told = [json.loads(line) for line in launcher.run("logs", "--rank", "1", "--json").stdout.splitlines()]
    last_attempt = max(line["attempt"] for line in told)
    assert last_attempt >= 1
    for attempt in range(last_attempt + 1):
        own = [line["text"] for line in told if line["attempt"] == attempt and line["text"].startswith("line")]
        assert own == lines_of(1, 3000)
    assert parts_of(launcher, 1)
    assert f"no more {last_attempt}" in launcher.run("why").stdout


def test_a_rank_that_writes_for_ever_is_kept_small_and_followed(launcher, wait_until):
    """While it goes on: the live file stays near its limit, and `logs -f` shows every line of it once, until the end."""
    head = launcher.start("run", "--devices", 1, "--log-max-size", "64K", "--", *writes(400_000, "print('done')"))
    wait_until(lambda: len(parts_of(launcher, 0)) >= 2, "two parts")
    followed = launcher.run("logs", "--follow").stdout.splitlines()
    assert head.wait(60) == 0
    assert followed == [*lines_of(0, 400_000), "done"]


def test_a_keeper_that_is_killed_costs_nothing_but_rotation(launcher, wait_until):
    """The run goes on, and says that logs grow from now on."""
    program = writes(5000, f"open('go', 'w').close()\nwhile not os.path.exists('on'): time.sleep(0.01)\nprint('z' * {3 * MAX_BYTES})")  # fmt: skip
    head = launcher.start("run", "--devices", 1, "--log-max-size", "64K", "--", *program)
    wait_until(lambda: (launcher.directory / "go").exists() and keeper_of(head), "the keeper of logs")
    keeper_of(head).kill()
    wait_until(lambda: "logs grow without limit" in (launcher.latest / "events.jsonl").read_text(), "a word about it")
    (launcher.directory / "on").touch()
    assert head.wait(60) == 0
    assert (launcher.latest / "device0" / "train.log").stat().st_size > 3 * MAX_BYTES
    assert launcher.run("logs").stdout.splitlines()[:5000] == lines_of(0, 5000)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_keeper_ends_with_the_run(launcher, wait_until, number):
    """Asked to end, or left behind by a launcher and an agent that were killed: no process and no unfinished file."""
    head = launcher.start("run", "--devices", 2, "--grace", 1, "--log-max-size", "64K", "--", *writes(10**9))
    wait_until(lambda: parts_of(launcher, 0) and keeper_of(head), "a part")
    agent = psutil.Process(head.pid).children()[0]
    keeper = keeper_of(head)
    os.kill(head.pid, number)
    head.wait(60)
    wait_until(lambda: not any(map(lives, (agent, keeper))), "the end of agent and keeper")
    assert not list(launcher.latest.rglob("*.partial"))
    assert not launcher.processes()
    for rank in range(2):
        log = launcher.latest / f"device{rank}" / "train.log"
        if index_path(log).exists():
            index = parse(index_path(log).read_bytes())
            assert [part_path(log, start) for start in index.parts] == parts_of(launcher, rank)


def test_what_ranks_write_while_they_are_ended_is_compressed_too(launcher, wait_until):
    """The keeper of logs is spared until no rank is left."""
    says_more = [
        "def end(*_):",
        "    os.write(1, (b'y' * 99 + b'\\n') * 5000)",
        "    while not os.path.exists('seen'): time.sleep(0.01)",
        "    sys.exit(0)",
        "signal.signal(signal.SIGTERM, end)",
        "print('ready', flush=True)",
        "time.sleep(600)",
    ]
    program = [sys.executable, "-c", "\n".join(["import os, signal, sys, time", *says_more])]
    head = launcher.start("run", "--devices", 2, "--grace", 60, "--log-max-size", "64K", "--", *program)
    launcher.wait_ready(2)
    os.kill(head.pid, signal.SIGINT)
    wait_until(lambda: parts_of(launcher, 0) and parts_of(launcher, 1), "parts of what came after SIGTERM")
    (launcher.directory / "seen").touch()
    assert head.wait(60) == 130


def test_a_keeper_that_dies_between_two_attempts_costs_no_run(launcher, wait_until, suspend):
    """Whatever descriptor takes the number of its pipe."""
    text = """
import os, signal, sys, time
rank, attempt = int(os.environ["RANK"]), int(os.environ["TLAUNCH_ATTEMPT"])
if rank == 1:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
if attempt == 1:
    sys.exit(0)
while rank == 1 or not os.path.exists("fail"):
    time.sleep(0.01)
sys.exit(3)
"""
    options = ["--devices", 2, "--max-restarts", 1, "--no-preload", "--master-port", 29774, "--log-max-size", "64K"]
    head = launcher.start("run", *options, "--", sys.executable, "-c", text)
    directory = launcher.wait_ready(2)
    agent = psutil.Process(head.pid).children()[0]
    (launcher.directory / "fail").touch()
    wait_until(lambda: "Stopping" in (directory / "events.jsonl").read_text(), "the end of the first attempt")
    keeper = keeper_of(head)
    ranks = [child for child in agent.children() if child.pid != keeper.pid]
    suspend(agent.pid)
    for process in (keeper, *ranks):
        process.kill()
    wait_until(lambda: not lives(keeper) and not any(map(lives, ranks)), "their ends")
    agent.resume()
    assert head.wait(60) == 0
    assert "logs grow without limit" in (directory / "events.jsonl").read_text()


@pytest.mark.parametrize("size", ["9" * 400, "", "12", "1K", "-5M", "64 sheep", "1e9"])
def test_a_size_that_is_none_is_refused(launcher, size):
    """Before anything starts, with an example of what would do."""
    done = launcher.run("run", "--log-max-size", size, "--", "true")
    assert done.returncode == 2
    assert any(words in done.stderr for words in ("64M", "at least 64K", "more than any file holds"))
    assert not launcher.runs.exists()
