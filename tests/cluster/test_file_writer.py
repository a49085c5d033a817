"""A disk that does not answer holds up no decision, and no file is lost by it."""

import base64
import select
import threading
from contextlib import closing
from types import SimpleNamespace

import pytest

from launcher.cluster.file_writer import FileWriter
from launcher.control.messages import FileChunk, Ready
from launcher.core.run_dir import RunDir
from launcher.supervise.disk import Disk
from tests.conftest import PATIENCE_S


@pytest.fixture(name="peer")
def _peer():
    clock = SimpleNamespace(ahead_ns=0)
    sent = []
    return SimpleNamespace(
        pings=SimpleNamespace(clock=clock), ready=Ready(shares_files=False), sent=sent, send=sent.append
    )


def piece(offset, text, rank=1):
    return FileChunk("train.log", rank, offset, offset + len(text), base64.b64encode(text).decode())


def reported(writer, peer, wanted):
    found = []
    while len(peer.sent) < wanted:
        assert select.select([writer], [], [], PATIENCE_S)[0], found
        found += writer.answer()
    return found


def test_files_are_written_in_order_once_the_disk_answers(spec, peer):
    log = RunDir(spec.run_dir).train_log(1)
    log.parent.mkdir()
    disk, answers_again = Disk(spec.run_dir), threading.Event()
    with closing(FileWriter(spec, disk)) as writer, closing(disk):
        disk.do(answers_again.wait)
        writer.write(1, piece(0, b"one "), peer)
        writer.write(1, piece(4, b"two"), peer)
        assert not select.select([writer], [], [], 0.05)[0]
        answers_again.set()
        assert reported(writer, peer, 2) == []
    assert [ack.end for ack in peer.sent] == [4, 7]
    assert log.read_bytes() == b"one two"


def test_a_file_that_cannot_be_written_is_reported_and_asked_for_again(spec, peer):
    disk = Disk(spec.run_dir)
    with closing(FileWriter(spec, disk)) as writer, closing(disk):
        writer.write(1, piece(0, b"one"), peer)
        [trouble] = reported(writer, peer, 1)
    assert "No such file or directory" in trouble
    assert [(ack.end, ack.trouble) for ack in peer.sent] == [(0, True)]


def test_an_agent_that_shares_the_run_directory_after_all_is_reported_once(spec, peer):
    log = RunDir(spec.run_dir).train_log(1)
    log.parent.mkdir()
    log.write_bytes(b"what its rank writes")
    disk = Disk(spec.run_dir)
    with closing(FileWriter(spec, disk)) as writer, closing(disk):
        writer.write(1, piece(0, b"one"), peer)
        writer.write(1, piece(0, b"one"), peer)
        [news] = reported(writer, peer, 2)
    assert f"shares the run directory {spec.run_dir}" in news
    assert peer.ready.shares_files


def test_a_rank_of_another_server_gets_no_answer(spec, peer):
    disk = Disk(spec.run_dir)
    with closing(FileWriter(spec, disk)) as writer, closing(disk):
        writer.write(0, piece(0, b"one"), peer)
        disk.wait()
        assert not select.select([writer], [], [], 0)[0]
