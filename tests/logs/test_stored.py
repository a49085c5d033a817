"""A log as one sequence of bytes: plain, partly in parts, damaged, emptied, made again."""

import errno
import gzip
import os
import random
import shutil
import tracemalloc
import zlib
from contextlib import closing, suppress

import pytest

from launcher.logs.index import index_path, part_path
from launcher.logs.lines import Splitter
from launcher.logs.parts import BLOCK_BYTES
from launcher.logs.rotation import Rotator
from launcher.logs.stored import StoredLog

DATA = b"".join(b"%07d\n" % number for number in range(150_000))


@pytest.fixture
def log(tmp_path):
    return tmp_path / "train.log"


@pytest.fixture
def stored(log):
    made = StoredLog(log)
    yield made
    made.close()


@pytest.fixture
def rotated(log):
    """DATA, in four parts and the live file; the logical offsets at which these begin."""
    return rotate(log, DATA)


def rotate(log, data):
    """Write `data`, so that it is moved into parts; where these begin."""
    rotator = Rotator({0: log}, 200_000)
    for first in range(0, len(data), 300_000):
        append(log, data[first : first + 300_000])
        rotator.step()
        if rotator.warnings():
            pytest.skip("the file system cannot free the start of a file")
    return [int(path.name.split(".")[2]) for path in sorted(log.parent.glob("*.gz"))]


def append(log, data):
    with log.open("ab") as file:
        file.write(data)


def everything(stored, offset=0):
    return b"".join(chunk for _, chunk in stored.chunks(offset))


