"""A control group of the run's own, where the system lets us make one: it kills all its members in one atomic step.

That is the cure for whatever forks faster than signals can follow. Everything works without it too.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from pathlib import Path

from launcher.core.proc import own_directory

_MEMBERS = "cgroup.procs"
_PREFIX = "tlaunch-"  # then the pid of an agent
_FORGOTTEN_AFTER_S = 60.0  # younger ones may be about to be used, by an agent that a container hides from us


class RunGroup:
    """A child of the version 2 group that the launcher belongs to. Without effect where none can be made.

    Processes are born into the group of their parent. A kernel takes about 10 ms for one that moves, and keeps all
    others from forking meanwhile: so the agent moves, once, and its ranks do not; before a kill it steps out.
    """

    def __init__(self, agent_pid: int) -> None:
        self._directory = _made(f"{_PREFIX}{agent_pid}")
        self._let_out: set[int] = set()

    def take_in(self, pid: int) -> None:
        """Have a process, and all that it starts from now on, belong to the group."""
        if self._directory is not None and not (pid == os.getpid() and own_directory() == self._directory):
            _move(pid, self._directory)

    def let_out(self, pid: int) -> bool:
        """Have `kill` spare a process, but not what it has started; False if that cannot be."""
        if self._directory is None or pid in self._let_out:
            return True
        if not _move(pid, self._directory.parent):
            return False
        self._let_out.add(pid)
        return True

    def take_back(self) -> None:
        """Have all that were let out belong to the group again."""
        for pid in self._let_out:
            self.take_in(pid)
        self._let_out.clear()

    def kill(self) -> None:
        """SIGKILL for every member at once (Linux 5.14 and later)."""
        if self._directory is not None:
            with suppress(OSError):
                (self._directory / "cgroup.kill").write_text("1", encoding="ascii")

    def remove(self) -> None:
        """Remove the group once it is empty, with the groups that ranks have made in it."""
        if self._directory is not None:
            _remove(self._directory)


def _made(name: str) -> Path | None:
    parent = own_directory()
    if parent is None or not os.access(parent / _MEMBERS, os.W_OK):
        return None
    if parent.name == name:  # this process is in it already
        return parent
    directory = parent / name
    _remove_forgotten(parent)
    try:
        directory.mkdir(exist_ok=True)
    except OSError:
        return None
    return directory


def _remove_forgotten(parent: Path) -> None:
    """Remove groups of agents that were killed together with their launchers, or whose launchers were killed after them."""
    for group in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError, ValueError):
            os.kill(int(group.name.removeprefix(_PREFIX)), 0)
            continue
        with suppress(OSError):
            if time.time() - group.stat().st_mtime > _FORGOTTEN_AFTER_S:
                _remove(group)


def _remove(directory: Path) -> None:
    """With those inside it. The kernel keeps every group that has members."""
    inside = sorted((path for path in directory.rglob("*") if path.is_dir()), reverse=True)
    for group in (*inside, directory):
        with suppress(OSError):
            group.rmdir()


def _move(pid: int, directory: Path) -> bool:
    try:
        (directory / _MEMBERS).write_text(str(pid), encoding="ascii")
    except OSError as error:
        return error.errno == errno.ESRCH  # it has ended, and is in no group
    return True
