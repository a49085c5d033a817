"""A reader sees the old file or the new one."""

import errno
import os
from pathlib import Path

import pytest

from launcher.core.atomic import new_directory, point_link, replacing, write_text


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "run.json"
    path.write_text("old")
    write_text(path, "new é", mode=0o600)
    with pytest.raises(RuntimeError), replacing(path) as aside:
        raise RuntimeError(aside.write_text("half of the"))
    assert path.read_text(encoding="utf-8") == "new é"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_moves_to_its_new_target(tmp_path):
    point_link(tmp_path / "latest", "first")
    point_link(tmp_path / "latest", "second")
    assert (tmp_path / "latest").readlink().name == "second"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("has_hard_links", [True, False])
def test_what_exists_stays_where_it_may_not_be_replaced(tmp_path, monkeypatch, has_hard_links):
    def refuse(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    if not has_hard_links:
        monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "table.json"
    write_text(path, "first", mode=0o600, replace=False)
    with pytest.raises(FileExistsError):
        write_text(path, "second", replace=False)
    assert path.read_text() == "first"
    assert (path.stat().st_mode & 0o777, path.stat().st_nlink) == (0o600, 1)
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_names_what_was_to_be_written(tmp_path):
    path = tmp_path / "model"
    with pytest.raises(FileNotFoundError) as of_a_file, replacing(path):
        pass
    with pytest.raises(FileNotFoundError) as within, new_directory(path) as aside:
        (aside / "missing" / "file").touch()
    with pytest.raises(OSError, match="No space") as full, new_directory(path):
        Path("/dev/full").write_text("one byte is too many")
    told = [each.value.filename for each in (of_a_file, within, full)]
    assert told == [str(path), str(path / "missing" / "file"), str(path)]
    assert list(tmp_path.iterdir()) == []
