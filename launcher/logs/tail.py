"""The end of a log, without reading the rest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from launcher.core.frozen import frozen
from launcher.logs.stored import CHUNK_BYTES, StoredLog
from launcher.logs.terminal import printable, shortened

TAIL_BYTES = 1 << 16
MAX_STEP_BYTES = 1 << 20  # back towards the start of a log, and in memory


def tail(path: Path, offset: int = 0, limit_bytes: int = TAIL_BYTES) -> bytes:
    """The last `limit_bytes` of a log, none from before logical `offset`; nothing of a log that is not there.

    In a log that was emptied and began anew `offset` means nothing any more.

    Raises:
        OSError: the log may not be read.
    """
    with closing(StoredLog(path)) as log:
        end = log.end
        begin = max(end - limit_bytes, log.start, offset if offset <= end else 0)
        return b"".join(chunk for _, chunk in log.chunks(begin, end))


def last_lines(path: Path, count: int, offset: int = 0) -> list[str]:
    """At most `count` lines from the end of `path`, none of them from before logical `offset`, safe to show, not too long.

    Looks at the last 64 KiB only; blank lines at the end are left out.

    Raises:
        OSError: the log is missing or unreadable.
    """
    path.stat()
    text = tail(path, offset).decode("utf-8", errors="replace")
    return [shortened(printable(line)) for line in text.rstrip().split("\n")[-count:]] if text.strip() else []


def offset_of_last(log: StoredLog, count: int) -> int:
    """The logical offset at which the last `count` lines begin, an unfinished one too; the log's start if it has fewer.

    Reading from there gives these lines, of those that reading all of the log gives, whatever of it is lost. Memory is
    bounded however long the lines are.

    Raises:
        OSError: the log may not be read.
    """
    if count <= 0:
        return log.end
    start = log.start
    wanted = count  # newlines from the end on, each before a line
    at_end = True  # of the log, where a newline is the last line's own
    for chunk in _chunks_from_end(log, start):
        limit = len(chunk.data) - at_end
        newlines = chunk.data.count(b"\n", 0, limit)
        if newlines >= wanted:
            return chunk.offset_behind(_nth_last_newline(chunk.data, wanted, limit))
        wanted, at_end = wanted - newlines, False
    return start


@frozen
class _Chunk:
    offset: int
    data: bytes
    next_offset: int
    is_lost: bool  # `data` says so

    def offset_behind(self, place: int) -> int:
        """From where to read on to get what follows byte `place` of it, a newline."""
        if place + 1 == len(self.data):
            return self.next_offset
        return self.offset if self.is_lost else self.offset + place + 1


def _chunks_from_end(log: StoredLog, start: int) -> Iterator[_Chunk]:
    """As `StoredLog.chunks` from `start` to the present end, the last one first."""
    begin = behind = log.end
    step_bytes = CHUNK_BYTES
    while begin > start:
        begin = max(start, begin - step_bytes)
        chunks = [_Chunk(at, data, log.next_offset, log.lost_bytes > 0) for at, data in log.chunks(begin, behind)]
        if chunks and chunks[0].is_lost and begin > start:
            del chunks[0]  # what is lost may begin before: it comes whole with the next step
        yield from reversed(chunks)
        behind = chunks[0].offset if chunks else behind
        step_bytes = min(2 * step_bytes, MAX_STEP_BYTES)


def _nth_last_newline(data: bytes, number: int, place: int) -> int:
    """Of those before `place`."""
    for _ in range(number):
        place = data.rindex(b"\n", 0, place)
    return place