def damage(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 0xFF
    path.write_bytes(data)


def test_a_plain_log(log, stored):
    """Without parts a log is a file; before it exists it is empty."""
    assert (stored.start, stored.end, stored.read(0)) == (0, 0, b"")
    append(log, b"one\n")
    assert (stored.start, stored.end, stored.read(0), stored.read(2, 1)) == (0, 4, b"one\n", b"e")
    assert stored.next_offset == 3
    append(log, b"two\n")
    assert (stored.end, stored.read(4), stored.read(8), stored.read(1000)) == (8, b"two\n", b"", b"")
    assert stored.renewals == 0


def test_a_log_that_may_not_be_read(log, stored):
    """That is an error, and no empty log."""
    log.mkdir()
    with pytest.raises(OSError, match="directory"):
        stored.read(0)


def test_a_log_that_is_emptied(log, stored):
    """It is told once, with nothing read; then it is read from its start."""
    append(log, b"a long line\n")
    assert stored.read(0) == b"a long line\n"
    os.truncate(log, 0)
    append(log, b"new\n")
    assert (stored.read(12), stored.next_offset, stored.renewals) == (b"", 0, 1)
    assert stored.read(0) == b"new\n"
    assert stored.renewals == 1


def test_a_log_that_is_made_again(log, stored):
    """The old file is read to its end, then the new one, though that is longer."""
    append(log, b"one\ntwo\n")
    assert stored.read(0, 4) == b"one\n"
    log.unlink()
    append(log, b"a longer first line\n")
    assert stored.read(4) == b"two\n"
    assert (stored.read(8), stored.next_offset, stored.renewals) == (b"", 0, 1)
    assert stored.read(0) == b"a longer first line\n"
    log.unlink()
    assert stored.read(20) == b""
    append(log, b"third\n")
    assert (stored.start, stored.end, stored.renewals) == (0, 6, 2)


def test_any_place_of_a_rotated_log(log, stored, rotated):
    """Every offset and every limit gives what was written there, through parts and live file."""
    assert len(rotated) == 4
    assert (stored.start, stored.end) == (0, len(DATA))
    assert everything(stored) == DATA
    chosen = random.Random(0)
    edges = [edge + nudge for edge in (*rotated, BLOCK_BYTES, len(DATA)) for nudge in (-1, 0, 1)]
    for offset in [*edges, *(chosen.randrange(len(DATA)) for _ in range(300))]:
        limit = chosen.choice([1, 10, 70_000])
        data = stored.read(max(0, offset), limit)
        assert data == DATA[max(0, offset) : max(0, offset) + len(data)]
        assert 0 < len(data) <= limit or offset >= len(DATA)
        assert stored.next_offset == max(0, offset) + len(data)


def test_a_log_is_rotated_while_it_is_open(log, stored):
    """Offsets stay what they are, whatever is moved."""
    append(log, DATA[:100_000])
    assert stored.read(50_000, 8) == DATA[50_000:50_008]
    Rotator({0: log}, 30_000).step()
    assert stored.read(50_000, 8) == DATA[50_000:50_008]
    assert (stored.start, stored.end, stored.renewals) == (0, 100_000, 0)
    assert everything(stored) == DATA[:100_000]


def test_a_live_file_that_is_gone(log, rotated):
    """Its parts can be read still."""
    log.unlink()
    stored = StoredLog(log)
    assert everything(stored) == DATA[: stored.end]
    assert rotated[-1] < stored.end < len(DATA)
    stored.close()


def test_reading_on_decompresses_nothing_twice(log, rotated, stored, monkeypatch):
    """Small pieces from a block cost one decompression; a place far into a part costs no other block."""
    made = []
    decompressor = zlib.decompressobj
    monkeypatch.setattr(zlib, "decompressobj", lambda *options: made.append(1) or decompressor(*options))
    offset = 2 * BLOCK_BYTES + 100
    for _ in range(200):
        assert stored.read(offset, 100) == DATA[offset : offset + 100]
        offset = stored.next_offset
    assert len(made) == 1


def test_memory_is_bounded(log):
    """A part may be large: reading anywhere in it takes the memory of a few blocks."""
    for _ in range(20):
        append(log, DATA)
    Rotator({0: log}, 100_000).step()
    stored = StoredLog(log)
    stored.read(0)
    tracemalloc.start()
    for offset in (0, 10_000_000, 22_999_000, 5):
        place = offset % len(DATA)
        assert stored.read(offset, 1000) == DATA[place : place + 1000]
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    stored.close()
    assert peak_bytes < 10 * BLOCK_BYTES


def test_a_damaged_block(log, rotated, stored):
    """Only its bytes are lost; a line in their place says how many, and everything around is read."""
    part = part_path(log, rotated[1])
    damage(part, 5000)
    text = everything(stored)
    first, second = rotated[1], rotated[1] + BLOCK_BYTES
    notice = f"[{BLOCK_BYTES} bytes lost: {part.name}: it is damaged]\n".encode()
    assert text == DATA[:first] + notice + DATA[second:]
    assert stored.lost_bytes == 0
    assert stored.read(first + 100, 8).startswith(b"[%d bytes lost: " % (BLOCK_BYTES - 100))
    assert (stored.next_offset, stored.lost_bytes) == (second, BLOCK_BYTES - 100)


@pytest.mark.parametrize(
    ("ruin", "reason"),
    [
        (lambda part: part.unlink(), "No such file or directory"),
        (lambda part: part.write_bytes(b""), "its end is missing"),
        (lambda part: part.write_bytes(b"rubbish " * 10_000), "it is damaged"),
        (lambda part: part.write_bytes(gzip.compress(DATA)), "it is damaged"),
        (lambda part: damage(part, 1), "it is damaged"),
        (lambda part: (part.unlink(), part.mkdir()), "Is a directory"),
        (lambda part: (part.unlink(), os.mkfifo(part)), "no regular file"),
    ],
)
def test_a_part_that_cannot_be_read(log, rotated, stored, ruin, reason):
    """A line says so in its place, and everything around is read."""
    part = part_path(log, rotated[1])
    ruin(part)
    text = everything(stored)
    notice = f"[{rotated[2] - rotated[1]} bytes lost: {part.name}: {reason}]\n".encode()
    assert text == DATA[: rotated[1]] + notice + DATA[rotated[2] :]


def test_what_is_lost_behind_half_a_line(log, stored):
    """For whoever has read that half, what says so begins a line of its own; for nobody else is there an empty one."""
    data = b"odd" + DATA
    starts = rotate(log, data)
    part_path(log, starts[1]).unlink()
    notice = b"[%d bytes lost: %s: No such file or directory]\n" % (
        starts[2] - starts[1],
        part_path(log, starts[1]).name.encode(),
    )
    assert not data[: starts[1]].endswith(b"\n")
    assert everything(stored) == data[: starts[1]] + b"\n" + notice + data[starts[2] :]
    assert stored.read(starts[1]) == notice


def test_what_is_no_longer_kept_behind_half_a_line(log, stored, rotated):
    """Whoever reads a log while its oldest part is removed sees where its lines are torn."""
    assert stored.read(0, 5) == DATA[:5]
    part_path(log, rotated[0]).unlink()
    append(log, DATA)
    Rotator({0: log}, 200_000).step()
    assert (stored.read(5), stored.next_offset) == (b"\n", 5)
    assert stored.read(5) == b"[%d bytes lost: no longer kept]\n" % (rotated[1] - 5)
    assert stored.next_offset == rotated[1]


def test_reading_up_to_an_offset(stored, rotated):
    """Through parts and live file, and nothing of what stands behind it."""
    for begin, end in [(5, 5), (5, 6), (rotated[1] - 3, rotated[2] + 3), (rotated[3], len(DATA)), (9, 2 * len(DATA))]:
        chunks = list(stored.chunks(begin, end))
        assert b"".join(chunk for _, chunk in chunks) == DATA[begin:end]
        assert all(DATA[offset:].startswith(chunk) for offset, chunk in chunks)


def test_a_part_that_is_cut_short(log, rotated, stored):
    """What is there is read."""
    part = part_path(log, rotated[1])
    os.truncate(part, part.stat().st_size - 2000)
    text = everything(stored)
    kept = (rotated[2] - rotated[1]) // BLOCK_BYTES * BLOCK_BYTES
    assert text.startswith(DATA[: rotated[1] + kept] + b"[")
    assert text.endswith(b"]\n" + DATA[rotated[2] :])


def test_parts_that_hold_something_else(log, rotated, stored):
    """A part under the name of another one is not taken for it where its size differs."""
    part_path(log, rotated[0]).replace(part_path(log, rotated[1]))
    text = everything(stored, rotated[1])
    assert b"bytes lost: " in text
    assert text.endswith(b"]\n" + DATA[rotated[2] :])


def test_any_damage_to_a_part(log, rotated):
    """Wherever a byte is changed, nothing wrong is given: every line is one that was written, or says what is lost."""
    part = part_path(log, rotated[1])
    sound = part.read_bytes()
    chosen = random.Random(0)
    for place in [*range(30), *(chosen.randrange(len(sound)) for _ in range(30)), len(sound) - 1]:
        damage(part, place)
        stored = StoredLog(log)
        text = everything(stored)
        stored.close()
        before, notice, after = text.partition(b"[")
        assert DATA.startswith(before)
        assert DATA.endswith(after.partition(b"]\n")[2])
        assert notice or text == DATA
        part.write_bytes(sound)


def test_the_oldest_parts_are_removed(log, rotated):
    """The log then begins later; from before that on a line says what is not there."""
    part_path(log, rotated[0]).unlink()
    stored = StoredLog(log)
    assert stored.start == rotated[1]
    assert everything(stored, stored.start) == DATA[rotated[1] :]
    assert everything(stored).startswith(b"[%d bytes lost: no longer kept]\n" % rotated[1] + DATA[rotated[1] :][:100])
    stored.close()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1}', "[" * 5000, "\udcff"])
