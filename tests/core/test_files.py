"""Files that anybody may have put where they are read: nothing but regular ones is opened, and no more is read than allowed."""

import os
import socket
from contextlib import suppress

import pytest

from launcher.core.regular_files import open_regular, read_regular


def a_socket(path):
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)


def link(target):
    return lambda path: path.symlink_to(target)


@pytest.mark.parametrize("reads", [open_regular, lambda path: read_regular(path, 100)], ids=["open", "read"])
@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, a_socket, *map(link, ("/dev/zero", "/dev/ptmx", "/dev/tty", "/nowhere", "/"))]
)
def test_what_is_no_regular_file_is_not_waited_for(tmp_path, monkeypatch, make, reads):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "file")
    with pytest.raises(OSError, match=r"not a regular file|Is a directory|No such file"):
        reads(tmp_path / "file")


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_name_that_no_file_can_have(name):
    with pytest.raises(OSError, match="NUL character or a surrogate"):
        read_regular(name, 100)


def test_a_larger_file_is_not_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100_000)
    assert read_regular(path, 100_000) == b"x" * 100_000
    for size in (100_001, 8 << 30):
        os.truncate(path, size)
        with pytest.raises(OSError, match="more than 100000 bytes"):
            read_regular(path, 100_000)


def test_no_descriptor_is_left(tmp_path):
    def held():
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - of this process

    (tmp_path / "file").write_bytes(b"1")
    before = held()
    for name in ("file", "."):
        for _ in range(3):
            with suppress(OSError):
                read_regular(tmp_path / name, 0)
    assert held() == before
