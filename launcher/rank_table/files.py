"""The bytes of a table's file: reading them, or saying clearly why not, and replacing them."""

from __future__ import annotations

import errno
import os
import select
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from launcher.core.atomic import replacing
from launcher.core.errors import UnreadableError, UsageError

PIPE_PATIENCE_S = 5
# What HCCL takes of a v1.x table as a string; one of 131,072 devices has 12 to 24 MB. A v2.0 table of 65,536 ranks has
# 20 MB in one layer of its network, and hundreds in three: who has one says so. Everything up to this size, whatever is
# in it, is read and reported within 500 MB of memory, and a table of 131,072 devices within 300 MB.
MAX_TABLE_BYTES = 40 << 20
_PIECE_BYTES = 1 << 20


def read_bytes(path: Path, max_bytes: int = MAX_TABLE_BYTES) -> bytes:
    """Read the whole file. Block; on a pipe `PIPE_PATIENCE_S` until data arrives.

    Raises:
        UnreadableError: the file is missing, a directory, larger than `max_bytes`, or may not be read.
    """
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            size_bytes = os.fstat(file.fileno()).st_size  # 0 for what is no regular file
            if size_bytes > max_bytes:
                raise _too_large(f"{path} has {_size(size_bytes)}", size_bytes, max_bytes)
            return read_stream(file, str(path), max_bytes)
    except IsADirectoryError:
        raise UnreadableError(f"{path} is a directory", hint="name the rank table inside it") from None
    except FileNotFoundError:
        raise UnreadableError(f"{path} does not exist", hint=_nearby(path)) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UnreadableError(f"{path} cannot be read: {reason}") from None


def read_stream(file: BinaryIO, name: str, max_bytes: int = MAX_TABLE_BYTES) -> bytes:
    """Read up to the end, in pieces: asking for `max_bytes` at once would set that much memory aside.

    Raises:
        UnreadableError: there is more than that.
        OSError: it cannot be read.
    """
    pieces: list[bytes] = []
    left = max_bytes + 1
    while left > 0 and (piece := file.read(min(left, _PIECE_BYTES))):
        pieces.append(piece)
        left -= len(piece)
    if left <= 0:
        raise _too_large(f"{name} gives more than {_size(max_bytes)}", None, max_bytes)
    return b"".join(pieces)


def read_head(path: Path, count: int) -> bytes:
    """Read the first `count` bytes of a regular file; nothing where they cannot be read."""
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            return file.read(count)
    except (OSError, ValueError):
        return b""


def _too_large(what: str, size_bytes: int | None, max_bytes: int) -> UnreadableError:
    enough = "SIZE" if size_bytes is None else f"{(size_bytes >> 20) + 1}M"
    limit = "" if size_bytes is None else f", and no table of more than {_size(max_bytes)} is read"
    hint = f"is it a rank table? --max-table-size {enough} has it read: one device takes about 100 bytes of a table"
    return UnreadableError(what + limit, hint=hint)


def _size(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.4g} MiB" if size_bytes >= 1 << 20 else f"{size_bytes:,} bytes"


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file, and wait a few seconds for a writer where it is a named pipe; plain open would wait for ever."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN | select.POLLHUP)
        if not waiting.poll(PIPE_PATIENCE_S * 1000):
            os.close(descriptor)
            raise OSError(errno.ETIMEDOUT, f"it is a pipe, and no data came within {PIPE_PATIENCE_S} s")
    os.set_blocking(descriptor, True)
    return descriptor


def _nearby(path: Path) -> str:
    """Name the tables that are beside a file that is missing."""
    names = sorted(found.name for found in path.parent.glob("*.json"))[:5] if path.parent.is_dir() else []
    return f"{path.parent} holds {', '.join(names)}" if names else "check the path"


def overwrite(path: Path, original: bytes, data: bytes) -> None:
    """Replace the file at `path`, which held `original`, by `data`: written aside and renamed, with the same mode.

    A symbolic link stays one; the file that it leads to is replaced. The owner is kept where that is permitted.

    Raises:
        UsageError: there is no regular file, but a pipe or a device.
        UnreadableError: it holds something else by now, or it cannot be replaced.
    """
    try:
        target = path.resolve(strict=True)
        status = target.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{path} is not a regular file, so it cannot be replaced", hint="use - and a redirection")
        with replacing(target) as aside:
            aside.touch(mode=0o600)
            aside.write_bytes(data)
            with suppress(PermissionError):
                os.chown(aside, status.st_uid, status.st_gid)
            aside.chmod(stat.S_IMODE(status.st_mode))
            if target.stat().st_size != len(original) or read_bytes(target, len(original)) != original:
                raise UnreadableError(f"{path} was changed meanwhile, and is left as it is", hint="run this again")
    except OSError as error:
        raise UnreadableError(f"{path} cannot be replaced: {error.strerror}") from None