def test_an_index_that_makes_no_sense(log, stored, rotated, text):
    """The names of the parts tell enough: everything is read, and what is written from now on."""
    assert stored.read(0, 8) == DATA[:8]
    index_path(log).unlink()
    index_path(log).write_bytes(text.encode(errors="surrogateescape"))
    assert everything(stored, stored.start) == DATA
    append(log, b"more\n")
    assert (stored.read(len(DATA)), stored.renewals) == (b"more\n", 0)
    with closing(StoredLog(log)) as opened:
        assert everything(opened) == DATA + b"more\n"


def test_an_index_that_is_gone(log, stored, rotated):
    """It is not missed, before it is looked for or afterwards; but a log that is emptied then begins anew."""
    assert stored.read(0, 8) == DATA[:8]
    index_path(log).unlink()
    assert everything(stored) == DATA
    with closing(StoredLog(log)) as opened:
        assert everything(opened) == DATA
    os.truncate(log, 0)
    append(log, b"new\n")
    assert (stored.start, stored.renewals) == (len(DATA), 1)
    assert everything(stored, stored.start) == b"new\n"


@pytest.mark.parametrize("kind", [os.mkdir, os.mkfifo])
def test_something_else_in_the_place_of_an_index(log, rotated, kind):
    """That is an error every time, and no reason to take the log for one without parts."""
    kept = index_path(log).rename(log.with_name("kept"))
    kind(index_path(log))
    with closing(StoredLog(log)) as stored:
        for _ in range(3):
            with pytest.raises(OSError, match=r"."):
                stored.read(0)
        index_path(log).rename(log.with_name("odd"))
        kept.rename(index_path(log))
        assert (everything(stored), stored.renewals) == (DATA, 0)


