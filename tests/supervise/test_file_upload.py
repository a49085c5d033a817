"""What ranks write on one disk, and what of it is on the other, over a real connection."""

import os
import signal
from contextlib import closing
from types import SimpleNamespace

import pytest

from launcher.cluster.recorder import FileReceiver
from launcher.control.messages import ChunkAck, FileChunk, FileSnapshot, ForwardSignal
from launcher.core.run_dir import RunDir
from launcher.supervise.channel import Channel
from launcher.supervise.file_upload import PIECE_BYTES, WINDOW_BYTES, FileUpload
from launcher.supervise.link import Link
from tests.conftest import wait_until

SERVER = 1
RANKS = [SimpleNamespace(global_rank=rank, server_index=rank // 2) for rank in range(4)]
OURS = [2, 3]
FINISH_S, FOR_EVER_S = "launcher.supervise.file_upload.FINISH_S", 1e6


def write(path, data):
    with path.open("ab") as file:
        file.write(data)


class Both:
    """An agent's side and a coordinator's, with a run directory each."""

    def __init__(self, directory, connected):
        self.there, self.here = (RunDir(directory / name) for name in ("there", "here"))
        for run_dir in (self.there, self.here):
            for rank in range(4):
                run_dir.device(rank).mkdir(parents=True)
        self.link = Link(Channel(connected[1]), 60.0, shares_files=False)
        self.link.begin()
        self.channel = Channel(connected[0])
        self.mirror = FileUpload(self.there, OURS, self.link)
        self.troubles = []
        self.mirrored = FileReceiver(self.here, RANKS, self.troubles.append)
        self.heard = []

    def follow(self):
        self.mirror.close()
        self.mirror = FileUpload(self.there, OURS, self.link, follows_another=True)

    def answer(self):
        for message in self.channel.receive():
            self.heard.append(message)
            self.channel.send(self.mirrored.take(SERVER, message, 0))

    def step(self):
        self.mirror.step()
        self.answer()
        for message in self.link.take():
            self.mirror.take(message)

    def until(self, condition, what):
        wait_until(lambda: (self.step(), condition())[-1], what)

    def until_log_is(self, rank, data, path=None):
        path = path or self.here.train_log(rank)
        self.until(lambda: path.exists() and path.read_bytes() == data, f"{path} with its text")

    def finish(self):
        return self.mirror.finish(self.answer)

    def close(self):
        self.mirror.close()
        self.link.close()
        self.channel.close()


@pytest.fixture(name="both")
def _both(tmp_path, connected, monkeypatch):
    monkeypatch.setattr(FINISH_S, FOR_EVER_S)
    with closing(Both(tmp_path, connected)) as both:
        yield both


def test_a_log_is_alike_on_both_sides_while_it_grows(both):
    write(both.there.train_log(2), b"begun")
    both.until_log_is(2, b"begun")
    data = b"begun" + os.urandom(3 * PIECE_BYTES)
    write(both.there.train_log(2), data[5:])
    both.until_log_is(2, data)
    assert not both.here.train_log(3).exists()
    heard, moments = len(both.heard), []
    both.until(lambda: moments.append(both.mirror.timeout_s) or len(moments) > 50, "many looks")
    assert (len(both.heard), max(moments) > 0.1) == (heard, True)


def test_when_lines_came_is_told_too(both):
    write(both.there.arrivals(2), b"x" * 16)
    both.until_log_is(2, b"x" * 16, both.here.arrivals(2))
    write(both.there.arrivals(2), b"y" * 16)
    assert (both.finish(), both.here.arrivals(2).read_bytes()) == (None, b"x" * 16 + b"y" * 16)


def test_little_is_under_way_at_once(both):
    """So an answer or a verdict waits for a quarter of a MiB at most, however much ranks write."""
    ranks = range(2, 2 + 2 * WINDOW_BYTES // PIECE_BYTES)
    for rank in ranks:
        both.there.device(rank).mkdir(exist_ok=True)
        write(both.there.train_log(rank), bytes(8 * WINDOW_BYTES))
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


@pytest.mark.parametrize("follows", [False, True], ids=["", "before the next agent comes"])
def test_files_that_are_rewritten_come_and_go(both, follows):
    for path in (both.there.heartbeat(3), both.there.failure(3), both.there.env_log(3)):
        path.write_bytes(b"{}")
    os.utime(both.there.heartbeat(3), ns=(10**18, 10**18))
    both.until(lambda: both.here.heartbeat(3).exists() and both.here.env_log(3).exists(), "beats")
    assert both.here.heartbeat(3).stat().st_mtime_ns == 10**18
    assert both.here.env_log(3).stat().st_mode & 0o777 == 0o600
    both.there.strategy.mkdir()
    both.there.strategy_of(3).write_bytes(b"{}")
    both.until(lambda: both.here.strategy_of(3).exists(), "the strategy, in a directory that is made for it")
    both.until(lambda: both.here.failure(3).exists(), "the failure")
    both.there.failure(3).unlink()
    if follows:
        both.follow()
    both.until(lambda: not both.here.failure(3).exists(), "its end")


def test_a_beat_has_a_time_of_the_coordinators_clock(both):
    both.mirrored.take(SERVER, FileSnapshot("heartbeat", 2, "e30=", 1000), 7)
    assert both.here.heartbeat(2).stat().st_mtime_ns == 993
    assert both.mirrored.take(SERVER, FileSnapshot("heartbeat", 2, "e30=", 1 << 100), 0).trouble
    assert both.troubles


@pytest.mark.parametrize(("follows", "whole"), [(False, b"new\n"), (True, b"former\nnew\n")])
def test_a_log_that_was_changed_is_taken_up_there(both, follows, whole):
    log = both.there.train_log(2)
    write(log, b"former\n")
    both.until_log_is(2, b"former\n")
    if not follows:
        os.truncate(log, 0)
    write(log, b"new\n")
    if follows:
        both.follow()
    both.until_log_is(2, whole)


@pytest.mark.parametrize("former", [b"former\n", b"f" * 3 * PIECE_BYTES])
def test_a_server_that_lost_its_disk_goes_on_behind_what_is_kept(both, former):
    write(both.there.train_log(2), former)
    write(both.there.metrics, b"1\n")
    both.until_log_is(2, former)
    both.until_log_is(2, b"1\n", both.here.metrics)
    both.there.train_log(2).unlink()
    both.there.metrics.unlink()
    both.follow()
    new = b"0123456789" * PIECE_BYTES
    write(both.there.train_log(2), new)  # before the coordinator has answered how much it has
    write(both.there.metrics, b"2\n")
    both.until_log_is(2, former + new)
    both.until_log_is(2, b"1\n2\n", both.here.metrics)


def test_a_question_how_much_is_there_makes_no_file(both):
    both.follow()
    both.until(lambda: sum(isinstance(message, FileChunk) for message in both.heard) == 8, "questions")
    assert [path for path in both.here.root.rglob("*") if path.is_file()] == []


def test_metrics_of_a_server_are_added_to_those_of_all(both):
    write(both.there.env_log(2), b"A=1\n")
    write(both.here.metrics, b'{"step": 1}\n')
    write(both.there.metrics, b'{"step": 2}\n')
    both.until_log_is(2, b'{"step": 1}\n{"step": 2}\n', both.here.metrics)
    os.truncate(both.there.metrics, 0)
    write(both.there.metrics, b"{}\n")
    both.until_log_is(2, b'{"step": 1}\n{"step": 2}\n{}\n', both.here.metrics)


# --- a run directory that is shared after all ---


@pytest.mark.parametrize("follows", [False, True], ids=["", "after another agent"])
@pytest.mark.parametrize("kind", ["train_log", "arrivals", "stacks_log", "heartbeat", "failure", "env_log"])
def test_a_file_is_never_sent_to_itself(both, kind, follows):
    """Both sides have the same directory, and the agent does not know. Whichever file it sends first tells; none changes."""
    both.here = both.there
    both.mirrored = FileReceiver(both.there, RANKS, both.troubles.append)
    path = getattr(both.there, kind)
    write(path(2), b"x" * 160)
    write(both.there.metrics, b"{}\n")
    if follows:
        both.follow()
    both.until(lambda: both.mirror.shares, "what the coordinator has found out")
    write(path(2), b"more")
    both.mirror.step()
    assert (both.mirror.timeout_s, both.finish()) == (None, None)
    assert path(2).read_bytes() == b"x" * 160 + b"more"
    assert both.there.metrics.read_bytes() == b"{}\n"


def test_a_log_that_begins_to_be_written_there_too_is_sent_no_more(both):
    write(both.there.train_log(2), b"words\n")
    both.until_log_is(2, b"words\n")
    write(both.here.train_log(2), b"others\n")
    write(both.there.train_log(2), b"more\n")
    both.until(lambda: both.mirror.shares, "what the coordinator has found out")
    assert both.here.train_log(2).read_bytes() == b"words\nothers\n"


def test_a_copy_that_a_person_shortens_or_removes_is_continued(both):
    write(both.there.train_log(2), b"words\n")
    both.until_log_is(2, b"words\n")
    os.truncate(both.here.train_log(2), 0)
    write(both.there.train_log(2), b"more\n")
    both.until_log_is(2, b"more\n")
    both.here.train_log(2).unlink()
    write(both.there.train_log(2), b"end\n")
    both.until_log_is(2, b"end\n")
    assert not both.mirror.shares


# --- the coordinator trusts no agent ---


def test_what_is_no_file_of_a_rank_of_that_server_is_not_written(both, tmp_path):
    for message in (
        FileChunk("train.log", 0, 0, 1, "eA=="),
        FileChunk("train.log", 4, 0, 1, "eA=="),
        FileChunk("../../train.log", 2, 0, 1, "eA=="),
        FileChunk("heartbeat", 2, 0, 1, "eA=="),
        FileChunk("train.log", 2, 0, 1, "no base64"),
        FileSnapshot("train.log", 2, None, 0),
        FileSnapshot("run.json", 2, "eA==", 0),
    ):
        assert both.mirrored.take(SERVER, message, 0) is None
    assert [path for path in both.here.root.rglob("*") if path.is_file()] == []
    (tmp_path / "else").touch()
    both.here.train_log(3).symlink_to(tmp_path / "else")
    assert both.mirrored.take(SERVER, FileChunk("train.log", 3, 0, 1, "eA=="), 0).trouble
    assert (tmp_path / "else").read_bytes() == b""
    for start in (0, 5):
        chunk = FileChunk("train.log", 2, start, start + 2, "eHg=")
        assert both.mirrored.take(SERVER, chunk, 0) == ChunkAck("train.log", 2, 2)
    assert both.here.train_log(2).read_bytes() == b"xx"


def test_a_full_disk_there_is_reported_once_and_gets_all_of_it_later(both, monkeypatch):
    monkeypatch.setattr("launcher.supervise.file_upload.RETRY_S", 0.01)
    device = both.here.device(2)
    device.rmdir()
    device.touch()
    for rank in OURS:
        write(both.there.train_log(rank), b"words\n")
        write(both.there.env_log(rank), b"A=1\n")
    both.until_log_is(3, b"words\n")
    both.until(lambda: both.troubles, "a complaint")
    device.unlink()
    device.mkdir()
    both.until_log_is(2, b"words\n")
    assert len(both.troubles) == len(set(both.troubles)) == 1


# --- the end ---


def test_in_the_end_all_that_is_left_is_sent(both, monkeypatch):
    monkeypatch.setattr("launcher.supervise.file_upload.EVERY_S", 0.01)  # how soon the coordinator's turn comes here
    data = {rank: os.urandom(5 * WINDOW_BYTES) for rank in OURS}
    for rank in OURS:
        write(both.there.train_log(rank), data[rank])
    both.there.failure(3).write_bytes(b"{}")
    assert both.finish() is None
    assert {rank: both.here.train_log(rank).read_bytes() for rank in OURS} == data
    assert both.here.failure(3).read_bytes() == b"{}"


@pytest.mark.parametrize("hindrance", ["no answer", "no room", "lost", "killed here", "killed there"])
def test_what_cannot_be_sent_is_reported(both, monkeypatch, hindrance):
    write(both.there.train_log(3), b"words\n")
    if hindrance == "no room":
        both.here.device(3).rmdir()
        left = both.finish()
    else:
        if hindrance == "no answer":
            monkeypatch.setattr(FINISH_S, 0.3)
        elif hindrance == "lost":
            both.channel.close()
        elif hindrance == "killed there":
            both.channel.send(ForwardSignal(signal.SIGQUIT))
        left = both.mirror.finish(lambda: hindrance == "killed here")
    assert left.startswith("6 bytes of rank 3 did not reach the launcher")
    assert str(both.there.root) in left
    assert both.there.train_log(3).read_bytes() == b"words\n"
    assert (both.link.lost is not None) == (hindrance == "lost")
