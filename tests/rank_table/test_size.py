"""Files by their size: too large ones are refused early; and how they are replaced."""

import io
import os
import stat
import tracemalloc
from pathlib import Path

import pytest

from launcher.core.errors import UnreadableError, UsageError
from launcher.rank_table import parse_rank_table, read_rank_table
from launcher.rank_table.table_reader import MAX_TABLE_BYTES, overwrite, read_bytes, read_stream

MIB = 1 << 20


def test_a_file_that_is_too_large_is_refused_unread(tmp_path):
    path = tmp_path / "table.json"
    with path.open("wb") as file:
        file.truncate(MAX_TABLE_BYTES + 1)
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableError, match="40 MiB") as raised:
            read_rank_table(path)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "--max-table-size 41M" in raised.value.hint
    assert peak_bytes < MIB


def test_a_file_as_large_as_allowed_is_read(tmp_path):
    path = tmp_path / "table.json"
    path.write_bytes(b" " * 2048)
    assert len(read_bytes(path, 2048)) == 2048
    with pytest.raises(UnreadableError):
        read_bytes(path, 2047)


def test_a_stream_without_end_is_left_at_the_limit():
    with pytest.raises(UnreadableError, match="more than 1 MiB"), Path("/dev/zero").open("rb") as zeros:
        read_stream(zeros, "/dev/zero", MIB)
    with pytest.raises(UnreadableError, match="/dev/zero"):
        read_rank_table(Path("/dev/zero"), max_bytes=MIB)
    assert read_stream(io.BytesIO(b"x" * MIB), "it", MIB) == b"x" * MIB


def test_data_of_short_values_is_no_table(table, tmp_path):
    """A million short values are some other file; a table with as many is none, for it spends more on each of them."""
    path = tmp_path / "data.json"
    for short in (b"12345, ", b"1,"):  # the second is no list of hosts called by numbers either
        (problem,) = parse_rank_table(b"[" + short * 1_000_000 + b"1]", path).errors
        assert problem.code == "RT117"
    numbers = ", ".join(f'"{number:012}"' for number in range(1_000_001))
    assert "RT117" not in {problem.code for problem in parse_rank_table(f"[{numbers}]".encode(), path).problems}


@pytest.mark.parametrize("mode", [0o640, 0o600, 0o666, 0o755])
def test_mode_is_kept(tmp_path, mode):
    """The new file has the permissions of the old one, whatever the umask says, and nothing is left beside it."""
    path = tmp_path / "table.json"
    path.write_bytes(b"old")
    path.chmod(mode)
    overwrite(path, b"old", b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert list(tmp_path.iterdir()) == [path]


def test_link_stays_a_link(tmp_path):
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "real.json", tmp_path / "link.json"
    target.write_bytes(b"old")
    link.symlink_to("there/real.json")
    overwrite(link, b"old", b"new")
    assert str(link.readlink()) == "there/real.json"
    assert target.read_bytes() == b"new"


@pytest.mark.parametrize(("make", "error", "reason"), [
    (lambda path: path.write_bytes(b"theirs"), UnreadableError, "changed by another program"),
    (lambda path: None, UnreadableError, "cannot be replaced"),
    (os.mkfifo, UsageError, "not a regular file"),
], ids=["changed", "gone", "pipe"])  # fmt: skip
def test_what_is_not_the_file_that_was_read_is_left_alone(make, error, reason, tmp_path):
    path = tmp_path / "table.json"
    make(path)
    before = list(tmp_path.iterdir())
    with pytest.raises(error, match=reason):
        overwrite(path, b"old", b"new")
    assert list(tmp_path.iterdir()) == before
    assert not path.is_file() or path.read_bytes() == b"theirs"
