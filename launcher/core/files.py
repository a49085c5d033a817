"""Files that anybody may have put where they are read (bounded, and never waited for), and how large directories are."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def read_regular(path: Path, max_bytes: int, check: Callable[[os.stat_result], None] = lambda _: None) -> bytes:
    """Return the content of a file; what is no regular one, a pipe for instance, is not opened for reading.

    `check` is called for the open file, and may raise.

    Raises:
        OSError: it cannot be read, is no regular file, or has more than `max_bytes`.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        check(os.fstat(file.fileno()))
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it has more than {max_bytes} bytes")
    return content


def bytes_in(path: Path) -> int:
    """Return the size of all that is below a directory; 0 for a link to one. What may not be read counts nothing."""
    if path.is_symlink():
        return 0
    total = 0
    for directory, names, files in os.walk(path):
        for name in (*names, *files):
            with suppress(OSError):  # removed meanwhile
                total += os.lstat(os.path.join(directory, name)).st_size  # noqa: PTH118 - of many, and quick
    return total
