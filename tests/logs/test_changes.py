"""Which files have changed: told at once where the kernel tells, found by looking elsewhere, and never missed."""

import os
import resource
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.logs import changes as module
from launcher.logs.changes import Changes


@pytest.fixture(params=["told", "looked at"])
def watched(request, tmp_path, monkeypatch):
    """A function that watches files of a directory, with inotify and as on a network file system."""
    if request.param == "looked at":
        monkeypatch.setattr(module, "LOCAL", frozenset())
    made = []

    def watch(*names):
        made.append(Changes({key: tmp_path / name for key, name in enumerate(names)}))
        return made[-1]

    yield watch
    for changes in made:
        changes.close()


def settle(changes):
    """Read everything to its end."""
    deadline = time.monotonic() + 60
    while due := changes.due():
        for key in due:
            changes.nothing_new(key)
        assert time.monotonic() < deadline, f"{due} never become quiet"


def wait_due(changes, patience_s=60):
    deadline = time.monotonic() + patience_s
    while not (due := changes.due()):
        assert time.monotonic() < deadline, "no change was seen"
        changes.wait(1)
    return due


def append(path, text="x"):
    with path.open("a") as file:
        file.write(text)


def test_everything_is_due_at_first(watched, tmp_path):
    """What was written before anybody watched is to be read."""
    append(tmp_path / "a")
    assert watched("a", "missing").due() == (0, 1)


def test_once_nobody_writes_every_file_is_due_once(watched, tmp_path):
    """Each until it was read to its end; those that were quiet before, too. Should somebody write again, it is seen."""
    append(tmp_path / "a")
    changes = watched("a", "missing")
    settle(changes)
    assert changes.due(ended=True) == (0, 1)
    changes.nothing_new(1)
    assert changes.due(ended=True) == (0,)
    changes.nothing_new(0)
    assert changes.due(ended=True) == ()
    append(tmp_path / "a")
    assert changes.due(ended=True) == ()
    assert wait_due(changes) == (0,)


def test_what_is_written_makes_a_file_due(watched, tmp_path):
    """That file and no other, every time."""
    for name in "abc":
        append(tmp_path / name)
    changes = watched("a", "b", "c")
    settle(changes)
    for _ in range(3):
        append(tmp_path / "b")
        assert wait_due(changes) == (1,)
        settle(changes)
    assert changes.due() == ()


def test_a_write_between_reading_and_asking_is_not_missed(watched, tmp_path):
    """A file that was read to its end may have grown before anybody listens."""
    append(tmp_path / "a")
    changes = watched("a")
    for _ in range(20):
        assert wait_due(changes) == (0,)
        append(tmp_path / "a")  # after it was read
        changes.nothing_new(0)
        assert wait_due(changes) == (0,)
        settle(changes)
        append(tmp_path / "a")


def test_a_file_that_comes_later(watched, tmp_path):
    """It is looked for."""
    changes = watched("late")
    settle(changes)
    append(tmp_path / "late")
    assert wait_due(changes) == (0,)


@pytest.mark.parametrize("how", ["removed and made again", "another one renamed to its name", "emptied"])
def test_a_file_that_is_replaced(watched, tmp_path, how):
    """Its name counts."""
    append(tmp_path / "a", "long ago")
    changes = watched("a")
    settle(changes)
    if how == "emptied":
        os.truncate(tmp_path / "a", 0)
    elif how == "removed and made again":
        (tmp_path / "a").unlink()
        append(tmp_path / "a", "today")
    else:
        append(tmp_path / "b", "today")
        (tmp_path / "b").rename(tmp_path / "a")
    assert wait_due(changes) == (0,)
    settle(changes)
    append(tmp_path / "a")
    assert wait_due(changes) == (0,)


def test_waiting_ends_with_a_change(watched, tmp_path):
    """Long before its time."""
    append(tmp_path / "a")
    changes = watched("a")
    settle(changes)
    writer = threading.Timer(0.05, append, [tmp_path / "a"])
    writer.start()
    before_s = time.monotonic()
    while not changes.due():
        changes.wait(1000)
    writer.join()
    assert time.monotonic() - before_s < 500


def test_a_writer_wakes_nobody_who_has_much_to_read(tmp_path):
    """A file that is due makes the kernel say nothing more, however often it is written."""
    append(tmp_path / "a")
    changes = Changes({0: tmp_path / "a"})
    settle(changes)
    for _ in range(100):
        append(tmp_path / "a")
    assert len(changes._inotify.take()) <= 2  # the change, and that nobody listens any more
    changes.close()


def test_a_thousand_files(tmp_path):
    """Each is told of by itself, and costs no descriptor."""
    for number in range(1024):
        append(tmp_path / str(number))
    changes = Changes({number: tmp_path / str(number) for number in range(1024)})
    settle(changes)
    assert len(list(Path("/proc/self/fd").iterdir())) < 512
    append(tmp_path / "777")
    assert wait_due(changes) == (777,)
    changes.close()


def test_without_inotify_files_are_looked_at(tmp_path, monkeypatch):
    """A limit on its instances or watches costs speed alone."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    append(tmp_path / "a")
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # no descriptor for it
        changes = Changes({0: tmp_path / "a"})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    settle(changes)
    append(tmp_path / "a")
    assert wait_due(changes) == (0,)
    changes.close()


def test_what_the_kernel_does_not_tell_is_found_all_the_same(tmp_path, monkeypatch):
    """A look at every file now and then: nothing rests on inotify alone."""
    monkeypatch.setattr(module, "_MODIFY", 0x10000000)  # asks for nothing that will ever happen
    clock = Clock(monkeypatch)
    append(tmp_path / "a")
    changes = Changes({0: tmp_path / "a"})
    settle(changes)
    append(tmp_path / "a")
    assert changes.due() == ()
    clock.now_s += module.MAKE_SURE_EVERY_S
    assert changes.due() == (0,)
    changes.close()


class Clock:
    """Of `Changes`; it goes on only when it is told to."""

    def __init__(self, monkeypatch):
        self.now_s = 1000.0
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now_s))


def test_many_files_are_looked_at_less_often(tmp_path, monkeypatch):
    """So that looking costs little, however many there are: here each look at a file takes ten microseconds."""
    monkeypatch.setattr(module, "LOCAL", frozenset())
    clock, signature, looking_s = Clock(monkeypatch), module._signature, 0.0

    def slow_signature(path):
        nonlocal looking_s
        looking_s += 1e-5
        clock.now_s += 1e-5
        return signature(path)

    def looking_share():
        nonlocal looking_s
        changes = Changes({number: tmp_path / str(number) for number in range(500)})
        settle(changes)
        began_s, looking_s = clock.now_s, 0.0
        while clock.now_s < began_s + 10:
            clock.now_s += module.LOOK_EVERY_S
            changes.due()
        changes.close()
        return looking_s / (clock.now_s - began_s)

    monkeypatch.setattr(module, "_signature", slow_signature)
    for number in range(500):
        append(tmp_path / str(number))
    assert looking_share() < 3 * module.LOOK_SHARE
    monkeypatch.setattr(module, "LOOK_SHARE", 1e9)
    assert looking_share() > 0.05
