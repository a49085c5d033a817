"""The end of a log: found without reading the rest, and made of the lines that reading all of it gives."""

import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.logs.tail import (
    CHUNK_BYTES,
    MAX_STEP_BYTES,
    TAIL_BYTES,
    bytes_between,
    last_lines,
    opened,
    start_of_last_lines,
    tail,
)


@pytest.fixture
def log(tmp_path):
    return tmp_path / "train.log"


def start_of_last(path, count):
    with opened(path) as log:
        return start_of_last_lines(log, path.stat().st_size, count)


# --- where the last lines begin ---


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([b"ab", b"\n", b"c" * 40_000])).map(b"".join), st.integers(0, 12))
def test_the_last_lines_are_those_of_the_whole_log(log, data, count):
    """However long they are; an unfinished last one is one of them."""
    log.write_bytes(data)
    kept = data.splitlines(keepends=True)[-count:] if count else []
    assert data[start_of_last(log, count) :] == b"".join(kept)


@pytest.mark.parametrize("odd", [0, 1])
def test_lines_are_counted_across_chunks(log, odd):
    """None is counted twice or not at all, wherever a chunk or a step begins."""
    data = b"x" * odd + b"a\n" * 1_500_000
    for written in (data, data[:-1]):
        log.write_bytes(written)
        for count in (1, CHUNK_BYTES // 2, CHUNK_BYTES // 2 + 1, 140_000, MAX_STEP_BYTES, 1_499_999):
            assert start_of_last(log, count) == len(data) - 2 * count
        assert start_of_last(log, 1_500_001) == 0


def test_the_last_lines_are_found_without_reading_the_rest(log):
    """Of a log of 100 MB."""
    with log.open("wb") as file:
        file.truncate(100 << 20)
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + b"0123456789abcde\n" * 1000)
    before = bytes_read()
    assert start_of_last(log, 3) == log.stat().st_size - 48
    assert bytes_read() - before < 2 * CHUNK_BYTES


def test_no_byte_is_read_twice(log):
    """Also where most of the log is wanted."""
    log.write_bytes(b"0123456789abcde\n" * 500_000)
    before = bytes_read()
    assert start_of_last(log, 499_999) == 16
    assert bytes_read() - before < 1.1 * log.stat().st_size


def bytes_read():
    """By this process, through system calls."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def test_memory_is_bounded(log):
    """Of a log that is one line."""
    log.touch()
    os.truncate(log, 40 * MAX_STEP_BYTES)
    tracemalloc.start()
    assert start_of_last(log, 1) == 0
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 3 * MAX_STEP_BYTES


# --- the last bytes ---


def test_bytes_between_two_offsets(log):
    """As far as the log has them."""
    log.write_bytes(b"0123456789")
    with opened(log) as descriptor:
        assert bytes_between(descriptor, 2, 5) == b"234"
        assert bytes_between(descriptor, 8, 20) == b"89"
        assert bytes_between(descriptor, 5, 5) == bytes_between(descriptor, 5, 2) == b""


def test_the_last_bytes(log):
    """No more than were asked for, and none from before an offset; a log that is missing is empty."""
    assert tail(log) == b""
    log.write_bytes(b"0123456789" * TAIL_BYTES)
    assert tail(log) == (b"0123456789" * TAIL_BYTES)[-TAIL_BYTES:]
    assert tail(log, limit_bytes=4) == b"6789"
    assert tail(log, offset=10 * TAIL_BYTES - 2, limit_bytes=4) == b"89"
    assert tail(log, offset=10 * TAIL_BYTES) == b""
    assert tail(log, offset=10 * TAIL_BYTES + 1, limit_bytes=4) == b"6789"
    log.unlink()
    log.mkdir()
    with pytest.raises(IsADirectoryError):
        tail(log)


def test_the_last_lines_are_safe_to_show_and_short(log):
    """Blank lines at the end do not count, and only the end of a long log is looked at."""
    log.write_bytes(
        b"".join(b"line %d\n" % number for number in range(100_000)) + b"\x1b[2Jred\xff\n" + b"y" * 9000 + b"\n \n"
    )
    before, odd, long = last_lines(log, 3)
    assert (before, odd) == ("line 99999", "red\ufffd")
    assert long.startswith("yyy")
    assert len(long) < 9000
    assert len(last_lines(log, 1 << 20)) < TAIL_BYTES / 10


@pytest.mark.parametrize(("text", "count", "offset", "lines"), [
    ("before\nafter\n", 3, 7, ["after"]),
    ("before\nafter\n", 3, 13, []),
    ("before\nafter\n", 3, 1000, ["before", "after"]),  # it was truncated: the offset means nothing
    ("before\n" + "x" * 100_000 + "\nafter\n", 1, 7, ["after"]),
    ("\n \n", 3, 0, []),
    ("\n\nonly", 1, 0, ["only"]),
    ("one\ntwo\n\n\n", 1, 0, ["two"]),
    ("", 3, 0, []),
])  # fmt: skip
def test_the_last_lines(log, text, count, offset, lines):
    """None from before an offset."""
    log.write_text(text)
    assert last_lines(log, count, offset=offset) == lines


def test_a_log_that_is_missing_has_no_last_lines(log):
    """That is no empty log."""
    with pytest.raises(FileNotFoundError):
        last_lines(log, 3)
