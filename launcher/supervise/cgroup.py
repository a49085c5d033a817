"""A control group of the run's own, where the system lets us make one: it kills all its members in one atomic step.

That is the cure for whatever forks faster than signals can follow. Everything works without it too.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_MEMBERS = "cgroup.procs"


def join(directory: Path) -> None:
    """Have this process, and all that it starts from now on, belong to the group. Without effect where impossible."""
    with suppress(OSError):
        (directory / _MEMBERS).write_text("0", encoding="ascii")


class RunGroup:
    """A child of the version 2 group that this process belongs to. `directory` is None where none can be made."""

    def __init__(self, name: str) -> None:
        self.directory = _made(name)

    def kill(self) -> None:
        """SIGKILL for every member at once (Linux 5.14 and later)."""
        if self.directory is not None:
            with suppress(OSError):
                (self.directory / "cgroup.kill").write_text("1", encoding="ascii")

    def remove(self) -> None:
        """Once nothing is in it."""
        if self.directory is not None:
            with suppress(OSError):
                self.directory.rmdir()


def group_name(agent_pid: int) -> str:
    """The name of an agent's group: the head knows it too."""
    return f"tlaunch-{agent_pid}"


def _made(name: str) -> Path | None:
    parent = _own_directory()
    if parent is None or not os.access(parent / _MEMBERS, os.W_OK):
        return None
    directory = parent / name
    try:
        directory.mkdir(exist_ok=True)
    except OSError:
        return None
    return directory


def _own_directory() -> Path | None:
    """Where this process's version 2 group is mounted."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        groups = Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    # Fields before " - ": id, parent, device, the mounted part of the file system, where it is mounted, ...
    mounted = [before.split()[3:5] for before, _, after in (line.partition(" - ") for line in mounts)
               if after.startswith("cgroup2 ")]  # fmt: skip
    own = next((line[3:] for line in groups if line.startswith("0::")), None)
    if not mounted or own is None:
        return None
    root, point = mounted[0]
    inside = os.path.relpath(own, root)
    return None if inside.startswith("..") else Path(point) / inside
