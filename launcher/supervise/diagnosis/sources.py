"""Lines of source files, read without waiting for a file system that does not answer.

Ranks often hang because their file system does, and their programs lie on the same one: whoever looks at such a file
waits too, in a way that no signal may end. So only files on disks and in the memory of this machine are read at once.
Which those are, the kernel's table of mounts tells, and no file is touched to find that out; symbolic links are
followed one by one, and none that leads elsewhere. Files of networks are read by a thread that may be left behind, and
only where somebody waits for the answer and allows the time.
"""

from __future__ import annotations

import os
import re
import stat
import threading
import time
from itertools import islice

from launcher.core.proc import PROC

MAX_BYTES = 4 << 20
MAX_LINKS = 40  # as in the kernel
_OCTAL = re.compile(r"\\([0-7]{3})")  # spaces and the like in the table of mounts
_LOCAL = frozenset({
    "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "jfs", "bcachefs", "erofs", "squashfs", "iso9660", "udf", "vfat",
    "exfat", "ntfs3", "tmpfs", "ramfs", "rootfs", "overlay", "aufs",
})  # fmt: skip


class Sources:
    """Reads each line once. `network_s`: seconds that all lines on file systems of networks may take together."""

    def __init__(self, network_s: float = 0.0) -> None:
        self._network_s = network_s
        self._known: dict[tuple[str, int], str | None] = {}  # many ranks are at the same line
        self._mounts: dict[str, str] | None = None

    def line(self, path: str, number: int) -> str | None:
        """Return the line as the file holds it now, without indentation; None where it cannot be read in time."""
        if (path, number) not in self._known:
            self._known[path, number] = self._read(path, number) if os.path.isabs(path) else None  # noqa: PTH117
        return self._known[path, number]

    def _read(self, path: str, number: int) -> str | None:
        if self._mounts is None:
            self._mounts = mounts()
        if is_local(path, self._mounts):
            return _line(path, number)
        return self._read_beside(path, number) if self._network_s > 0 else None

    def _read_beside(self, path: str, number: int) -> str | None:
        """Give up all of them once the time is over: the thread may wait for ever."""
        found: list[str | None] = []
        began = time.monotonic()
        thread = threading.Thread(target=lambda: found.append(_line(path, number)), daemon=True)
        thread.start()
        thread.join(self._network_s)
        self._network_s -= time.monotonic() - began
        return found[0] if found else None


def mounts() -> dict[str, str]:
    """Return the types of file systems by mount point; empty where the system does not tell. Does not block."""
    try:
        table = (PROC / "self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return {}
    found = {}
    for line in table.splitlines():  # what is mounted over another stands after it
        before, _, after = line.partition(" - ")
        point, kind = before.split()[4], after.split()[0]
        found[_OCTAL.sub(lambda match: chr(int(match[1], 8)), point)] = kind
    return found


def is_local(path: str, known: dict[str, str]) -> bool:
    """Return whether an absolute path leads to a file of this machine, by local ones only. `known`: as of `mounts`."""
    pending, place, links = path.split("/")[::-1], "/", 0
    while pending:
        name = pending.pop()
        if name in {"", "."}:
            continue
        place = os.path.normpath(os.path.join(place, name))  # noqa: PTH118 - ".." is of a place without links
        if not _kind_is_local(place, known):
            return False
        try:
            target = os.readlink(place)  # noqa: PTH115 - it need not be a link
        except (OSError, ValueError):
            continue
        links += 1
        if links > MAX_LINKS:
            return False
        pending += target.split("/")[::-1]
        place = "/" if target.startswith("/") else os.path.dirname(place)  # noqa: PTH120
    return True


def _kind_is_local(place: str, known: dict[str, str]) -> bool:
    """Return whether a place is on a local disk; the root is taken for one: without it, nothing here would run."""
    point = place
    while point not in known and point != "/":
        point = os.path.dirname(point)  # noqa: PTH120
    return point == "/" or known[point] in _LOCAL


def _line(path: str, number: int) -> str | None:
    try:
        found = os.stat(path)  # noqa: PTH116
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES:
            return None
        with open(path, encoding="utf-8", errors="replace") as lines:  # noqa: PTH123
            text = next(islice(lines, number - 1, None), "")
    except (OSError, ValueError):
        return None
    return "".join(char for char in text.strip() if char.isprintable()) or None