def failing_once(monkeypatch, name, fails, error):
    """The next system call `name` for whose arguments `fails` raises `error`."""
    original, left = getattr(os, name), [error]

    def call(*arguments, **options):
        if left and fails(*arguments):
            raise left.pop()
        return original(*arguments, **options)

    monkeypatch.setattr(os, name, call)


def test_an_index_that_cannot_be_read_once(log, rotated, monkeypatch):
    """Afterwards it is gone by as before."""

    def is_index(descriptor, *_):
        return os.path.samestat(os.fstat(descriptor), index_path(log).stat())

    failing_once(monkeypatch, "pread", is_index, OSError(errno.EIO, "Input/output error"))
    with closing(StoredLog(log)) as stored:
        with pytest.raises(OSError, match="Input/output"):
            stored.read(0)
        assert (everything(stored), stored.renewals) == (DATA, 0)


def test_a_log_whose_place_a_directory_takes_for_a_while(log, stored):
    """Once there is a file again, it is read from its start."""
    append(log, b"one\n")
    assert stored.read(0) == b"one\n"
    renewals = stored.renewals
    log.unlink()
    log.mkdir()
    for _ in range(3):
        with suppress(IsADirectoryError):
            stored.read(stored.next_offset)
    log.rmdir()
    append(log, b"a longer line\n")  # which may get the directory's inode
    assert stored.read(4) == b""
    assert (stored.next_offset, stored.renewals > renewals) == (0, True)
    assert stored.read(0) == b"a longer line\n"


def test_a_file_that_is_replaced_on_another_machine(log, stored, monkeypatch):
    """A network file system then says of the old one that it is stale; one that fails once and stays is read on."""
    append(log, b"one\ntwo\n")
    assert stored.read(0, 4) == b"one\n"
    for kept in (True, False):
        failing_once(monkeypatch, "pread", lambda *_: True, OSError(errno.ESTALE, "Stale file handle"))
        with pytest.raises(OSError, match="Stale"):
            stored.read(4)
        if not kept:
            log.rename(log.with_name("old"))
            append(log, b"a longer line\n")
        assert stored.read(4) == (b"two\n" if kept else b"")
        assert stored.renewals == (0 if kept else 1)
    assert stored.read(stored.next_offset) == b"a longer line\n"


