"""A log that grows: each byte is given once, and what is left out is told."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.logs.growing import GrowingLog, fair_shares
from launcher.logs.index import index_path, parse, part_path
from launcher.logs.rotation import Rotator


@pytest.fixture
def log(tmp_path):
    return tmp_path / "train.log"


@pytest.fixture
def growing(log):
    made = GrowingLog(log)
    yield made
    made.close()


def append(log, data):
    with log.open("ab") as file:
        file.write(data)


def rotate(log, max_bytes=20_000):
    rotator = Rotator({0: log}, max_bytes)
    rotator.step()
    if rotator.warnings():
        pytest.skip("the file system cannot free the start of a file")


def numbered(first, behind):
    return b"".join(b"%07d\n" % number for number in range(first, behind))


def all_new(growing, limit_bytes=1 << 16):
    """What is unread, and the offset of its first byte; the chunks follow each other."""
    chunks = []
    while (piece := growing.read(limit_bytes))[1]:
        assert not chunks or piece[0] == chunks[-1][0] + len(chunks[-1][1])
        chunks.append(piece)
    return (chunks[0][0] if chunks else growing.position), b"".join(chunk for _, chunk in chunks)


# --- each byte once ---


def test_what_comes_is_given_once(log, growing):
    """From before the log exists."""
    assert (growing.read(), growing.position, growing.unread_bytes) == ((0, b""), 0, 0)
    append(log, b"one\ntw")
    assert growing.unread_bytes == 6
    assert growing.read() == (0, b"one\ntw")
    assert (growing.read(), growing.position, growing.unread_bytes) == ((6, b""), 6, 0)
    append(log, b"o\n")
    assert growing.read(1) == (6, b"o")
    assert growing.read() == (7, b"\n")


def test_what_is_moved_before_it_was_read_is_given_too(log, growing):
    """Once, in whatever turn writer, rotator and reader come."""
    given = b""
    for turn in range(8):
        append(log, numbered(turn * 10_000, turn * 10_000 + 10_000))
        if turn % 2:
            rotate(log)
        for _ in range(turn % 3):
            given += growing.read(30_000)[1]
    assert 0 < len(given) < 8 * 80_000
    assert growing.unread_bytes == 8 * 80_000 - len(given)
    assert given + all_new(growing, 30_000)[1] == numbered(0, 80_000)


@pytest.mark.parametrize("again", [b"new\n", b"a new and longer first line\n"])
def test_a_log_that_is_made_again(log, growing, again):
    """It is read from its start, though what was there was not read to its end."""
    append(log, b"one\ntwo\n")
    assert growing.read(4) == (0, b"one\n")
    log.unlink()
    append(log, again)
    assert growing.read() == (4, b"two\n")
    assert growing.read() == (0, again)
    assert growing.position == len(again)


def test_a_log_that_is_emptied(log, growing):
    """All that it holds is new, though it was looked at in between."""
    append(log, b"a long line\n")
    assert growing.read()[1] == b"a long line\n"
    os.truncate(log, 0)
    append(log, b"new\n")
    assert growing.unread_bytes == 4
    assert growing.read() == (0, b"new\n")
    assert growing.read() == (4, b"")


def test_a_rotated_log_that_is_emptied(log, growing):
    """Its offsets go on where it was last known to end."""
    append(log, numbered(0, 10_000))
    rotate(log)
    assert all_new(growing) == (0, numbered(0, 10_000))
    os.truncate(log, 0)
    append(log, b"new\n")
    assert all_new(growing) == (80_000, b"new\n")


def test_a_log_that_is_removed(log, growing):
    """What is open is read to its end."""
    append(log, b"one\ntwo\n")
    assert growing.read(4) == (0, b"one\n")
    log.unlink()
    assert growing.read() == (4, b"two\n")
    assert growing.read() == (8, b"")


def test_a_log_that_may_not_be_read(log, growing):
    """It has nothing, and it is told why, until it may be read: then all of it is new."""
    log.symlink_to(log)
    growing.skip_to_last_lines(1)
    looks = (growing.read(), growing.position, growing.end, growing.unread_bytes, growing.skip_to_last(5, 0))
    assert looks == ((0, b""), 0, 0, 0, 0)
    assert growing.trouble == "Too many levels of symbolic links"
    log.unlink()
    append(log, b"one\n")
    assert (growing.end, growing.read(), growing.trouble) == (4, (0, b"one\n"), None)


def test_a_directory_is_no_log(log, growing):
    """Though it can be opened."""
    log.mkdir()
    assert (growing.read(), growing.trouble) == ((0, b""), "Is a directory")


def test_what_is_lost_is_told_once(log, growing):
    """A line stands in its place; what follows is read on."""
    append(log, numbered(0, 10_000))
    rotate(log)
    append(log, numbered(10_000, 20_000))
    rotate(log)
    _, second = sorted(log.parent.glob("*.gz"))
    start = int(second.name.split(".")[2])
    begun = growing.read(100)[1]
    second.unlink()
    given = begun + b"".join(chunk for _, chunk in iter(growing.read, (160_000, b"")))
    behind = parse(index_path(log).read_bytes()).freed
    notice = f"[{behind - start} bytes lost: {second.name}: No such file or directory]\n"
    assert given == numbered(0, 20_000)[:start] + notice.encode() + numbered(0, 20_000)[behind:]


# --- leaving out ---


@pytest.mark.parametrize("count", [0, 1, 30, 100, 101])
def test_reading_on_at_the_last_lines(log, growing, count):
    """Of the log as it is then; what comes later is read too."""
    append(log, numbered(0, 100))
    growing.skip_to_last_lines(count)
    append(log, b"new\n")
    first = max(0, 100 - count)
    assert all_new(growing) == (8 * first, numbered(first, 100) + b"new\n")


def test_reading_on_at_the_last_lines_of_a_log_that_has_begun_anew(log, growing):
    """What was noted of that before does not bring its start back."""
    append(log, numbered(0, 10_000))
    rotate(log)
    os.truncate(log, 0)
    append(log, numbered(10_000, 20_000))
    rotate(log)
    growing.skip_to_last_lines(1)
    assert growing.read()[1] == b"0019999\n"


def test_only_what_came_last_is_kept(log, growing):
    """From the start of a line on; how much was left out is told."""
    append(log, numbered(0, 100))
    assert growing.skip_to_last(83, 0) == 800 - 80
    assert growing.unread_bytes == 80
    assert all_new(growing) == (720, numbered(90, 100))


def test_what_was_read_and_not_shown_counts_as_left_out(log, growing):
    """It is the beginning of the line of which the rest is left out."""
    append(log, numbered(0, 100))
    assert growing.read(5) == (0, b"00000")
    assert growing.skip_to_last(83, 5) == 800 - 80


@pytest.mark.parametrize("keep_bytes", [800, 801, 1 << 30])
def test_where_little_is_unread_nothing_is_left_out(log, growing, keep_bytes):
    """Nor is it said so, and what was not shown is to be shown."""
    append(log, numbered(0, 100))
    assert growing.skip_to_last(keep_bytes, 0) == 0
    assert growing.read(5) == (0, b"00000")
    assert growing.skip_to_last(795, 5) == 0
    assert all_new(growing) == (5, numbered(0, 100)[5:])


def test_nothing_is_kept(log, growing):
    """Of a log that is followed from now on."""
    append(log, numbered(0, 100))
    assert growing.skip_to_last(0, 0) == 800
    append(log, b"new\n")
    assert growing.read() == (800, b"new\n")


def test_what_came_last_of_a_rotated_log(log, growing):
    """Also where it reaches into parts."""
    append(log, numbered(0, 30_000))
    rotate(log)
    skipped = growing.skip_to_last(100_003, 0)
    assert skipped == 240_000 - 100_000
    assert all_new(growing) == (skipped, numbered(0, 30_000)[skipped:])


def test_what_was_read_of_a_log_that_began_anew_is_not_left_out(log, growing):
    """It is of another text."""
    append(log, numbered(0, 100))
    assert growing.read(5) == (0, b"00000")
    os.truncate(log, 0)
    append(log, numbered(0, 50))
    assert growing.skip_to_last(83, 5) == 400 - 80
    assert all_new(growing) == (320, numbered(40, 50))


def test_what_came_last_begins_in_what_is_lost(log, growing):
    """All of it is left out, and no line tells of a part of it."""
    for turn in range(3):
        append(log, numbered(turn * 20_000, turn * 20_000 + 20_000))
        rotate(log)
    _, lost, behind = (int(path.name.split(".")[2]) for path in sorted(log.parent.glob("*.gz")))
    part_path(log, lost).unlink()
    assert growing.skip_to_last(480_000 - lost - 1000, 0) == behind
    assert all_new(growing) == (behind, numbered(0, 60_000)[behind:])


# --- what each of several may show ---


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 50)), st.integers(0, 100))
def test_shares_are_fair(needs, total):
    """Nobody gets more than it needs, nothing is left that somebody needs, and who gets less has as much as anybody."""
    shares = fair_shares(needs, total)
    assert shares.keys() == needs.keys()
    assert all(0 <= shares[key] <= needs[key] for key in needs)
    assert sum(shares.values()) == min(total, sum(needs.values()))
    short = [shares[key] for key in needs if shares[key] < needs[key]]
    assert all(share + 1 >= max(shares.values()) for share in short)
