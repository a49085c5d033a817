"""What stands where of a log: the index is read as it was written, or not at all."""

import json
import os
import subprocess
import sys
from dataclasses import replace as changed

import pytest

from launcher.logs.index import (
    PLAIN,
    Index,
    describes,
    flush_names,
    index_path,
    is_marked,
    noted,
    parse,
    part_path,
    part_starts,
    rebuilt,
    renewed,
    save,
    settled,
)
from launcher.logs.parts import BLOCK_BYTES, write_part

WHOLE = Index(base=50, freed=200, parts=(0, 100), kept_bytes=30, head=7, renewals=2, marker="[marker]")


@pytest.fixture
def log(tmp_path):
    return tmp_path / "train.log"


@pytest.fixture
def live(log):
    """The log, open to read and to write."""
    descriptor = os.open(log, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    yield descriptor
    os.close(descriptor)


def files_of(log):
    return sorted(path.name for path in log.parent.iterdir())


# --- the file ---


@pytest.mark.parametrize("index", [PLAIN, WHOLE])
def test_an_index_is_read_as_it_was_written(log, index):
    """Beside its log, and nothing else is left there."""
    save(log, index)
    assert parse(index_path(log).read_bytes()) == index
    assert files_of(log) == ["train.log.parts.json"]


def test_an_index_is_another_file_every_time(log):
    """By that readers know that it has changed, though its size and time may be the same."""
    save(log, WHOLE)
    with index_path(log).open("rb") as before:
        save(log, WHOLE)
        assert not os.path.samestat(os.fstat(before.fileno()), index_path(log).stat())


def test_an_index_half_of_which_was_written_is_none(log):
    """Wherever it ends."""
    save(log, WHOLE)
    text = index_path(log).read_bytes().rstrip()
    for size_bytes in range(len(text)):
        with pytest.raises(ValueError, match=r"."):
            parse(text[:size_bytes])


@pytest.mark.parametrize(
    "text",
    ["", "[]", "7", "null", "\x00\x00", '{"schema": 2, "parts": []}', '{"parts": []}', '{"schema": 1}'],
)
def test_what_is_no_index(text):
    """Nor one of a later version."""
    with pytest.raises(ValueError, match=r"."):
        parse(text.encode())


@pytest.mark.parametrize(
    "odd",
    [
        {"base": 201},
        {"base": -1},
        {"freed": "200"},
        {"freed": 1.5},
        {"parts": [100, 0]},
        {"parts": [0, 0]},
        {"parts": [-5, 100]},
        {"parts": [0, 200]},
        {"parts": [0, 300]},
        {"parts": None},
        {"parts": "ab"},
        {"parts": [True]},
        {"kept_bytes": -1},
        {"head": None},
        {"renewals": -1},
        {"marker": 3},
    ],
)
def test_an_index_that_contradicts_itself(log, odd):
    """Nobody can say where anything is by it."""
    save(log, WHOLE)
    fields = json.loads(index_path(log).read_bytes())
    with pytest.raises(ValueError, match="an index"):
        parse(json.dumps({**fields, **odd}).encode())


@pytest.mark.parametrize("text", ["[" * 50_000, '{"a":' * 50_000])
def test_an_index_that_is_nested_deeply(text):
    """It is none, and no reason to give up."""
    with pytest.raises(ValueError, match="not an index"):
        parse(text.encode())


def test_an_index_whose_marker_is_no_text(log):
    """Nothing can begin with it."""
    save(log, WHOLE)
    fields = json.loads(index_path(log).read_bytes())
    with pytest.raises(ValueError, match="not an index"):
        parse(json.dumps({**fields, "marker": "\ud800"}).encode())


def test_an_index_with_more_than_we_know(log):
    """What a later version added to it is left out."""
    save(log, WHOLE)
    assert parse(json.dumps({**json.loads(index_path(log).read_bytes()), "later": 1}).encode()) == WHOLE


SAVE_ON_A_FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from launcher.logs.index import Index, save

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))
try:
    save(Path(sys.argv[1]), Index(freed=300, parts=(0,)))
except OSError as error:
    print(error.strerror)