def test_what_is_left_out_of_a_log_that_was_emptied(log, rotated):
    """A line tells of it to whoever begins where it began, and of the parts that are still there."""
    for refill in (b"", b"new\n", DATA):
        os.truncate(log, 0)
        append(log, refill)
        with closing(StoredLog(log)) as stored:
            begin, start = stored.told_from, stored.start
            notice = b"[%d bytes left out: the log was emptied, or made again; zcat reads train.log.*.gz]\n" % start
            assert (begin, everything(stored, begin)) == (0, notice + refill)
            assert everything(stored, start) == refill
        Rotator({0: log}, 200_000).step()
    for path in log.parent.glob("*.gz"):
        if int(path.name.split(".")[2]) < start:
            path.unlink()
    with closing(StoredLog(log)) as stored:
        assert stored.told_from == stored.start


def test_what_is_left_out_of_a_log_whose_oldest_part_is_gone(log, rotated):
    """Whoever begins where that began is told, as of any other part."""
    part_path(log, rotated[0]).unlink()
    with closing(StoredLog(log)) as stored:
        assert (stored.told_from, stored.start) == (0, rotated[1])


def test_nothing_is_left_out(log, stored):
    """Of a log without parts, nor of one with all of them."""
    assert stored.told_from == 0
    rotate(log, DATA)
    assert (stored.told_from, stored.start) == (0, 0)


def test_a_part_that_may_not_be_read(log, stored, rotated, monkeypatch):
    """Its bytes are not lost; it is told why they cannot be read, also afterwards."""
    part = part_path(log, rotated[1])
    failing_once(monkeypatch, "open", lambda path, *_: str(path) == str(part), PermissionError(errno.EACCES, "Denied"))
    notice = f"[{rotated[2] - rotated[1]} bytes cannot be read: {part.name}: Denied]\n".encode()
    assert everything(stored) == DATA[: rotated[1]] + notice + DATA[rotated[2] :]
    assert stored.trouble == f"{part.name}: Denied"
    assert everything(stored) == DATA


def test_where_a_notice_stands(log):
    """At the offset of the first byte that is lost, though a newline ends what was before it."""
    data = b"odd" + DATA
    starts = rotate(log, data)
    part_path(log, starts[1]).unlink()
    splitter = Splitter(0)
    with closing(StoredLog(log)) as stored:
        lines = [line for offset, chunk in stored.chunks(0) for line in splitter.put(offset, chunk)]
    (notice,) = (number for number, line in enumerate(lines) if line.raw.startswith(b"["))
    assert [line.offset for line in lines[notice : notice + 2]] == [starts[1], starts[2]]
    assert lines[notice - 1].raw == data[: starts[1]].rpartition(b"\n")[2]


def test_closing_twice(log, stored, rotated):
    """Nothing stays open, and it may be said again."""
    stored.read(0)
    stored.close()
    stored.close()


def test_a_rotated_log_whose_directory_is_removed_is_not_read_again(tmp_path):
    """Index and log go together; what is open goes on where it was."""
    log = tmp_path / "device0" / "train.log"
    log.parent.mkdir()
    log.write_bytes(b"".join(b"%07d\n" % number for number in range(10_000)))
    Rotator({0: log}, 20_000).step()
    with closing(StoredLog(log)) as stored:
        seen = b"".join(chunk for _, chunk in stored.chunks(0))
        offset = stored.next_offset
        shutil.rmtree(log.parent)
        assert stored.read(offset) == b""
        assert stored.next_offset == offset == len(seen) == 80_000


def test_a_rotated_log_that_is_emptied_and_outgrows_what_it_was(tmp_path):
    """What is in it now is another text, however long it has become; it is read from its start."""
    log = tmp_path / "train.log"
    log.write_bytes(b"".join(b"%07d\n" % number for number in range(10_000)))
    Rotator({0: log}, 20_000).step()
    with closing(StoredLog(log)) as stored:
        for _ in stored.chunks(0):
            pass
        offset = stored.next_offset
        os.truncate(log, 0)
        other = b"".join(b"%07d!\n" % number for number in range(10_000))
        log.write_bytes(other)
        assert stored.read(offset) == b""
        assert b"".join(chunk for _, chunk in stored.chunks(stored.next_offset)) == other
