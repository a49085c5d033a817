"""Read parts of a log, its end above all, without reading the rest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.logs.terminal import printable, shortened

TAIL_BYTES = 1 << 16
CHUNK_BYTES = 1 << 16  # much larger ones are slower: memory of such a size is taken from the system anew every time
MAX_STEP_BYTES = 1 << 20  # back towards the start of a log, and in memory


def open_log(path: Path) -> int:
    """Open a log for reading; return the descriptor. Does not block, even where a pipe has the log's name."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open a log as `open_log` does, and close it at the end."""
    descriptor = open_log(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def bytes_between(log: int, begin: int, end: int) -> bytes:
    """Read the bytes of a log (a descriptor) from `begin` up to `end`; fewer where it ends before.

    Raises:
        OSError: the log cannot be read.
    """
    chunks: list[bytes] = []
    while begin < end and (chunk := os.pread(log, end - begin, begin)):
        chunks.append(chunk)
        begin += len(chunk)
    return b"".join(chunks)


def tail(path: Path, offset: int = 0, limit_bytes: int = TAIL_BYTES) -> bytes:
    """Read the last `limit_bytes` of a log, none from before `offset`; nothing of a log that does not exist.

    In a log that has been truncated to less than `offset` the offset is ignored.

    Raises:
        OSError: the log cannot be read.
    """
    try:
        with opened(path) as log:
            end = os.fstat(log).st_size
            return bytes_between(log, max(end - limit_bytes, offset if offset <= end else 0), end)
    except FileNotFoundError:
        return b""


def last_lines(path: Path, count: int, offset: int = 0) -> list[str]:
    """Return at most `count` lines from the end of `path`, none from before `offset`, safe to show, not too long.

    Reads the last 64 KiB only; blank lines at the end are left out.

    Raises:
        OSError: the log is missing or cannot be read.
    """
    path.stat()
    text = tail(path, offset).decode("utf-8", errors="replace")
    return [shortened(printable(line)) for line in text.rstrip().split("\n")[-count:]] if text.strip() else []


def start_of_last_lines(log: int, end: int, count: int) -> int:
    """Return the offset at which the last `count` lines before `end` begin; 0 if there are fewer.

    An unfinished last line counts as one. `log` is a descriptor. Memory is bounded however long the lines are.

    Raises:
        OSError: the log cannot be read.
    """
    if count <= 0:
        return end
    behind, step_bytes = end, CHUNK_BYTES
    while behind > 0:
        begin = max(0, behind - step_bytes)
        chunk = bytes_between(log, begin, behind)
        # The newline at the very end belongs to the last line; every other one stands before a line.
        place = len(chunk) - (behind == end)
        newlines = chunk.count(b"\n", 0, place)
        if newlines >= count:
            for _ in range(count):
                place = chunk.rindex(b"\n", 0, place)
            return begin + place + 1
        count -= newlines
        behind, step_bytes = begin, min(2 * step_bytes, MAX_STEP_BYTES)
    return 0
