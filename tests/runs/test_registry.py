"""The directories in which a user has begun runs."""

import os
import shutil
import socket

import pytest

from launcher.runs.registry import FORGOTTEN_S, register, registered


@pytest.fixture
def links(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "tlaunch" / "runs"


def made(path):
    path.mkdir(parents=True)
    return path


def test_directories_are_found_until_they_are_gone(links, tmp_path):
    """Each once, however it is called; what is gone is forgotten."""
    one, two = made(tmp_path / "one" / "runs"), made(tmp_path / "two" / "runs")
    (tmp_path / "link").symlink_to(one)
    for path in (two, one, tmp_path / "link", one):
        register(path)
    assert registered() == (one, two)
    assert len(list(links.iterdir())) == 2
    shutil.rmtree(one)
    assert registered() == (two,)
    assert [link.readlink() for link in links.iterdir()] == [two]


def test_what_is_hidden_is_not_noted(links, tmp_path):
    """As the directories of an examination are, which go with it."""
    register(made(tmp_path / ".doctor-1"))
    assert not links.exists()


def test_what_another_machine_alone_may_see_is_kept_for_a_while(links, tmp_path):
    made(links)
    for name, age_s in (("new", 0), ("old", FORGOTTEN_S + 60)):
        link = links / f"{name}.not-{socket.gethostname()}"
        link.symlink_to(tmp_path / name)
        then = link.lstat().st_mtime - age_s
        os.utime(link, (then, then), follow_symlinks=False)
    (links / "strange").write_text("?")
    assert registered() == ()
    assert {path.name.partition(".")[0] for path in links.iterdir()} == {"new", "strange"}


@pytest.mark.parametrize("base", ["/dev/null/none", "relative", "/proc/none"])
def test_a_home_that_cannot_be_written_is_no_error(base, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", base)
    monkeypatch.chdir(tmp_path)
    register(made(tmp_path / "runs"))
    assert registered() == ()
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_without_a_home_nothing_is_noted(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "not-a-path")
    register(made(tmp_path / "runs"))
    assert registered() == ()
