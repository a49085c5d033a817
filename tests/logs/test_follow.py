"""Following logs: every line once, in order, whatever the writer does."""

import os
import time
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.logs.follow import Follower
from launcher.logs.growing import GrowingLog
from launcher.logs.lines import PIECE_BYTES
from launcher.logs.tail import CHUNK_BYTES


@pytest.fixture
def log(tmp_path):
    return tmp_path / "train.log"


@pytest.fixture
def follower(log):
    made = Follower({3: GrowingLog(log)})
    yield made
    made.close()


def poll(follower, **options):
    """Every new line with its rank."""
    seen = []
    while block := follower.next_block(**options):
        rank, lines = block
        seen += [(rank, line) for line in lines.decode().removesuffix("\n").split("\n")]
    return seen


def poll_until(follower, count):
    """As `poll`, waiting for that many lines."""
    seen, deadline = poll(follower), time.monotonic() + 60
    while len(seen) < count:
        assert time.monotonic() < deadline, f"only {seen}"
        follower.wait(1)
        seen += poll(follower)
    return seen


def append(log, data):
    with log.open("ab") as file:
        file.write(data)


def test_a_log_that_does_not_exist_yet(log, follower):
    """It is waited for, then read from its start."""
    assert poll(follower) == []
    append(log, b"one\ntwo\n")
    assert poll_until(follower, 2) == [(3, "one"), (3, "two")]
    assert poll(follower) == []


def test_an_unfinished_line_waits_for_its_end(log, follower):
    """Half a line is not shown before it is whole, or nobody writes any more."""
    append(log, b"hal")
    assert poll(follower) == []
    append(log, b"f\nlast")
    assert poll(follower) == [(3, "half")]
    assert poll(follower, ended=True) == [(3, "last")]


def test_a_character_cut_by_two_writes_is_put_together(log, follower):
    """UTF-8 is decoded by line, not by write."""
    append(log, "é".encode()[:1])
    assert poll(follower) == []
    append(log, "é".encode()[1:] + b"\n")
    assert poll(follower) == [(3, "é")]


def test_a_line_without_end_is_given_in_pieces(log, follower):
    """Memory stays bounded, and no byte is lost."""
    append(log, b"x" * (5 * PIECE_BYTES + 7) + b"\nnext\n")
    lines = [line for _, line in poll(follower, ended=True)]
    assert lines[-1] == "next"
    assert sum(map(len, lines[:-1])) == 5 * PIECE_BYTES + 7
    assert max(map(len, lines)) <= 2 * PIECE_BYTES


def test_a_log_that_is_cut_short_is_read_again(log, follower):
    """As `tail -f` does after a truncation."""
    append(log, b"a long first line\n")
    assert poll(follower) == [(3, "a long first line")]
    os.truncate(log, 0)
    assert poll(follower) == []
    append(log, b"new\n")
    assert poll(follower) == [(3, "new")]


def test_a_log_that_is_emptied_at_the_end(log, follower):
    """What it holds since then is not forgotten when nobody writes any more."""
    append(log, b"a long first line\nand a hal")
    assert poll(follower) == [(3, "a long first line")]
    os.truncate(log, 0)
    append(log, b"new\nlast")
    assert poll(follower, ended=True) == [(3, "and a hal"), (3, "new"), (3, "last")]


def test_a_log_that_is_made_again(log, follower):
    """The old one is read to its end, then the new one from its start, though that is longer already."""
    append(log, b"one\nhalf of")
    assert poll(follower) == [(3, "one")]
    append(log, b" two\n")
    log.unlink()
    append(log, b"the first line of another log\n")
    assert poll(follower) == [(3, "half of two"), (3, "the first line of another log")]


def test_skipping_in_a_log_that_begins_anew(log, follower):
    """Only what is unread of the new one counts."""
    append(log, b"x" * 50 + b"\n")
    assert poll(follower) == [(3, "x" * 50)]
    log.unlink()
    append(log, b"".join(b"%07d\n" % number for number in range(1000)))
    assert list(follower.skip_to_last(100)) == [(3, 8 * 988)]
    assert poll(follower) == [(3, f"{number:07d}") for number in range(988, 1000)]


