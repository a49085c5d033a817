"""The bytes of a table's file, or a clear reason why they cannot be read."""

from __future__ import annotations

import errno
import os
import select
import stat
from pathlib import Path
from typing import BinaryIO

from launcher.core.errors import UnreadableError

PIPE_PATIENCE_S = 5
LARGEST_TABLE_BYTES = 256 * 1024 * 1024  # far beyond 131,072 devices; keeps a wrong path from filling the memory


def read_bytes(path: Path) -> bytes:
    """The whole file. Blocks, on a pipe for `PIPE_PATIENCE_S` until somebody writes.

    Raises:
        UnreadableError: the file is missing, a directory, too large, or may not be read.
    """
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            data = _read_at_most(file, LARGEST_TABLE_BYTES + 1)
    except IsADirectoryError:
        raise UnreadableError(f"{path} is a directory", hint="name the rank table inside it") from None
    except FileNotFoundError:
        raise UnreadableError(f"{path} does not exist", hint=_nearby(path)) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UnreadableError(f"{path} cannot be read: {reason}") from None
    if len(data) > LARGEST_TABLE_BYTES:
        limit = f"{LARGEST_TABLE_BYTES // 1024**2} MiB"
        raise UnreadableError(f"{path} is larger than {limit}", hint="a rank table has about 100 bytes per device")
    return data


def _open_without_waiting(path: str, flags: int) -> int:
    """Opening a named pipe would wait for ever for somebody to write to it; give that somebody a few seconds."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN | select.POLLHUP)
        if not waiting.poll(PIPE_PATIENCE_S * 1000):
            os.close(descriptor)
            raise OSError(errno.ETIMEDOUT, f"it is a pipe, and nobody wrote to it within {PIPE_PATIENCE_S} s")
    os.set_blocking(descriptor, True)
    return descriptor


def _read_at_most(file: BinaryIO, limit: int) -> bytes:
    """In pieces, since asking for `limit` bytes at once would set that much memory aside."""
    data = bytearray()
    while len(data) < limit and (piece := file.read(1024 * 1024)):
        data += piece
    return bytes(data)


def _nearby(path: Path) -> str:
    """The tables that are there, for a name that is not."""
    names = sorted(found.name for found in path.parent.glob("*.json"))[:5] if path.parent.is_dir() else []
    return f"{path.parent} holds {', '.join(names)}" if names else "check the path"
