"""A repaired file takes the place of the old one, or the old one stays as it was."""

from __future__ import annotations

import os
import stat

import pytest

from launcher.core.errors import UnreadableError, UsageError
from launcher.rank_table.read import overwrite


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
    """The file that a symbolic link leads to is replaced, in its own directory."""
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "real.json", tmp_path / "link.json"
    target.write_bytes(b"old")
    link.symlink_to("there/real.json")
    overwrite(link, b"old", b"new")
    assert str(link.readlink()) == "there/real.json"
    assert target.read_bytes() == b"new"


def test_file_that_changed_meanwhile_is_left_alone(tmp_path):
    """What somebody else wrote since the file was read is not lost."""
    path = tmp_path / "table.json"
    path.write_bytes(b"theirs")
    with pytest.raises(UnreadableError) as raised:
        overwrite(path, b"old", b"new")
    assert "changed meanwhile" in str(raised.value)
    assert path.read_bytes() == b"theirs"
    assert list(tmp_path.iterdir()) == [path]


def test_file_that_is_gone_is_not_made_again(tmp_path):
    """Without the file there is nothing to replace."""
    with pytest.raises(UnreadableError) as raised:
        overwrite(tmp_path / "table.json", b"old", b"new")
    assert "cannot be replaced" in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_pipe_is_refused(tmp_path):
    """A named pipe is no file that could be replaced."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError) as raised:
        overwrite(tmp_path / "pipe", b"old", b"new")
    assert "not a regular file" in str(raised.value)
