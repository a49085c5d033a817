"""Compressed parts: read from any place, damaged only where they are damaged, and read by zcat."""

import gzip
import os
import random
import shutil
import subprocess
import sys
import tracemalloc
from contextlib import closing

import pytest

from launcher.logs.parts import BLOCK_BYTES, Part, held_bytes, write_part

START = 1000  # logical, of the part in its log
TEXT = b"".join(b"%07d\n" % number for number in range(40_000))
NOISE = random.Random(0).randbytes(2 * BLOCK_BYTES + 5)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "train.log.0000000000001000.gz"


@pytest.fixture
def opened(path):
    """Gives the part that holds some data; closes it at the end."""
    parts = []

    def made(data):
        write(path, data)
        parts.append(Part(path, START, START + len(data)))
        return parts[-1]

    yield made
    for part in parts:
        part.close()


def write(path, data):
    with path.open("wb") as file:
        write_part(file, [data[first : first + BLOCK_BYTES] for first in range(0, len(data), BLOCK_BYTES)])


def places_of(path):
    """Where each block begins in the file, as its header tells, the empty one at the end too; and the file's end."""
    data, places = path.read_bytes(), [0]
    while places[-1] < len(data):
        places.append(places[-1] + int.from_bytes(data[places[-1] :][16:18], "little") + 1)
    return places


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize(
    "data", [b"", b"x", TEXT, TEXT[:BLOCK_BYTES], TEXT[: BLOCK_BYTES + 1], NOISE, bytes(300_000)], ids=len
)
def test_a_part_is_what_others_can_decompress(path, data):
    """Whether its bytes can be compressed or not."""
    write(path, data)
    assert gzip.decompress(path.read_bytes()) == data
    if zcat := shutil.which("zcat"):
        assert subprocess.run([zcat, path], stdout=subprocess.PIPE, check=True).stdout == data


