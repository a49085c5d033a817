"""A disk that does not answer holds up no decision, and no file is lost by it."""

import base64
import select
import threading
from contextlib import closing
from types import SimpleNamespace

from launcher.cluster.file_writer import FileWriter
from launcher.control.messages import FileChunk
from launcher.core.run_dir import RunDir
from launcher.supervise.disk import Disk
from tests.conftest import PATIENCE_S

PEER = SimpleNamespace(pings=SimpleNamespace(clock=SimpleNamespace(ahead_ns=0)))


def piece(offset, text, rank=1):
    return FileChunk("train.log", rank, offset, offset + len(text), base64.b64encode(text).decode())


def answers(writer, wanted):
    """So many answers and troubles, in order."""
    found = []
    while len(found) < wanted:
        assert select.select([writer], [], [], PATIENCE_S)[0], found
        writer.take(found.append, lambda written: found.append((written.server_index, written.peer, written.ack.end)))
    return found


def test_files_are_written_in_order_once_the_disk_answers(spec):
    log = RunDir(spec.run_dir).train_log(1)
    log.parent.mkdir()
    disk, answers_again = Disk(spec.run_dir), threading.Event()
    with closing(FileWriter(spec, disk)) as writer, closing(disk):
        disk.do(answers_again.wait)
        writer.write(1, piece(0, b"one "), PEER)
        writer.write(1, piece(4, b"two"), PEER)
        assert not select.select([writer], [], [], 0.05)[0]
        answers_again.set()
        assert answers(writer, 2) == [(1, PEER, 4), (1, PEER, 7)]
    assert log.read_bytes() == b"one two"


def test_a_file_that_cannot_be_written_is_reported_and_asked_for_again(spec):
    disk = Disk(spec.run_dir)
    with closing(FileWriter(spec, disk)) as writer, closing(disk):
        writer.write(1, piece(0, b"one"), PEER)
        trouble, answer = answers(writer, 2)
    assert "No such file or directory" in trouble
    assert answer == (1, PEER, 0)


def test_a_rank_of_another_server_gets_no_answer(spec):
    disk = Disk(spec.run_dir)
    with closing(FileWriter(spec, disk)) as writer, closing(disk):
        writer.write(0, piece(0, b"one"), PEER)
        disk.wait()
        assert not select.select([writer], [], [], 0)[0]
