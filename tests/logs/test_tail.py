"""The end of a log: found without reading the rest, and made of the lines that reading all of it gives."""

import os
import tracemalloc
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.logs.index import part_path
from launcher.logs.parts import BLOCK_BYTES
from launcher.logs.rotation import Rotator
from launcher.logs.stored import CHUNK_BYTES, StoredLog
from launcher.logs.tail import MAX_STEP_BYTES, TAIL_BYTES, last_lines, offset_of_last, tail

MAX_BYTES = 100_000


@pytest.fixture
def log(tmp_path):
    return tmp_path / "train.log"


def rotate(log, data, *, turn_bytes=150_000):
    """Write `data`, so that it is moved into parts; where these begin."""
    rotator = Rotator({0: log}, MAX_BYTES)
    for first in range(0, len(data), turn_bytes):
        with log.open("ab") as file:
            file.write(data[first : first + turn_bytes])
        rotator.step()
        if rotator.warnings():
            pytest.skip("the file system cannot free the start of a file")
    return [int(path.name.split(".")[2]) for path in sorted(log.parent.glob("*.gz"))]


def numbered(width, count=80_000):
    """Lines of which none equals another; with 7 digits a part ends with a line, with others within one."""
    return b"".join(b"%0*d\n" % (width, number) for number in range(count))


def lines_from(stored, offset):
    """What a reader who begins there gets, each line with its newline."""
    return b"".join(chunk for _, chunk in stored.chunks(offset)).splitlines(keepends=True)


def last_of(log, count):
    with closing(StoredLog(log)) as stored:
        return lines_from(stored, offset_of_last(stored, count))


def assert_last_are_those_of_all(log, counts=()):
    with closing(StoredLog(log)) as stored:
        lines = lines_from(stored, stored.start)
    told = [len(lines) - at for at, line in enumerate(lines) if b"bytes lost: " in line]
    around = {max(1, count + nudge) for count in told for nudge in (-2, -1, 0, 1, 2, 3)}
    for count in {1, 2, *around, *counts, *range(1000, len(lines), len(lines) // 9), len(lines), len(lines) + 1}:
        assert last_of(log, count) == lines[-count:], f"the last {count}, where {told} tell what is lost"
    return lines


# --- where the last lines begin ---


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([b"ab", b"\n", b"c" * 40_000])).map(b"".join), st.integers(0, 12))
def test_the_last_lines_are_those_of_the_whole_log(log, data, count):
    """However long they are; an unfinished last one is one of them."""
    log.write_bytes(data)
    assert last_of(log, count) == (data.splitlines(keepends=True)[-count:] if count else [])


