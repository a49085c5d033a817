"""Which words and files of a server's agent are the run's; a disk that does not answer holds up nothing."""

import base64
import select
import threading
from contextlib import closing
from types import SimpleNamespace

import pytest

from launcher.cluster.recorder import FileWriter, passed_on
from launcher.control.messages import FileChunk, Ready
from launcher.core import events
from launcher.core.events import Cause, Hung, Leftovers, RankEnded, RankStarted, TimestampedEvent, Trouble, to_line
from launcher.core.machine.proc import ProcessId
from launcher.core.run_dir import RunDir
from launcher.core.verdict import Confidence, Verdict
from launcher.supervise.disk import Disk
from tests.conftest import PATIENCE_S
from tests.servers import server

PASSED_ON = (
    events.AgentStarted(ProcessId(1, 2, "h", "b"), None, 4), events.Preloading(1, ("m",)), events.Preloaded(0.5),
    RankStarted(3, 9), RankEnded(3, 9, -15), events.Slow(1, 2.0, 1.0, 5), Hung((1, 2), 30.0), Leftovers(2),
    events.Killing(1), events.Unkillable((5,)),
)  # fmt: skip
OWN = (
    events.AttemptStarted(0, 1), events.Judged(Verdict(None, Confidence.UNSURE, "x")), events.NotRestarting("x"),
    events.Stopping(Cause.FAILED, 1.0), events.Paused(), events.Continued(), events.Forwarded(10),
    events.AgentEnded(Cause.FAILED, 1),
)  # fmt: skip
H2 = server("h2", 1, 3)  # ranks 1 to 3


def heard(event, server_index=1):
    return list(passed_on(to_line(TimestampedEvent(1000, server_index, event)), 400, H2, 1))


@pytest.mark.parametrize("event", [*PASSED_ON, *OWN], ids=repr)
def test_what_happens_to_ranks_is_told_by_the_coordinator_s_clock_and_what_it_has_said_is_not_told_twice(event):
    assert heard(event) == ([TimestampedEvent(600, 1, event)] if event in PASSED_ON else [])


def test_trouble_names_its_server():
    assert heard(Trouble("disk full")) == [TimestampedEvent(600, 1, Trouble("server h2: disk full"))]


@pytest.mark.parametrize(
    "line",
    ["", "x", "[]", "null", "{}", '{"schema": 1}', '{"schema":2,"time_ns":1,"server_index":0,"event":"New"}',
     # nested too deeply to be decoded
     '{"schema":2,"time_ns":1,"server_index":0,"event":"Trouble","message":' + "[" * 100_000],
    ids=lambda line: line[:20],
)  # fmt: skip
def test_what_is_no_event_of_this_version_is_passed_over(line):
    assert list(passed_on(line, 0, H2, 1)) == []


def test_a_server_speaks_of_itself_and_its_own_ranks_only():
    assert heard(Leftovers(2), server_index=-1) == [TimestampedEvent(600, 1, Leftovers(2))]
    assert heard(RankEnded(0, 9, 0)) == heard(RankStarted(4, 9)) == heard(Hung((0, 1), 30.0)) == []


@pytest.fixture(name="peer")
def _peer():
    sent, pings = [], SimpleNamespace(clock=SimpleNamespace(ahead_ns=0))
    return SimpleNamespace(pings=pings, ready=Ready(shares_files=False), sent=sent, send=sent.append)


@pytest.fixture(name="writer")
def _writer(spec):
    disk = Disk(spec.run_dir)
    with closing(FileWriter(spec, disk)) as writer, closing(disk):
        yield writer


@pytest.fixture(name="log")
def _log(spec):
    log = RunDir(spec.run_dir).train_log(1)
    log.parent.mkdir()
    return log


def piece(offset, text):
    return FileChunk("train.log", 1, offset, offset + len(text), base64.b64encode(text).decode())


def reported(writer, peer, wanted):
    found = []
    while len(peer.sent) < wanted:
        assert select.select([writer], [], [], PATIENCE_S)[0], found
        found += writer.answer()
    return found


def test_files_are_written_in_order_once_the_disk_answers(writer, peer, log):
    answers_again = threading.Event()
    writer._disk.do(answers_again.wait)
    writer.write(1, piece(0, b"one "), peer)
    writer.write(1, piece(4, b"two"), peer)
    assert not select.select([writer], [], [], 0.05)[0]
    answers_again.set()
    assert reported(writer, peer, 2) == []
    assert [ack.end for ack in peer.sent] == [4, 7]
    assert log.read_bytes() == b"one two"


def test_a_file_that_cannot_be_written_is_reported_and_asked_for_again(writer, peer):
    writer.write(1, piece(0, b"one"), peer)
    [trouble] = reported(writer, peer, 1)
    assert "No such file or directory" in trouble
    assert [(ack.end, ack.trouble) for ack in peer.sent] == [(0, True)]


def test_an_agent_that_shares_the_run_directory_after_all_is_reported_once(spec, writer, peer, log):
    log.write_bytes(b"what its rank writes")
    writer.write(1, piece(0, b"one"), peer)
    writer.write(1, piece(0, b"one"), peer)
    [news] = reported(writer, peer, 2)
    assert f"shares the run directory {spec.run_dir}" in news
    assert peer.ready.shares_files


def test_a_rank_of_another_server_gets_no_answer(writer, peer):
    writer.write(0, piece(0, b"one"), peer)
    writer._disk.wait()
    assert not select.select([writer], [], [], 0)[0]
