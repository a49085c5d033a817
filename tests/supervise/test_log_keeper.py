"""The process that keeps logs small: what it is, what it hears, and what it tells."""

import json
import os
import select
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from launcher.core.events import Trouble, from_line
from launcher.logs.index import index_path
from launcher.logs.stored import StoredLog
from launcher.supervise.event_log import EventLog
from launcher.supervise.log_keeper import LogKeeper

MAX_BYTES = 64 << 10
PATIENCE_S = 60
TEXT = b"".join(b"%07d\n" % number for number in range(100_000))


@pytest.fixture
def log(tmp_path):
    return tmp_path / "train.log"


@pytest.fixture
def keeper(tmp_path, log, monkeypatch):
    """Started; with what it has told. However slow it is, it may finish."""
    monkeypatch.setattr("launcher.supervise.log_keeper.PATIENCE_S", PATIENCE_S)
    event_log = EventLog(tmp_path / "events.jsonl", 0)
    made = LogKeeper({0: log}, MAX_BYTES, event_log)
    made.start()
    yield made
    made.close(finish=False)
    event_log.close()


def told(tmp_path):
    events = [from_line(line).event for line in (tmp_path / "events.jsonl").read_bytes().splitlines()]
    assert all(isinstance(event, Trouble) for event in events)
    return [event.message for event in events]


def parts(log):
    return sorted(log.parent.glob("train.log.*.gz"))


def content(log):
    stored = StoredLog(log)
    try:
        return b"".join(chunk for _, chunk in stored.chunks(0))
    finally:
        stored.close()


def opened_by(pid):
    """What its descriptors are, by number; it may be at work, and close some."""
    found = {}
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found[int(path.name)] = os.readlink(path)  # noqa: PTH115
    return {number: target for number, target in found.items() if number > 2}


def test_it_is_a_process_apart(keeper, log, wait_until):
    """In a session of its own, with no descriptor of the agent's but its two pipes; ranks come before it."""
    (pid,) = keeper.processes
    log.write_bytes(TEXT)
    wait_until(lambda: parts(log), "a part")  # it has become what it is
    assert os.getsid(pid) == pid
    assert psutil.Process(pid).nice() == os.nice(0) + 5
    own = opened_by(pid)
    assert "events.jsonl" not in str(own)
    assert all(target.startswith("pipe:") or str(log.parent) in target for target in own.values()), own
    assert len([target for target in own.values() if target.startswith("pipe")]) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGUSR1])
def test_signals_for_the_run_are_not_for_it(keeper, log, tmp_path, number, wait_until):
    """It goes on as long as ranks write."""
    (pid,) = keeper.processes
    wait_until(lambda: os.getsid(pid) == pid, "a session of its own")
    log.write_bytes(TEXT)
    wait_until(lambda: parts(log), "a part")
    os.kill(pid, number)
    before = len(parts(log))
    with log.open("ab") as file:
        file.write(TEXT)
    wait_until(lambda: len(parts(log)) > before, "another part")
    assert told(tmp_path) == []


@pytest.mark.parametrize("stopped", [False, True])
def test_finishing_makes_logs_small(keeper, log, suspend, tmp_path, stopped):
    """What was written in the last moment too, even if somebody had stopped it."""
    if stopped:
        suspend(keeper.processes[0])
    log.write_bytes(TEXT)
    keeper.close(finish=True)
    assert keeper.processes == ()
    assert log.stat().st_blocks * 512 <= MAX_BYTES
    assert content(log) == TEXT
    assert told(tmp_path) == []


def test_warnings_are_told(keeper, log, tmp_path):
    """Those of the end too."""
    index_path(log).write_text("{")
    log.write_bytes(TEXT)
    keeper.close(finish=True)
    (warning,) = told(tmp_path)
    assert "logs stay as large as they are" in warning
    assert log.read_bytes() == TEXT


def test_its_own_end_is_told(keeper, tmp_path):
    """By the signal that ended it; nothing waits for it any more."""
    (pid,) = keeper.processes
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    keeper.take()
    keeper.note_ends({pid: os.waitstatus_to_exitcode(status)})
    assert (keeper.processes, keeper.fileno()) == ((), -1)
    assert told(tmp_path) == ["logs grow without limit from now on: their keeper ended (signal 9)"]


def test_it_ends_with_its_agent(tmp_path, log):
    """An agent that is killed closes its pipe by that."""
    reader, writer = os.pipe()
    agent = os.fork()
    if agent == 0:
        made = LogKeeper({0: log}, MAX_BYTES, EventLog(tmp_path / "events.jsonl", 0))
        made.start()
        os.write(writer, json.dumps(list(made.processes)).encode())
        signal.pause()
    (pid,) = json.loads(os.read(reader, 100))
    os.close(reader)
    os.close(writer)
    watched = os.pidfd_open(pid)
    os.kill(agent, signal.SIGKILL)
    os.waitpid(agent, 0)
    ended, _, _ = select.select([watched], [], [], PATIENCE_S)
    os.close(watched)
    assert ended, "still alive"


def test_nothing_is_started_where_nothing_is_to_be_kept_small(tmp_path, log):
    """Then it is no process at all."""
    event_log = EventLog(tmp_path / "events.jsonl", 0)
    keeper = LogKeeper({0: log}, None, event_log)
    keeper.start()
    assert (keeper.processes, keeper.fileno()) == ((), -1)
    keeper.close(finish=True)
    event_log.close()
