"""Read a log file's end, or each of its bytes once, across truncation and replacement."""

import errno
import os
import random
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.logs.log_file import (
    CHUNK_BYTES,
    MAX_PIECE_BYTES,
    MAX_STEP_BYTES,
    TAIL_BYTES,
    GrowingLog,
    Place,
    Truncation,
    bytes_between,
    fair_shares,
    last_lines,
    opened,
    piece_after,
    start_of_last_lines,
    tail,
)

from .conftest import append


def start_of_last(path, count):
    with opened(path) as log:
        return start_of_last_lines(log, path.stat().st_size, count)


# --- where the last lines begin ---


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([b"ab", b"\n", b"c" * 40_000])).map(b"".join), st.integers(0, 12))
def test_the_last_lines_are_those_of_the_whole_log(log, data, count):
    log.write_bytes(data)
    kept = data.splitlines(keepends=True)[-count:] if count else []
    assert data[start_of_last(log, count) :] == b"".join(kept)


@pytest.mark.parametrize("odd", [0, 1])
def test_lines_are_counted_across_chunks(log, odd):
    data = b"x" * odd + b"a\n" * 1_500_000
    for written in (data, data[:-1]):
        log.write_bytes(written)
        for count in (1, CHUNK_BYTES // 2, CHUNK_BYTES // 2 + 1, 140_000, MAX_STEP_BYTES, 1_499_999):
            assert start_of_last(log, count) == len(data) - 2 * count
        assert start_of_last(log, 1_500_001) == 0


def test_the_last_lines_are_found_without_reading_the_rest(log):
    log.touch()
    os.truncate(log, 100 << 20)
    append(log, b"\n" + b"0123456789abcde\n" * 1000)
    before = bytes_read()
    assert start_of_last(log, 3) == log.stat().st_size - 48
    assert bytes_read() - before < 2 * CHUNK_BYTES


def test_no_byte_is_read_twice(log):
    log.write_bytes(b"0123456789abcde\n" * 500_000)
    before = bytes_read()
    assert start_of_last(log, 499_999) == 16
    assert bytes_read() - before < 1.1 * log.stat().st_size


def bytes_read():
    """Return the number of bytes that this process has read through system calls."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def test_memory_is_bounded(log):
    log.touch()
    os.truncate(log, 40 * MAX_STEP_BYTES)
    tracemalloc.start()
    assert start_of_last(log, 1) == 0
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 3 * MAX_STEP_BYTES


# --- the last bytes ---


def test_the_last_bytes(log):
    """No more than were asked for, and none from before an offset; a log that is missing is empty, but has no lines."""
    assert tail(log) == b""
    with pytest.raises(FileNotFoundError):
        last_lines(log, 3)
    log.write_bytes(b"0123456789" * TAIL_BYTES)
    assert tail(log) == (b"0123456789" * TAIL_BYTES)[-TAIL_BYTES:]
    with opened(log) as descriptor:
        assert bytes_between(descriptor, 2, 5) == b"234"
        assert bytes_between(descriptor, 10 * TAIL_BYTES - 2, 20 * TAIL_BYTES) == b"89"
        assert bytes_between(descriptor, 5, 5) == bytes_between(descriptor, 5, 2) == b""
    assert tail(log, limit_bytes=4) == b"6789"
    assert tail(log, offset=10 * TAIL_BYTES - 2, limit_bytes=4) == b"89"
    assert tail(log, offset=10 * TAIL_BYTES) == b""
    assert tail(log, offset=10 * TAIL_BYTES + 1, limit_bytes=4) == b"6789"
    log.unlink()
    log.mkdir()
    with pytest.raises(IsADirectoryError):
        tail(log)


def test_the_last_lines_are_safe_to_show_and_short(log):
    log.write_bytes(b"line\n" * 100_000 + b"\x1b[2Jred\xff\n" + b"y" * 9000)
    before, odd, long = last_lines(log, 3)
    assert (before, odd, long[:3]) == ("line", "red\ufffd", "yyy")
    assert len(long) < 9000
    assert len(last_lines(log, 1 << 20)) < TAIL_BYTES / 5


@pytest.mark.parametrize(("text", "count", "offset", "lines"), [
    ("before\nafter\n", 3, 7, ["after"]), ("before\nafter\n", 3, 13, []),
    ("before\n" + "x" * 100_000 + "\nafter\n", 1, 7, ["after"]),
    ("before\nafter\n", 3, 1000, ["before", "after"]),  # it was truncated: the offset means nothing
    ("\n \n", 3, 0, []), ("", 3, 0, []), ("\n\nonly", 1, 0, ["only"]), ("one\ntwo\n\n\n", 1, 0, ["two"]),
])  # fmt: skip
def test_the_last_lines(log, text, count, offset, lines):
    log.write_text(text)
    assert last_lines(log, count, offset=offset) == lines


@pytest.fixture
def truncations():
    return []


@pytest.fixture
def growing(log, truncations):
    made = GrowingLog(log, truncations.append)
    yield made
    made.close()
    made.close()


def numbered(first, behind):
    return b"".join(b"%07d\n" % number for number in range(first, behind))


def all_new(growing, limit_bytes=1 << 16):
    """Read all new bytes; return them with the offset of the first. Check that chunks are consecutive."""
    chunks = []
    while (piece := growing.read(limit_bytes))[1]:
        assert not chunks or piece[0] == chunks[-1][0] + len(chunks[-1][1])
        chunks.append(piece)
    return (chunks[0][0] if chunks else growing.position), b"".join(chunk for _, chunk in chunks)


# --- each byte once ---


def test_what_is_appended_is_read_once(log, growing):
    assert (growing.read(), growing.position, growing.unread_bytes) == ((0, b""), 0, 0)
    append(log, b"one\ntw")
    assert growing.unread_bytes == 6
    assert growing.read() == (0, b"one\ntw")
    assert (growing.read(), growing.position, growing.unread_bytes) == ((6, b""), 6, 0)
    append(log, b"o\n")
    assert growing.read(1) == (6, b"o")
    assert growing.read() == (7, b"\n")


@pytest.mark.parametrize("again", [b"new\n", b"a new and longer first line\n"])
def test_a_log_that_is_made_again(log, growing, truncations, again):
    append(log, b"one\ntwo\n")
    assert growing.read(4) == (0, b"one\n")
    log.unlink()
    assert growing.unread_bytes == 4
    append(log, again)
    assert growing.read() == (4, b"two\n")
    assert growing.read() == (0, again)
    assert growing.position == len(again)
    log.unlink()
    append(log, b"third\n")
    assert growing.unread_bytes == 6
    assert all_new(growing) == (0, b"third\n")
    assert truncations == []


@pytest.mark.parametrize("made", [True, False])
def test_a_log_that_is_renamed_is_read_on(log, growing, made):
    """Its rank goes on writing to the old file, until a file with its name has content."""
    append(log, b"one\n")
    assert all_new(growing) == (0, b"one\n")
    old = log.with_name("train.log.1")
    for number in range(3):
        log.rename(old)
        if made:
            log.touch()
        append(old, b"%d\n" % number)
        assert (growing.unread_bytes, all_new(growing)[1]) == (2, b"%d\n" % number)
        log.unlink(missing_ok=True)
        old.rename(log)
    log.rename(old)
    append(old, b"last\n")
    append(log, b"new\n")
    assert (growing.read()[1], growing.read()) == (b"last\n", (0, b"new\n"))


def test_a_hole_is_skipped(log, growing):
    """A program that does not append leaves one of any size where its log was emptied; other zeros are read."""
    log.write_bytes(b"\0" * 5000)
    assert growing.read() == (0, b"\0" * 5000)
    with log.open("r+b") as file:
        os.truncate(log, 0)
        file.seek(1 << 40)
        file.write(b"\nnew\n")
    offset, found = growing.read()
    assert found.strip(b"\0") == b"\nnew\n"
    assert offset + len(found) == (1 << 40) + 5
    os.truncate(log, 1 << 41)
    assert all_new(growing)[1].strip(b"\0") == b""
    assert growing.unread_bytes == 0


def test_the_last_lines_among_the_last_bytes(log, growing):
    append(log, b"x\n" * 1000)
    assert growing.skip_to_last(200, keep_lines=1000) == 1802
    assert growing.skip_to_last(200, keep_lines=5) == 188
    assert growing.read() == (1990, b"x\n" * 5)


@pytest.mark.parametrize("looks", [True, False])
def test_a_log_that_is_truncated(log, growing, truncations, looks):
    append(log, b"a long line\nanother line\n")
    assert growing.read(12)[1] == b"a long line\n"
    os.truncate(log, 0)
    append(log, b"new\n")
    if looks:
        assert growing.unread_bytes == 4
    assert growing.read() == (0, b"new\n")
    assert growing.read() == (4, b"")
    assert truncations == [Truncation(lost_bytes=25, unread_bytes=13)]


def test_a_log_that_cannot_be_read(log, growing):
    log.symlink_to(log)
    growing.skip_to_last_lines(1)
    looks = (growing.read(), growing.position, growing.end, growing.unread_bytes, growing.skip_to_last(5))
    assert looks == ((0, b""), 0, 0, 0, 0)
    assert growing.trouble == "Too many levels of symbolic links"
    log.unlink()
    append(log, b"one\n")
    assert (growing.end, growing.read(), growing.trouble) == (4, (0, b"one\n"), None)


def test_a_log_whose_place_a_directory_takes_for_a_while(log, growing):
    """A directory can be opened, but is no log; once there is a file again, it is read from its start."""
    append(log, b"one\n")
    assert growing.read() == (0, b"one\n")
    log.unlink()
    log.mkdir()
    for _ in range(3):
        assert (growing.read()[1], growing.trouble) == (b"", "Is a directory")
        growing.skip_to_last_lines(1)
        assert list(growing.before(100)) == []
    log.rmdir()
    append(log, b"a longer line\n")  # which may get the directory's inode
    assert all_new(growing) == (0, b"a longer line\n")


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_fails_once(log, growing, monkeypatch, replaced):
    """A network file system calls a file stale that was replaced on another machine; one that stays is read on."""
    append(log, b"one\ntwo\n")
    assert growing.read(4) == (0, b"one\n")
    read, failures = os.pread, [OSError(errno.ESTALE, os.strerror(errno.ESTALE))]
    monkeypatch.setattr(os, "pread", lambda *a: read(*a) if not failures else (_ for _ in ()).throw(failures.pop()))
    assert growing.read() == (4, b"")
    assert growing.trouble == "Stale file handle"
    if replaced:
        log.rename(log.with_name("old"))
        append(log, b"a longer line\n")
    assert growing.read() == ((0, b"a longer line\n") if replaced else (4, b"two\n"))
    assert growing.trouble is None


def test_any_turn_of_writer_and_reader(log, growing):
    chosen, given, written = random.Random(0), b"", 0
    for _ in range(200):
        if chosen.random() < 0.5:
            append(log, numbered(written, written := written + chosen.randrange(3000)))
        given += growing.read(chosen.randrange(30_000))[1]
        assert growing.unread_bytes == 8 * written - len(given)
    assert given + all_new(growing, 30_000)[1] == numbered(0, written)


# --- leaving out ---


@pytest.mark.parametrize("count", [0, 1, 30, 100, 101])
def test_reading_on_at_the_last_lines(log, growing, count):
    append(log, numbered(0, 100))
    growing.skip_to_last_lines(count)
    append(log, b"new\n")
    first = max(0, 100 - count)
    assert b"".join(chunk for _, chunk in growing.before(50)) == numbered(0, first)[-50:]
    assert all_new(growing) == (8 * first, numbered(first, 100) + b"new\n")


@pytest.mark.parametrize(("keep_bytes", "skipped"), [
    (83, 720), (80, 728), (0, 800), (7, 800), (799, 8), (800, 0), (801, 0), (1 << 30, 0),
])  # fmt: skip
def test_only_what_came_last_is_kept(log, growing, keep_bytes, skipped):
    append(log, numbered(0, 100))
    assert growing.skip_to_last(keep_bytes) == skipped
    assert growing.unread_bytes == 800 - skipped
    append(log, b"new\n")
    assert all_new(growing) == (skipped, numbered(0, 100)[skipped:] + b"new\n")


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


# --- pieces ---


def test_each_line_is_given_once_and_an_unfinished_one_again(log):
    log.write_bytes(b"one\ntwo\nthr")
    first = piece_after(log, None)
    assert (first.lines, first.rest, first.is_anew) == ((b"one", b"two"), b"thr", True)
    append(log, b"ee\nfour")
    second = piece_after(log, first.place)
    assert (second.lines, second.rest, second.is_anew) == ((b"three",), b"four", False)
    third = piece_after(log, second.place)
    assert (third.lines, third.rest, third.place) == ((), b"four", second.place)


def test_a_log_that_was_truncated_or_replaced_is_read_anew(log):
    log.write_bytes(b"long enough\n" * 9)
    place = piece_after(log, None).place
    os.truncate(log, 12)
    piece = piece_after(log, place)
    assert (piece.lines, piece.is_anew) == ((b"long enough",), True)
    other = log.with_name("other")
    other.write_bytes(b"another\n" * 99)
    other.replace(log)
    assert piece_after(log, piece.place).is_anew


@pytest.mark.parametrize("is_first", [True, False])
def test_of_more_than_a_piece_holds_the_end_is_read_from_the_start_of_a_line(log, is_first):
    log.write_bytes(b"a" * 9 + b"\n")
    place = None if is_first else piece_after(log, None).place
    append(log, b"".join(b"%09d\n" % number for number in range(30_000)) + b"rest")
    piece = piece_after(log, place)
    assert piece.lines[-1] == b"%09d" % 29_999
    assert {len(line) for line in piece.lines} == {9}
    assert piece.skipped_bytes + 10 * len(piece.lines) + 4 == log.stat().st_size - (0 if is_first else 10)
    assert len(piece.lines) * 10 <= MAX_PIECE_BYTES


def test_a_line_longer_than_a_piece_does_not_hold_up_what_follows(log):
    log.write_bytes(b"x" * 3 * MAX_PIECE_BYTES)
    piece = piece_after(log, None)
    assert (piece.lines, len(piece.rest)) == ((), MAX_PIECE_BYTES)
    append(log, b"\nnext\n")
    assert piece_after(log, piece.place).lines[-1] == b"next"


def test_a_log_that_is_not_there_yet_has_no_place(log):
    assert piece_after(log, None).place is None
    log.write_bytes(b"one\n")
    place = piece_after(log, None).place
    log.unlink()
    gone = piece_after(log, place)
    assert (gone.place, gone.is_anew) == (None, True)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_an_error_and_blocks_nobody(log, make):
    make(log)
    with pytest.raises(OSError, match=r"regular|directory"):
        piece_after(log, None)


@pytest.mark.parametrize("text", ["", "1", "1-", "-1-2", "1-2-3", "٣-1", "1-" + "9" * 40, "1-2\n"])
def test_only_a_place_is_read_as_one(text):
    assert Place.parse(text) is None
    assert str(Place.parse("12-345")) == "12-345"