@pytest.mark.parametrize("odd", [0, 1])
def test_lines_are_counted_across_chunks(log, odd):
    """None is counted twice or not at all, wherever a chunk or a step begins."""
    data = b"x" * odd + b"a\n" * 1_500_000
    for written in (data, data[:-1]):
        log.write_bytes(written)
        with closing(StoredLog(log)) as stored:
            for count in (1, CHUNK_BYTES // 2, CHUNK_BYTES // 2 + 1, 140_000, MAX_STEP_BYTES, 1_499_999):
                assert offset_of_last(stored, count) == len(data) - 2 * count
            assert offset_of_last(stored, 1_500_001) == 0


@pytest.mark.parametrize("width", [7, 6])
def test_the_last_lines_of_a_rotated_log(log, width):
    """Through parts and live file."""
    data = numbered(width)
    assert len(rotate(log, data)) >= 3
    assert assert_last_are_those_of_all(log, counts=(29_999, 50_000)) == data.splitlines(keepends=True)


def one(log, parts):
    part_path(log, parts[1]).unlink()


def two(log, parts):
    part_path(log, parts[1]).unlink()
    part_path(log, parts[2]).unlink()


def the_oldest(log, parts):
    part_path(log, parts[0]).unlink()


def the_end(log, parts):
    part_path(log, parts[-1]).unlink()
    log.unlink()


def blocks(log, parts):
    """Two neighbours in the middle of a part, and the first of the whole log."""
    flip(part_path(log, parts[0]), place=200)
    with part_path(log, parts[1]).open("rb") as file:
        second = int.from_bytes(file.read(18)[16:], "little") + 1
        file.seek(second)
        third = second + int.from_bytes(file.read(18)[16:], "little") + 1
    flip(part_path(log, parts[1]), place=200)
    flip(part_path(log, parts[1]), place=second + 200)
    assert third < part_path(log, parts[1]).stat().st_size - 100


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("width", [7, 6])
@pytest.mark.parametrize("ruin", [one, two, the_oldest, the_end, blocks])
def test_the_last_lines_of_a_log_of_which_much_is_lost(log, width, ruin):
    """They are the last of those that reading all of it gives, the line that tells what is lost among them."""
    parts = rotate(log, numbered(width), turn_bytes=200_000)
    assert len(parts) == 3
    ruin(log, parts)
    lines = assert_last_are_those_of_all(log)
    assert any(b"bytes lost: " in line for line in lines) is (ruin is not the_oldest)


def test_what_is_lost_is_larger_than_what_is_looked_at_together(log):
    """Nothing can be read in many steps back, and the line that tells so counts once."""
    data = numbered(7, count=600_000)
    parts = rotate(log, data, turn_bytes=3 * MAX_STEP_BYTES)
    part_path(log, parts[1]).unlink()
    lines = assert_last_are_those_of_all(log)
    assert sum(b"bytes lost: " in line for line in lines) == 1


def test_what_is_lost_begins_where_a_step_begins(log):
    """It counts, though nobody sees there whether it began before."""
    parts = rotate(log, numbered(7), turn_bytes=200_000)
    step = parts[1] + 15 * CHUNK_BYTES  # the fourth step from there: each is twice as long as the last
    with closing(StoredLog(log)) as stored, log.open("ab") as file:
        file.write(b"0123456\n" * ((step - stored.end) // 8))
        file.flush()
        assert stored.end == step
    part_path(log, parts[1]).unlink()
    assert_last_are_those_of_all(log)


def test_the_last_lines_are_found_without_reading_the_rest(log):
    """Of a log of 100 MB."""
    with log.open("wb") as file:
        file.truncate(100 << 20)
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + b"0123456789abcde\n" * 1000)
    with closing(StoredLog(log)) as stored:
        before = bytes_read()
        offset = offset_of_last(stored, 3)
        assert bytes_read() - before < 2 * CHUNK_BYTES
        assert lines_from(stored, offset) == [b"0123456789abcde\n"] * 3


def test_no_byte_is_read_twice(log):
    """Also where most of the log is wanted."""
    log.write_bytes(b"0123456789abcde\n" * 500_000)
    with closing(StoredLog(log)) as stored:
        before = bytes_read()
        assert offset_of_last(stored, 499_999) == 16
        assert bytes_read() - before < 1.1 * log.stat().st_size


def bytes_read():
    """By this process, through system calls."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def test_memory_is_bounded(log):
    """Of a log that is one line."""
    log.touch()
    os.truncate(log, 40 * MAX_STEP_BYTES)
    with closing(StoredLog(log)) as stored:
        tracemalloc.start()
        assert offset_of_last(stored, 1) == 0
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak_bytes < 3 * MAX_STEP_BYTES


def test_where_nothing_can_be_read_there_are_no_lines(log):
    """The log is missing, is empty, or was removed with its parts; one that may not be read is no empty one."""
    assert last_of(log, 3) == []
    log.touch()
    assert last_of(log, 3) == []
    rotate(log, numbered(7))
    with closing(StoredLog(log)) as stored:
        assert stored.end > 0
        for path in log.parent.iterdir():
            path.unlink()
        assert lines_from(stored, offset_of_last(stored, 0)) == []
    log.mkdir()
    with pytest.raises(IsADirectoryError):
        last_of(log, 3)


# --- the last bytes ---


def test_the_last_bytes(log):
    """No more than were asked for, and none from before an offset."""
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


def test_the_last_bytes_of_a_rotated_log(log):
    """Through parts and live file; a line tells what of them is lost."""
    data = numbered(6)
    parts = rotate(log, data)
    assert tail(log, limit_bytes=len(data) - 5) == data[5:]
    part_path(log, parts[1]).unlink()
    begin = parts[1] - BLOCK_BYTES
    lost = f"\n[{parts[2] - parts[1]} bytes lost: ".encode()
    text = tail(log, limit_bytes=len(data) - begin)
    assert text.startswith(data[begin : parts[1]] + lost)
    assert text.endswith(data[parts[2] :])
    assert tail(log, limit_bytes=len(data) - parts[2] + 7).startswith(b"[7 bytes lost: ")


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
    log.write_bytes(b"\n \n")
    assert last_lines(log, 3) == []
    log.unlink()
    with pytest.raises(FileNotFoundError):
        last_lines(log, 3)


def test_the_last_lines_of_a_long_log(log):
    """Blank lines at its end do not count."""
    log.write_bytes(b"".join(b"line %d\n" % number for number in range(100_000)) + b"\n\n")
    assert last_lines(log, 3) == ["line 99997", "line 99998", "line 99999"]


def test_the_last_lines_from_an_offset_on(log):
    """What was written before it is left out, whether the log is short or long; in one that was cut it means nothing."""
    log.write_text("before\nafter\n")
    assert last_lines(log, 3, offset=7) == ["after"]
    assert last_lines(log, 3, offset=13) == []
    assert last_lines(log, 3, offset=1000) == ["before", "after"]
    log.write_text("before\n" + "x" * 100_000 + "\nafter\n")
    assert last_lines(log, 1, offset=7) == ["after"]
    assert len(last_lines(log, 2, offset=7)[0]) < TAIL_BYTES


def test_the_last_lines_of_little(log, tmp_path):
    """Empty and short logs give what there is; a missing one is no empty one."""
    with pytest.raises(FileNotFoundError):
        last_lines(tmp_path / "missing", 3)
    log.write_bytes(b"\n\n")
    assert last_lines(log, 3) == []
    log.write_bytes(b"\n\nonly")
    assert last_lines(log, 3)[-1:] == ["only"]