def test_a_log_that_is_removed_is_read_to_its_end(log, follower):
    """What was opened stays readable after its name has gone."""
    append(log, b"one\n")
    assert poll(follower) == [(3, "one")]
    append(log, b"two\n")
    log.unlink()
    assert poll(follower, ended=True) == [(3, "two")]


def test_logs_take_turns_in_small_portions(tmp_path):
    """However much one log holds, the caller gets its turn soon, and so does the other log."""
    logs = {rank: tmp_path / f"{rank}.log" for rank in (0, 1)}
    for log in logs.values():
        append(log, b"0123456789abcde\n" * 20_000)
    follower = Follower({rank: GrowingLog(log) for rank, log in logs.items()})
    portions = [(rank, block.splitlines()) for rank, block in (follower.next_block() for _ in range(4))]
    assert [rank for rank, _ in portions] == [0, 1, 0, 1]
    assert all(len(lines) <= 2 * CHUNK_BYTES / 16 for _, lines in portions)
    assert sum(len(lines) for _, lines in portions) + len(poll(follower)) == 40_000
    follower.close()


def test_only_the_end_of_what_is_unread(log, follower):
    """What is left out and what is shown make up the log, and the first line shown is a whole one."""
    append(log, b"shown\nhal")
    assert poll(follower) == [(3, "shown")]
    append(log, b"f\n" + b"".join(b"%07d\n" % number for number in range(1000)))
    assert list(follower.skip_to_last(100)) == [(3, len("half\n") + 8 * 988)]
    assert poll(follower) == [(3, f"{number:07d}") for number in range(988, 1000)]
    assert list(follower.skip_to_last(100)) == []


def test_a_line_longer_than_what_is_kept(log, follower):
    """Without the start of a line to begin at, the last bytes are shown all the same or counted as left out."""
    append(log, b"x" * 1000)
    ((_, skipped),) = follower.skip_to_last(100)
    assert skipped + sum(len(line) for _, line in poll(follower, ended=True)) == 1000


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    lines=st.lists(st.text(st.characters(exclude_categories=["C"])), max_size=20),
    cuts=st.lists(st.integers(0, 400), max_size=8),
)
def test_any_way_of_writing_gives_the_same_lines(tmp_path_factory, lines, cuts):
    """Wherever the writes are cut, the lines are those of the whole text."""
    log = tmp_path_factory.mktemp("follow") / "train.log"
    data = "".join(f"{line}\n" for line in lines).encode()
    follower = Follower({0: GrowingLog(log)})
    seen = []
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for first, last in pairwise(edges):
        append(log, data[first:last])
        seen += [line for _, line in poll(follower)]
    seen += [line for _, line in poll(follower, ended=True)]
    follower.close()
    assert seen == lines


def test_a_piece_ends_between_characters(log, follower):
    """Of a line without end, too."""
    text = ("x" + "é漢😀" * PIECE_BYTES).encode()
    append(log, text)
    pieces = []
    while block := follower.next_block(ended=True):
        pieces.append(block[1])
    assert len(pieces) > 2
    assert "".join(piece.decode() for piece in pieces).encode() == text


def test_what_others_do_not_need_is_not_left_out(tmp_path):
    """The bytes to keep are those of all logs together."""
    logs = {rank: tmp_path / f"{rank}.log" for rank in range(10)}
    for log in logs.values():
        append(log, b"short\n")
    append(logs[3], b"0123456789abcde\n" * 1000)
    follower = Follower({rank: GrowingLog(log) for rank, log in logs.items()})
    assert list(follower.skip_to_last(20_000)) == []
    ((rank, skipped),) = follower.skip_to_last(10_000)
    assert rank == 3
    assert 16_006 - 10_000 + 9 * 6 <= skipped < 16_006 - 10_000 + 9 * 6 + 32
    follower.close()
