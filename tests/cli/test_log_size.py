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
    done = launcher.run("run", "--devices", 3, "--log-max-size", "64K", "--", *writes(20000))
    assert done.returncode == 0, done.stderr
    for rank in range(3):
        log = launcher.latest / f"device{rank}" / "train.log"
        assert log.stat().st_blocks * 512 <= MAX_BYTES + 8192
        freed = b"".join(gzip.decompress(part.read_bytes()) for part in parts_of(launcher, rank))
        assert len(freed) > 100 * 4096
        shown = launcher.run("logs", "--rank", rank).stdout
        assert shown.splitlines() == lines_of(rank, 20000)
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


@pytest.mark.parametrize("size", ["", "12", "1K", "-5M", "64 sheep", "1e9"])
def test_a_size_that_is_none_is_refused(launcher, size):
    """Before anything starts, with an example of what would do."""
    done = launcher.run("run", "--log-max-size", size, "--", "true")
    assert done.returncode == 2
    assert "64M" in done.stderr or "at least 64K" in done.stderr
    assert not launcher.runs.exists()
