"""A reader sees the old file or the new one."""

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
