"""What is ended where launcher and agent were killed at one moment."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.core.events import AttemptStarted, RankEnded, RankStarted, TimestampedEvent, to_line
from launcher.core.run_dir import RunDir
from launcher.supervise.watcher import Watcher, end_what_is_left

SLEEPS = [sys.executable, "-c", "import time; time.sleep(1000)"]


@pytest.fixture
def run_dir(tmp_path):
    return RunDir(tmp_path)


@pytest.fixture
def process():
    started = []

    def start(argv=SLEEPS, *, new_session=True, **variables):
        started.append(subprocess.Popen(argv, env=variables, start_new_session=new_session))
        while variables and not Path(f"/proc/{started[-1].pid}/environ").read_bytes():  # empty for a moment during exec
            time.sleep(0.01)
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.wait()


def happened(run_dir, *events):
    run_dir.events.write_text("".join(to_line(TimestampedEvent(1, 0, event)) for event in events))


def test_processes_of_the_run_are_killed_and_no_others(run_dir, process, tmp_path):
    mine = process(TLAUNCH_RUN_DIR=str(tmp_path))
    rank, ended = process(), process()
    others = [process(TLAUNCH_RUN_DIR=f"{tmp_path}2"), process(NOTE=f"TLAUNCH_RUN_DIR={tmp_path}"), ended]
    happened(run_dir, RankStarted(0, ended.pid), RankEnded(0, ended.pid, 0), RankStarted(1, rank.pid))
    end_what_is_left(run_dir)
    assert [one.wait() for one in (mine, rank)] == [-9, -9]
    assert [one.poll() for one in others] == [None] * 3


def test_of_several_servers_only_ranks_of_its_own_are_looked_for(tmp_path, process):
    """Those of the last attempt: before it, a rank of an elastic run may have been on another server."""
    run_dir = RunDir(tmp_path, 1)
    run_dir.events.parent.mkdir()
    variables = [
        {"TLAUNCH_RUN_DIR": str(tmp_path), "TLAUNCH_HEARTBEAT_FILE": str(run_dir.heartbeat(rank))} for rank in range(3)
    ]
    other, former, mine = (process(**each) for each in variables)
    started = [AttemptStarted(0, 1), RankStarted(1, 1 << 30), RankEnded(1, 1 << 30, 1), AttemptStarted(1, 1)]
    happened(run_dir, *started, RankStarted(2, 1 << 30))
    end_what_is_left(run_dir)
    assert (mine.wait(), other.poll(), former.poll()) == (-9, None, None)


@pytest.mark.parametrize("rubbish", [b"", b"\xff\x00{}\n[]\nnull\n" * 10, b'{"schema": 2}\n' + b"[" * 100_000])
def test_without_a_record_the_variable_is_enough(run_dir, process, tmp_path, rubbish):
    run_dir.events.write_bytes(rubbish)
    mine = process(TLAUNCH_RUN_DIR=str(tmp_path))
    end_what_is_left(run_dir)
    assert mine.wait() == -9


def test_a_file_that_was_being_written_is_removed(run_dir, tmp_path):
    (tmp_path / ".report.json.01234567.partial").write_text("{")
    (tmp_path / "report.json").write_text("{}")
    happened(run_dir)
    end_what_is_left(run_dir)
    assert {path.name for path in tmp_path.iterdir()} == {run_dir.events.name, "report.json"}


def test_what_is_dismissed_ends_nothing(run_dir, process, tmp_path):
    mine = process(TLAUNCH_RUN_DIR=str(tmp_path))
    Watcher(run_dir).dismiss()
    time.sleep(0.1)
    assert mine.poll() is None


def test_it_acts_once_the_last_end_of_the_pipe_is_closed(run_dir, process, tmp_path):
    mine = process(TLAUNCH_RUN_DIR=str(tmp_path))
    code = (
        "import os, sys, signal\nfrom pathlib import Path\nfrom launcher.core.run_dir import RunDir\n"
        "from launcher.supervise.watcher import Watcher\nWatcher(RunDir(Path(sys.argv[1])))\n"
        "if os.fork() == 0: os.setsid()\nelse: os._exit(0)\nprint(os.getpid(), flush=True)\nos.kill(os.getpid(), 9)"
    )
    # Its output ends although the watcher lives on.
    done = subprocess.run([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, check=True)
    assert int(done.stdout) > 0
    assert mine.wait(60) == -9
