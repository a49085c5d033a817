"""Read untrusted regular files without blocking and up to a size limit; measure directories."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_PIECE_BYTES = 1 << 16


def open_regular(path: str | Path) -> int:
    """Open a regular file without blocking, and return its descriptor. Raises OSError, for example for a pipe."""
    try:
        _check_regular(os.stat(path))  # noqa: PTH116 - checked first, because opening a device may have an effect
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except ValueError:  # a name that was read from a file can contain any character
        raise OSError(errno.EINVAL, "the file name contains a NUL character or a surrogate") from None
    try:
        _check_regular(os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _check_regular(found: os.stat_result) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")


def read_regular(path: str | Path, max_bytes: int, check: Callable[[os.stat_result], None] = lambda _: None) -> bytes:
    """Read a regular file of at most `max_bytes` without blocking. Raises OSError, and any error of `check`."""
    descriptor = open_regular(path)
    try:
        check(os.fstat(descriptor))
        pieces, left = [], max_bytes + 1
        if os.fstat(descriptor).st_size < left:
            while left > 0 and (piece := os.read(descriptor, min(left, _PIECE_BYTES))):
                pieces.append(piece)
                left -= len(piece)
            if left > 0:
                return b"".join(pieces)
    finally:
        os.close(descriptor)
    raise OSError(errno.EFBIG, f"it has more than {max_bytes} bytes")


def bytes_in(path: Path) -> int:
    """Return the total size of a directory tree, or 0 for a symbolic link. Unreadable entries are not counted."""
    if path.is_symlink():
        return 0
    total = 0
    for directory, names, files in os.walk(path):
        for name in (*names, *files):
            with suppress(OSError):  # removed during the walk
                total += os.lstat(os.path.join(directory, name)).st_size  # noqa: PTH118 - faster for many files
    return total
