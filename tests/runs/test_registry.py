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


def test_names_of_many_machines_hide_no_directory(links, tmp_path):
    """As of a cluster whose machines have new names each time: their links go when they are old, but for a directory's last."""
    shared, cluster_only = made(tmp_path / "shared"), made(tmp_path / "cluster")
    register(shared)
    (own,) = links.iterdir()
    places = {own.name.partition(".")[0]: shared, "cluster": cluster_only}
    for number in range(1500):
        for place, target in places.items():
            link = links / f"{place}.pod-{number}"
            link.symlink_to(target)
            if number % 2:
                then = link.lstat().st_mtime - FORGOTTEN_S - 60
                os.utime(link, (then, then), follow_symlinks=False)
    others = tuple(made(tmp_path / f"other-{number}") for number in range(5))
    for path in others:
        register(path)
    assert registered() == (cluster_only, *others, shared)
    left = {path.name for path in links.iterdir()}
    assert own.name in left
    assert {f"{place}.pod-{number}" for place in places for number in range(0, 1500, 2)} <= left
    assert len(left) <= 1500 + 1 + 5 + 1  # the link that the second place was found by may be an old one


def test_a_link_is_as_old_as_its_last_use(links, tmp_path):
    directory = made(tmp_path / "runs")
    register(directory)
    (link,) = links.iterdir()
    os.utime(link, (1, 1), follow_symlinks=False)
    register(directory)
    assert link.lstat().st_mtime > 1


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