@pytest.mark.parametrize("data", [TEXT, NOISE], ids=["text", "noise"])
def test_any_place_is_read_to_the_end_of_its_block(opened, data):
    """In whatever order."""
    part = opened(data)
    chosen = random.Random(1)
    edges = [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, len(data) - 1]
    for place in [*edges, *(chosen.randrange(len(data)) for _ in range(50))]:
        end = min(len(data), place // BLOCK_BYTES * BLOCK_BYTES + BLOCK_BYTES)
        assert part.read(START + place) == data[place:end]


def test_a_place_far_into_a_part_is_found_by_headers(path, opened):
    """Nothing before it is decompressed: it is read though everything else is damaged."""
    part = opened(TEXT)
    places = places_of(path)
    assert len(places) > 5
    for place in places[:3]:
        flip(path, place + 100)
    assert part.read(START + 3 * BLOCK_BYTES) == TEXT[3 * BLOCK_BYTES : 4 * BLOCK_BYTES]
    with pytest.raises(ValueError, match="damaged"):
        part.read(START)


@pytest.mark.parametrize(("block", "nudge"), [(1, 18), (1, 100), (2, -8), (2, -1)])
def test_a_damaged_block(path, opened, block, nudge):
    """Only what it holds is lost, wherever in it a byte is wrong: in what was compressed, its sum or its length."""
    part = opened(TEXT)
    flip(path, places_of(path)[block] + nudge)
    with pytest.raises(ValueError, match="damaged"):
        part.read(START + BLOCK_BYTES)
    assert part.readable_from(START + BLOCK_BYTES + 7) == START + 2 * BLOCK_BYTES
    assert part.read(START) == TEXT[:BLOCK_BYTES]
    assert part.read(START + 2 * BLOCK_BYTES) == TEXT[2 * BLOCK_BYTES : 3 * BLOCK_BYTES]


@pytest.mark.parametrize("nudge", [0, 3, 12, 16, 17])
def test_a_damaged_header(path, opened, nudge):
    """Nobody knows where the next block begins: all that follows is lost, and nothing before."""
    part = opened(TEXT)
    flip(path, places_of(path)[1] + nudge)
    assert part.read(START) == TEXT[:BLOCK_BYTES]
    for number in (1, 2):
        with pytest.raises(ValueError, match=r"damaged|missing"):
            part.read(START + number * BLOCK_BYTES)
    assert part.readable_from(START + BLOCK_BYTES) == part.end


def test_damaged_neighbours_are_passed_over_together(path, opened):
    """To the next sound block, or to the end."""
    part = opened(TEXT)
    places = places_of(path)
    for place in places[1:3]:
        flip(path, place + 100)
    assert part.readable_from(START + BLOCK_BYTES) == START + 3 * BLOCK_BYTES
    for place in places[3:-2]:
        flip(path, place + 100)
    with closing(Part(path, START, part.end)) as part:
        assert part.readable_from(START + BLOCK_BYTES) == part.end == START + len(TEXT)


@pytest.mark.parametrize("left_bytes", [0, 5, 17, 100])
def test_a_part_whose_end_is_missing(path, opened, left_bytes):
    """What was cut off is told apart from what is there."""
    part = opened(TEXT)
    second = places_of(path)[1]
    path.write_bytes(path.read_bytes()[: second + left_bytes])
    assert part.read(START + 7) == TEXT[7:BLOCK_BYTES]
    with pytest.raises(ValueError, match="damaged" if left_bytes else "its end is missing"):
        part.read(START + BLOCK_BYTES)
    assert part.readable_from(START + BLOCK_BYTES) == part.end


def test_a_part_that_holds_more_or_less_than_it_should(path):
    """It is another one under this name."""
    write(path, TEXT)
    for size_bytes in (len(TEXT) - 1, len(TEXT) + 1):
        with closing(Part(path, START, START + size_bytes)) as part:
            assert part.read(START) == TEXT[:BLOCK_BYTES]
            with pytest.raises(ValueError, match="something else"):
                part.read(START + len(TEXT) - 2)


def test_a_block_that_would_become_too_large(path):
    """A small file cannot take all memory: nothing is decompressed beyond what a block holds."""
    with path.open("wb") as file:
        write_part(file, [bytes(200 * BLOCK_BYTES)])
    with closing(Part(path, 0, 200 * BLOCK_BYTES)) as part:
        tracemalloc.start()
        with pytest.raises(ValueError, match="damaged"):
            part.read(0)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak_bytes < 10 * BLOCK_BYTES


def test_a_part_that_is_not_there(path):
    """Nor is a directory of its name one."""
    with pytest.raises(FileNotFoundError):
        Part(path, 0, 1)
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        Part(path, 0, 1)


def test_a_pipe_is_no_part(path):
    """Nobody waits for whoever might write to it."""
    os.mkfifo(path)
    with pytest.raises(FileNotFoundError, match="no regular file"):
        Part(path, 0, 1)


@pytest.mark.parametrize("data", [b"", b"x", TEXT, NOISE, TEXT[:BLOCK_BYTES]], ids=len)
def test_how_much_a_part_holds(path, data):
    """As its blocks say; of one that was cut off, or is damaged, as far as they can be found."""
    write(path, data)
    assert held_bytes(path) == len(data)
    path.write_bytes(path.read_bytes()[:-30])
    assert held_bytes(path) == max(0, len(data) - 1) // BLOCK_BYTES * BLOCK_BYTES
    path.write_bytes(b"rubbish " * 10_000)
    assert held_bytes(path) == 0


WRITE_ON_A_FULL_DISK = """
import os, resource, signal, sys
from launcher.logs.parts import write_part

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    with open(sys.argv[1], "wb") as file:
        write_part(file, (os.urandom(60_000) for _ in range(10)))
except OSError as error:
    print(error.strerror)
"""


def test_a_part_that_cannot_be_written(path):
    """That is an error, and no shorter part."""
    told = subprocess.run([sys.executable, "-c", WRITE_ON_A_FULL_DISK, path], stdout=subprocess.PIPE, check=True).stdout
    assert told == b"File too large\n"


def test_a_closed_part_may_be_closed_again(opened):
    """Nothing stays open."""
    part = opened(TEXT)
    part.close()
    part.close()
