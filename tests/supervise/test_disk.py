"""Work on a disk that may not answer for a while, in a thread of its own."""

import os
import signal
import threading
from contextlib import closing

import pytest

from launcher.core.events import Cause, RankStarted, from_line
from launcher.core.run_dir import RunDir
from launcher.supervise.disk import Disk
from launcher.supervise.event_log import EventLog, RunRecorder


@pytest.fixture(name="disk")
def _disk(tmp_path):
    with closing(Disk(tmp_path / "events.jsonl")) as disk:
        yield disk


@pytest.fixture(name="stall")
def _stall(disk):
    """A disk that answers nothing until this event is set."""
    answers = threading.Event()
    disk.do(answers.wait)
    yield answers
    answers.set()


def test_work_is_done_in_its_order(disk):
    done = []
    for number in range(100):
        disk.do(lambda number=number: done.append(number))
    disk.wait()
    assert done == list(range(100))


def test_chores_are_done_again_and_again_and_the_probed_file_is_touched(disk, tmp_path, wait_until):
    probed = tmp_path / "events.jsonl"
    probed.touch()
    os.utime(probed, (1, 1))
    turns = []
    disk.chores["one"] = lambda: turns.append(1)
    disk.do(lambda: None)
    wait_until(lambda: len(turns) > 1 and probed.stat().st_mtime > 1, "turns")


def test_silence_is_counted_while_the_disk_does_not_answer(disk, stall, wait_until):
    wait_until(lambda: disk.silent_s > 0.2, "a silence")
    assert disk.recent_silence_s() >= 0.2
    stall.set()
    disk.wait()
    assert disk.recent_silence_s() >= 0.2  # it was over before the caller looked
    assert max(disk.silent_s, disk.recent_silence_s()) < 0.2


def test_the_launcher_hears_events_while_the_disk_does_not_answer(disk, stall, tmp_path):
    """They are in the file once it answers, before the report counts those that are lost."""
    reader, writer = os.pipe()
    run_dir = RunDir(tmp_path)
    event_log = EventLog(run_dir.events, 0, writer, disk=disk)
    event_log.record(RankStarted(0, 7))
    assert from_line(os.read(reader, 4096)).event == RankStarted(0, 7)
    assert run_dir.events.read_bytes() == b""
    threading.Timer(0.1, stall.set).start()
    RunRecorder("a-run", 0, run_dir, event_log).write_report(Cause.FINISHED, 0, ())
    assert from_line(run_dir.events.read_bytes()).event == RankStarted(0, 7)
    assert run_dir.report.exists()
    os.close(reader)
    event_log.close()
    os.close(writer)


def test_the_thread_gets_no_signal(disk):
    """It comes to the loop, which may be asleep, and wakes it."""
    masks = []
    disk.do(lambda: masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
    disk.wait()
    assert {signal.SIGTERM, signal.SIGCHLD, signal.SIGINT} <= masks[0]
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