"""


def test_an_index_that_cannot_be_written(log):
    """The old one stays, whole, and no half of a new one is left."""
    save(log, WHOLE)
    told = subprocess.run([sys.executable, "-c", SAVE_ON_A_FULL_DISK, log], stdout=subprocess.PIPE, check=True).stdout
    assert told == b"File too large\n"
    assert parse(index_path(log).read_bytes()) == WHOLE
    assert files_of(log) == ["train.log.parts.json"]


def test_names_are_flushed_of_a_directory_that_is_there(log):
    """One that was removed is no success."""
    flush_names(log)
    with pytest.raises(FileNotFoundError):
        flush_names(log.parent / "missing" / "train.log")


def test_parts_stand_in_the_order_in_which_they_were_written(log):
    """By name, as `zcat train.log.*.gz` reads them."""
    starts = [0, 9, 10, 1 << 20, 10**15]
    names = [part_path(log, start).name for start in starts]
    assert sorted(names) == names
    assert names[1] == "train.log.0000000000000009.gz"


# --- whether it holds ---


def test_a_log_that_only_grew_is_known_again(log, live):
    """By what was in it when that was noted."""
    log.write_bytes(b"x" * 10 + b"one\ntwo\n")
    index = noted(Index(base=90, freed=100), live, 18)
    assert (index.hole_bytes, index.kept_bytes, index.noted_end) == (10, 8, 108)
    assert describes(index, live, 18)
    with log.open("ab") as file:
        file.write(b"three\n")
    assert describes(index, live, log.stat().st_size)


def test_a_long_log_that_was_cut_short_is_another(log, live):
    """Though it begins as it did."""
    log.write_bytes(b"a" * 1_000_000)
    index = noted(PLAIN, live, 1_000_000)
    os.truncate(live, 999_999)
    assert not describes(index, live, 999_999)


@pytest.mark.parametrize("now", [b"", b"x" * 10, b"x" * 10 + b"one\ntw", b"x" * 10 + b"one\ntwO\nand more\n"])
def test_a_log_that_was_emptied_or_made_again_is_known_to_be_another(log, live, now):
    """However long it has become."""
    log.write_bytes(b"x" * 10 + b"one\ntwo\n")
    index = noted(Index(base=90, freed=100), live, 18)
    log.write_bytes(now)
    assert not describes(index, live, len(now))


def test_what_is_in_the_hole_does_not_count(log, live):
    """Its bytes are in parts: they may be there still, or be freed."""
    log.write_bytes(b"x" * 10 + b"one\ntwo\n")
    index = noted(Index(base=90, freed=100), live, 18)
    os.pwrite(live, bytes(10), 0)
    assert describes(index, live, 18)


def test_only_the_beginning_of_what_was_noted_is_compared(log, live):
    """Of a long log, so that nobody reads all of it."""
    log.write_bytes(b"a" * 1_000_000)
    index = noted(PLAIN, live, 1_000_000)
    os.pwrite(live, b"b", 900_000)
    assert describes(index, live, 1_000_000)
    os.pwrite(live, b"b", 0)
    assert not describes(index, live, 1_000_000)


def test_a_log_that_is_another_one_goes_on_where_the_last_one_ended():
    """No new part can take the name of an old one, and how often that happened is counted."""
    after = renewed(WHOLE)
    assert (after.base, after.freed, after.parts) == (230, 230, ())
    assert after.renewals == WHOLE.renewals + 1
    assert parse(json.dumps({"schema": 1, "parts": [], "base": 230, "freed": 230, "renewals": 3}).encode()) == after


def test_whether_bytes_were_cut_out_is_told_by_the_marker(log, live):
    """Whoever was interrupted before the cut, or between it and the note of it."""
    log.write_bytes(b"[marker]" + b"x" * 142 + b"kept\n")
    assert is_marked(WHOLE, live)
    assert settled(WHOLE, marked=True) == WHOLE
    log.write_bytes(b"kept\n")
    assert not is_marked(WHOLE, live)
    assert settled(WHOLE, marked=False) == changed(WHOLE, base=200, marker=None)


@pytest.mark.parametrize("data", [b"", b"[mark", b"x[marker]"])
def test_where_there_is_no_marker(log, live, data):
    """Nothing is marked by none, and nothing has to be settled."""
    log.write_bytes(data)
    assert not is_marked(WHOLE, live)
    plain = changed(WHOLE, marker=None)
    assert not is_marked(plain, live)
    assert settled(plain, marked=False) == plain


# --- where it is missing ---

TEXT = b"".join(b"%07d\n" % number for number in range(20_000))


def put_part(log, start, data):
    with part_path(log, start).open("wb") as file:
        write_part(file, [data[first : first + BLOCK_BYTES] for first in range(0, len(data), BLOCK_BYTES)])


def test_without_parts_it_is_not_missed(log, live):
    """Nor without a log; other files are no parts."""
    assert rebuilt(log, None) == PLAIN
    log.with_name("train.log.17.gz").touch()
    log.with_name("train.log.0000000000000000.gz.partial").touch()
    log.with_name("env.log.0000000000000000.gz").touch()
    assert (part_starts(log), rebuilt(log, live)) == ([], PLAIN)
    assert rebuilt(log.parent / "missing" / "train.log", None) == PLAIN


def test_it_is_rebuilt_from_the_parts(log, live):
    """By their names, and by how much the last one holds; the live file goes on there, cut or with a hole."""
    put_part(log, 0, TEXT[:100_000])
    put_part(log, 100_000, TEXT[100_000:150_000])
    log.write_bytes(TEXT[150_000:])
    expected = noted(Index(base=150_000, freed=150_000, parts=(0, 100_000)), live, 10_000)
    assert rebuilt(log, live) == expected
    assert rebuilt(log, None) == changed(expected, kept_bytes=0, head=0)
    os.truncate(live, 0)
    os.pwrite(live, b"more\n", 1 << 20)
    index = rebuilt(log, live)
    if index.hole_bytes:  # not every file system tells of holes
        assert (index.hole_bytes, index.freed, index.kept_bytes) == (1 << 20, 1 << 20, 5)


def test_a_part_whose_bytes_are_in_the_log_still(log, live):
    """Whoever wrote it was killed before noting it: it counts for nothing."""
    put_part(log, 0, TEXT[:100_000])
    put_part(log, 100_000, TEXT[100_000:150_000])
    log.write_bytes(TEXT[100_000:])
    index = rebuilt(log, live)
    assert (index.base, index.freed, index.parts) == (100_000, 100_000, (0,))
    assert describes(index, live, log.stat().st_size)
    part_path(log, 0).unlink()
    part_path(log, 100_000).rename(part_path(log, 0))
    assert rebuilt(log, live).parts == ()


@pytest.mark.parametrize(
    "ruin", [lambda part: part.write_bytes(b"x" * 100), lambda part: (part.unlink(), part.mkdir())]
)
def test_a_last_part_that_tells_nothing(log, live, ruin):
    """It is not forgotten, though nobody knows how much it held."""
    put_part(log, 0, TEXT[:100_000])
    put_part(log, 100_000, TEXT[100_000:])
    ruin(part_path(log, 100_000))
    log.write_bytes(b"more\n")
    index = rebuilt(log, live)
    assert (index.parts, index.freed, index.base) == ((0, 100_000), 100_001, 100_001)
