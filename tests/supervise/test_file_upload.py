"""What ranks write on one disk, and what of it is on the other, over a real connection."""

import os
import selectors
import signal
import socket
import threading
from contextlib import closing
from types import SimpleNamespace

import pytest

from launcher.cluster.recorder import FileReceiver
from launcher.core.channel import Channel
from launcher.core.messages import ChunkAck, FileChunk, FileSnapshot, ForwardSignal
from launcher.core.run_dir import RunDir
from launcher.supervise.file_upload import PIECE_BYTES, WINDOW_BYTES, FileUpload
from launcher.supervise.link import Link

SERVER = 1
RANKS = [SimpleNamespace(global_rank=rank, server_index=rank // 2) for rank in range(4)]
OURS = [2, 3]
FOR_EVER_S = 1e6


class Both:
    """An agent's side and a coordinator's, with a run directory each."""

    def __init__(self, directory):
        self.there, self.here = (RunDir(directory / name) for name in ("there", "here"))
        for run_dir in (self.there, self.here):
            for rank in range(4):
                run_dir.device(rank).mkdir(parents=True)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.connection = socket.create_connection(listener.getsockname())
            self.channel = Channel(listener.accept()[0])
        self.link = Link(Channel(self.connection), 60.0, shares_files=False)
        self.mirror = FileUpload(self.there, OURS, self.link)
        self.troubles = []
        self.mirrored = FileReceiver(self.here, RANKS, self.troubles.append)
        self.heard = []

    def follow(self):
        """Another agent comes in the place of the one before."""
        self.mirror.close()
        self.mirror = FileUpload(self.there, OURS, self.link, follows_another=True)

    def write(self, path, data):
        with path.open("ab") as file:
            file.write(data)

    def answer(self):
        """All that has come to the coordinator."""
        for message in self.channel.receive():
            self.heard.append(message)
            self.channel.send(self.mirrored.take(SERVER, message, 0))

    def go_on(self):
        self.mirror.step()
        self.answer()
        for message in self.link.take():
            self.mirror.take(message)

    def log_is(self, rank, data):
        self.go_on()
        path = self.here.train_log(rank)
        return path.exists() and path.read_bytes() == data

    def finish(self, interrupted=lambda: False):
        """As an agent does, with a coordinator that goes on answering."""
        ended = threading.Event()

        def answer():
            with selectors.DefaultSelector() as selector:
                selector.register(self.channel, selectors.EVENT_READ)
                while not ended.is_set():
                    if selector.select(0.01):
                        self.answer()

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            return self.mirror.finish(interrupted)
        finally:
            ended.set()
            thread.join()

    def close(self):
        self.mirror.close()
        self.link.close()
        self.channel.close()


@pytest.fixture(name="both")
def _both(tmp_path):
    with closing(Both(tmp_path)) as both:
        yield both


def test_a_log_is_alike_on_both_sides_while_it_grows(both, wait_until):
    """Also what does not end with a line, and what is much longer than one piece."""
    both.write(both.there.train_log(2), b"begun")
    wait_until(lambda: both.log_is(2, b"begun"), "the first words")
    data = b"begun" + os.urandom(3 * PIECE_BYTES)
    both.write(both.there.train_log(2), data[5:])
    wait_until(lambda: both.log_is(2, data), "all of it")
    assert not both.here.train_log(3).exists()


def test_little_is_under_way_at_once(both, wait_until):
    """So an answer or a verdict waits for a quarter of a MiB at most, however much ranks write."""
    ranks = range(2, 2 + 2 * WINDOW_BYTES // PIECE_BYTES)
    for rank in ranks:
        both.there.device(rank).mkdir(exist_ok=True)
        both.write(both.there.train_log(rank), bytes(8 * WINDOW_BYTES))
    both.mirror = FileUpload(both.there, ranks, both.link)
    sent = []

    def sent_bytes():
        both.mirror.step()
        both.link.take()  # makes room for what waits to be sent
        sent.extend(both.channel.receive())
        return sum(message.end - message.offset for message in sent)

    wait_until(lambda: sent_bytes() >= WINDOW_BYTES, "as much as may be")
    assert both.mirror.timeout_s is None
    assert max(sent_bytes() for _ in range(100)) == WINDOW_BYTES
    assert len({(message.kind, message.global_rank) for message in sent}) == len(sent)


def test_nothing_is_sent_where_nothing_changes(both, wait_until):
    """And it is looked at a few times a second only."""
    for path in (both.there.train_log(2), both.there.env_log(2), both.there.heartbeat(2)):
        both.write(path, b"words\n")
    wait_until(lambda: (both.go_on(), len(both.heard) == 3)[-1], "the words")
    heard = len(both.heard)
    moments = []
    wait_until(lambda: (both.go_on(), moments.append(both.mirror.timeout_s), len(moments) > 50)[-1], "many looks")
    assert len(both.heard) == heard
    assert max(moments) > 0.1


def test_files_that_are_rewritten_come_and_go(both, wait_until):
    """With the time at which they were written, by the coordinator's clock; env.log for its owner alone."""
    for path in (both.there.heartbeat(3), both.there.failure(3), both.there.env_log(3)):
        path.write_bytes(b"{}")
    os.utime(both.there.heartbeat(3), ns=(10**18, 10**18))
    wait_until(lambda: (both.go_on(), both.here.heartbeat(3).exists() and both.here.env_log(3).exists())[-1], "beats")
    assert both.here.heartbeat(3).stat().st_mtime_ns == 10**18
    assert both.here.env_log(3).stat().st_mode & 0o777 == 0o600
    both.there.failure(3).unlink()
    wait_until(lambda: (both.go_on(), not both.here.failure(3).exists())[-1], "its end")


def test_a_beat_has_the_coordinators_time(both):
    """The server's clock is 7 ns ahead of ours."""
    both.mirrored.take(SERVER, FileSnapshot("heartbeat", 2, "e30=", 1000), 7)
    assert both.here.heartbeat(2).stat().st_mtime_ns == 993


def test_a_log_that_begins_anew_begins_anew_there(both, wait_until):
    """Somebody emptied it."""
    both.write(both.there.train_log(2), b"former words\n")
    wait_until(lambda: both.log_is(2, b"former words\n"), "the former words")
    os.truncate(both.there.train_log(2), 0)
    both.write(both.there.train_log(2), b"new\n")
    wait_until(lambda: both.log_is(2, b"new\n"), "the new words")


def test_an_agent_that_comes_again_goes_on_where_the_last_one_was(both, wait_until):
    """Nothing comes twice, nothing is left out."""
    both.write(both.there.train_log(2), b"one\n")
    wait_until(lambda: both.log_is(2, b"one\n"), "the first word")
    both.write(both.there.train_log(2), b"two\n")
    both.follow()
    wait_until(lambda: both.log_is(2, b"one\ntwo\n"), "both words")


def test_what_is_gone_before_the_next_agent_comes_goes_there_too(both, wait_until):
    """A failure that an attempt before has noted is none of this one."""
    both.there.failure(2).write_bytes(b"{}")
    wait_until(lambda: (both.go_on(), both.here.failure(2).exists())[-1], "the failure")
    both.there.failure(2).unlink()
    both.follow()
    wait_until(lambda: (both.go_on(), not both.here.failure(2).exists())[-1], "its end")


@pytest.mark.parametrize("former", [b"former\n", b"f" * 3 * PIECE_BYTES])
def test_a_server_that_lost_its_disk_goes_on_behind_what_is_kept(both, wait_until, former):
    """However much its ranks write then, all of it comes; the former words are nowhere else, and stay."""
    both.write(both.there.train_log(2), former)
    both.write(both.there.metrics, b"1\n")
    wait_until(lambda: both.log_is(2, former) and both.here.metrics.exists(), "the former words")
    both.there.train_log(2).unlink()
    both.there.metrics.unlink()
    both.follow()
    new = b"0123456789" * PIECE_BYTES
    both.write(both.there.train_log(2), new)  # before the head has said how much it has
    both.write(both.there.metrics, b"2\n")
    wait_until(lambda: both.log_is(2, former + new), "the new words")
    wait_until(lambda: (both.go_on(), both.here.metrics.read_bytes() == b"1\n2\n")[-1], "both servers' metrics")


def test_fewer_words_than_the_head_has_are_another_file_s(both, wait_until):
    """Also where ranks have written some before the head was asked."""
    both.write(both.there.train_log(2), b"former words\n")
    wait_until(lambda: both.log_is(2, b"former words\n"), "the former words")
    both.there.train_log(2).unlink()
    both.write(both.there.train_log(2), b"new\n")
    both.follow()
    wait_until(lambda: both.log_is(2, b"former words\nnew\n"), "the new words")


def test_who_asks_how_much_is_there_makes_no_file(both, wait_until):
    """Ranks that write nothing have no log."""
    both.follow()
    wait_until(
        lambda: (both.go_on(), sum(isinstance(message, FileChunk) for message in both.heard) == 5)[-1], "questions"
    )
    assert [path for path in both.here.root.rglob("*") if path.is_file()] == []


def test_metrics_of_a_server_are_added_to_those_of_all(both, wait_until):
    """Other servers' lines stay."""
    both.write(both.here.metrics, b'{"step": 1}\n')
    both.write(both.there.metrics, b'{"step": 2}\n')
    whole = b'{"step": 1}\n{"step": 2}\n'
    wait_until(lambda: (both.go_on(), both.here.metrics.read_bytes() == whole)[-1], "both lines")
    os.truncate(both.there.metrics, 0)
    both.write(both.there.metrics, b"{}\n")
    whole += b"{}\n"
    wait_until(lambda: (both.go_on(), both.here.metrics.read_bytes() == whole)[-1], "all lines")


# --- the coordinator trusts nobody ---


@pytest.mark.parametrize("message", [
    FileChunk("train.log", 0, 0, 1, "eA=="),
    FileChunk("train.log", 4, 0, 1, "eA=="),
    FileChunk("../../train.log", 2, 0, 1, "eA=="),
    FileChunk("heartbeat", 2, 0, 1, "eA=="),
    FileChunk("train.log", 2, 0, 1, "no base64"),
    FileSnapshot("train.log", 2, None, 0),
    FileSnapshot("run.json", 2, "eA==", 0),
])  # fmt: skip
def test_what_is_no_file_of_a_rank_of_that_server_is_not_written(both, message):
    """Another server's rank, a path, or a kind that is sent otherwise."""
    assert both.mirrored.take(SERVER, message, 0) is None
    assert [path for path in both.here.root.rglob("*") if path.is_file()] == []


def test_a_time_that_no_file_can_have_is_late_and_no_end(both):
    """Whoever has sent it."""
    kept = both.mirrored.take(SERVER, FileSnapshot("heartbeat", 2, "e30=", 1 << 100), 0)
    assert kept.trouble
    assert both.troubles


def test_a_link_in_place_of_a_log_is_not_followed(both, tmp_path):
    """It would lead out of the run directory."""
    (tmp_path / "else").touch()
    both.here.train_log(2).symlink_to(tmp_path / "else")
    assert both.mirrored.take(SERVER, FileChunk("train.log", 2, 0, 1, "eA=="), 0).trouble
    assert (tmp_path / "else").read_bytes() == b""


def test_a_piece_from_elsewhere_is_asked_for_again(both):
    """The answer says where to go on."""
    assert both.mirrored.take(SERVER, FileChunk("train.log", 2, 0, 2, "eHg="), 0) == ChunkAck("train.log", 2, 2)
    assert both.mirrored.take(SERVER, FileChunk("train.log", 2, 5, 7, "eHg="), 0) == ChunkAck("train.log", 2, 2)
    assert both.here.train_log(2).read_bytes() == b"xx"


def test_a_head_without_room_is_told_once_and_gets_all_of_it_later(both, wait_until, monkeypatch):
    """A file stands in the place of the directory; other ranks' files are written."""
    monkeypatch.setattr("launcher.supervise.file_upload.RETRY_S", 0.01)
    device = both.here.device(2)
    device.rmdir()
    device.touch()
    for rank in OURS:
        both.write(both.there.train_log(rank), b"words\n")
        both.write(both.there.env_log(rank), b"A=1\n")
    wait_until(lambda: both.log_is(3, b"words\n"), "the other rank's words")
    wait_until(lambda: (both.go_on(), both.troubles)[-1], "a complaint")
    device.unlink()
    device.mkdir()
    wait_until(lambda: both.log_is(2, b"words\n"), "what was late")
    assert len(both.troubles) == len(set(both.troubles)) == 1


# --- the end ---


def test_in_the_end_all_that_is_left_is_sent(both, monkeypatch):
    """More than may be under way, and more than is sent in one second while ranks run."""
    monkeypatch.setattr("launcher.supervise.file_upload.FINISH_S", FOR_EVER_S)
    data = {rank: os.urandom(10 * WINDOW_BYTES) for rank in OURS}
    for rank, each in data.items():
        both.write(both.there.train_log(rank), each)
    both.there.failure(3).write_bytes(b"{}")
    assert both.finish() is None
    assert {rank: both.here.train_log(rank).read_bytes() for rank in OURS} == data
    assert both.here.failure(3).read_bytes() == b"{}"


def test_what_cannot_be_sent_in_time_is_told(both, monkeypatch):
    """The coordinator answers nothing; the files stay where they are."""
    monkeypatch.setattr("launcher.supervise.file_upload.FINISH_S", 0.3)
    both.write(both.there.train_log(3), b"words\n")
    left = both.mirror.finish(lambda: False)
    assert left.startswith("6 bytes of rank 3 did not reach the head")
    assert str(both.there.root) in left


def test_who_wants_the_end_at_once_gets_it(both, monkeypatch):
    """Whoever kills the run does not wait for logs: asked here, or by the coordinator."""
    monkeypatch.setattr("launcher.supervise.file_upload.FINISH_S", FOR_EVER_S)
    both.write(both.there.train_log(3), b"words\n")
    assert both.mirror.finish(lambda: True) is not None
    both.channel.send(ForwardSignal(signal.SIGQUIT))
    assert both.mirror.finish(lambda: False) is not None


def test_a_head_without_room_does_not_hold_up_the_end(both, monkeypatch):
    """What is left is told at once."""
    monkeypatch.setattr("launcher.supervise.file_upload.FINISH_S", FOR_EVER_S)
    both.here.device(3).rmdir()
    both.write(both.there.train_log(3), b"words\n")
    assert "6 bytes of rank 3" in both.finish()


def test_a_lost_coordinator_ends_the_mirror(both):
    """All is in the files there."""
    both.write(both.there.train_log(3), b"words\n")
    both.channel.close()
    assert "6 bytes of rank 3" in both.mirror.finish(lambda: False)
    assert both.link.lost is not None
    assert both.there.train_log(3).read_bytes() == b"words\n"
