"""A reader sees the old file or the new one."""

import errno
import os

import pytest

from launcher.core.atomic import point_link, replacing, write_text


def test_text_replaces_a_file_and_nothing_else_is_left(tmp_path):
    """The file has the new text and the mode, the directory no second file."""
    path = tmp_path / "run.json"
    path.write_text("old")

    write_text(path, "new é", mode=0o600)

    assert path.read_text(encoding="utf-8") == "new é"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_half_way_leaves_the_old_file(tmp_path):
    """Neither half of the new text nor the file beside it stays."""
    path = tmp_path / "run.json"
    path.write_text("old")

    def write_half():
        with replacing(path) as aside:
            aside.write_text("half of the")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()

    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_moves_to_its_new_target(tmp_path):
    """`latest` always points somewhere."""
    point_link(tmp_path / "latest", "first")
    point_link(tmp_path / "latest", "second")

    assert (tmp_path / "latest").readlink().name == "second"
    assert len(list(tmp_path.iterdir())) == 1


def test_what_exists_stays_where_it_may_not_be_replaced(tmp_path):
    """Whoever took the name first keeps it, and nothing else is left; a free name is taken."""
    path = tmp_path / "table.json"
    write_text(path, "first", mode=0o600, replace=False)
    with pytest.raises(FileExistsError):
        write_text(path, "second", replace=False)

    assert path.read_text() == "first"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_nlink == 1
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_system_without_hard_links_keeps_what_exists_too(tmp_path, monkeypatch):
    """Where a file has one name only, the name is claimed by an empty file first."""

    def refuse(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "table.json"
    write_text(path, "first", replace=False)
    with pytest.raises(FileExistsError):
        write_text(path, "second", replace=False)

    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]
