"""This machine as the kernel shows it: open files, full disks, this process's control group, accelerators.

No driver is asked, so that nothing can hang.
"""

from __future__ import annotations

import os
import re
import resource
import select
from pathlib import Path

from launcher.core.errors import UnreadableError

FULL_BELOW_BYTES = 64 << 10  # a page or two may be left of a full disk
DEVICE_FILES = Path("/dev")
_DAVINCI = re.compile(r"davinci([0-9]{1,6})")  # Ascend; davinci_manager is no device
_NVIDIA = re.compile(r"nvidia([0-9]{1,6})")  # nvidiactl and nvidia-uvm are no devices
SPARE = 64  # for everything else that is open


def is_readable(descriptor: int, within_s: float = 0.0) -> bool:
    """Return True if `descriptor` has data or is at its end. Blocks for `within_s` seconds at most."""
    poll = select.poll()  # select.select knows no descriptor from 1024 on
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(within_s * 1000))


def own_limit() -> int:
    """Return how many descriptors this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def limit_to(files: int) -> None:
    """Set the limit back to `files`, which this process had before. Children that are started from now on get it too."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def make_room(files: int) -> bool:
    """Raise this process's limit, if need be, so that it can have `files` files open. Return True if it can.

    Children inherit the limit: call it when none is to be started any more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = files + SPARE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        return allowed >= wanted
    return True


def make_room_for_servers(count: int) -> None:
    """Raise the limit, as `make_room` does, to hold a connection to each of `count` servers.

    Raises:
        UnreadableError: the system does not allow so many.
    """
    if not make_room(count):
        raise UnreadableError(
            f"{count} servers need as many connections, and this machine allows {own_limit()} files",
            hint="ulimit -Hn shows the limit, which root can raise",
        )


def is_full(directory: Path) -> bool:
    """Return True if no bytes or no files can be added there, so that logs and failure files may be missing."""
    try:
        there = os.statvfs(directory)
    except OSError:
        return False
    no_inode = there.f_files > 0 and there.f_favail == 0  # some file systems do not count them
    return no_inode or there.f_bavail * there.f_frsize < FULL_BELOW_BYTES


def own_directory() -> Path | None:
    """Return the mounted directory of this process's version 2 group, or None if it has none that can be seen."""
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


def davinci_ids(directory: Path = DEVICE_FILES) -> tuple[int, ...]:
    """Return the ids of the Ascend devices of this machine, ascending; empty if there are none."""
    return _numbers(_DAVINCI, directory)


def nvidia_ids(directory: Path = DEVICE_FILES) -> tuple[int, ...]:
    """Return the minor numbers of NVIDIA's devices that this process may open, ascending; empty if there are none."""
    return _numbers(_NVIDIA, directory)


def _numbers(pattern: re.Pattern[str], directory: Path) -> tuple[int, ...]:
    found = directory.iterdir() if directory.is_dir() else ()
    return tuple(sorted(int(match[1]) for path in found if (match := pattern.fullmatch(path.name))))
