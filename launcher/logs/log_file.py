"""Read a log file: its end, without reading the rest, and what is appended, across truncation and replacement."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from launcher.core.files import open_regular
from launcher.core.frozen import frozen
from launcher.logs.terminal import printable, shortened
from launcher.preload.masking import masked_text

TAIL_BYTES = 1 << 16
CHUNK_BYTES = 1 << 16  # much larger ones are slower: memory of such a size is taken from the system anew every time
MAX_STEP_BYTES = 1 << 20  # back towards the start of a log, and in memory
MAX_BACK_BYTES = 256 << 20  # in which the start of the last lines is looked for


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open a log for reading, as `open_regular` does, and close it at the end."""
    descriptor = open_regular(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def bytes_between(log: int, begin: int, end: int) -> bytes:
    """Read the bytes of a log (a descriptor) from `begin` up to `end`; fewer where it ends before. Raises OSError."""
    chunks: list[bytes] = []
    while begin < end and (chunk := os.pread(log, end - begin, begin)):
        chunks.append(chunk)
        begin += len(chunk)
    return b"".join(chunks)


def _data_after(log: int, offset: int) -> int:
    """Return where the hole at `offset` ends; `offset` if there is no hole, or the file system does not know."""
    try:
        return os.lseek(log, offset, os.SEEK_DATA)
    except OSError as error:
        return os.fstat(log).st_size if error.errno == errno.ENXIO else offset


def tail(path: Path, offset: int = 0, limit_bytes: int = TAIL_BYTES) -> bytes:
    """Read the last `limit_bytes` of a log, none from before `offset`; nothing of a log that does not exist.

    In a log that has been truncated to less than `offset` the offset is ignored. Raises OSError.
    """
    try:
        with opened(path) as log:
            end = os.fstat(log).st_size
            return bytes_between(log, max(end - limit_bytes, offset if offset <= end else 0), end)
    except FileNotFoundError:
        return b""


def last_lines(path: Path, count: int, offset: int = 0) -> list[str]:
    """Return at most `count` lines from the end of `path`, none from before `offset`, safe to show, not too long, secrets masked.

    Reads the last 64 KiB only; blank lines at the end are left out. Raises OSError, also where the log is missing.
    """
    path.stat()
    text = masked_text(tail(path, offset).decode("utf-8", errors="replace"))
    return [shortened(printable(line)) for line in text.rstrip().split("\n")[-count:]] if text.strip() else []


def start_of_last_lines(log: int, end: int, count: int, first: int = 0) -> int:
    """Return the offset at which the last `count` lines before `end` begin; `first` if fewer begin after it.

    An unfinished last line counts as one. Looks `MAX_BACK_BYTES` back at most. `log` is a descriptor. Raises OSError.
    """
    if count <= 0:
        return end
    first = max(first, end - MAX_BACK_BYTES)
    behind, step_bytes = end, CHUNK_BYTES
    while behind > first:
        begin = max(first, behind - step_bytes)
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
    return first


def fair_shares(needs: Mapping[int, int], total: int) -> dict[int, int]:
    """Divide `total` among keys: each gets what it needs, or as much of what is left as the others that need more."""
    shares: dict[int, int] = {}
    for at, key in enumerate(sorted(needs, key=lambda key: needs[key])):
        shares[key] = min(needs[key], (total - sum(shares.values())) // (len(needs) - at))
    return shares


@frozen
class Truncation:
    """A log that was made shorter while it was read, as logrotate does with `copytruncate`."""

    lost_bytes: int  # as large as the log was when its size was last seen
    unread_bytes: int  # how many of them had not been read; what was written after that look is not counted


class GrowingLog:
    """Reads each byte that a log holds, and what is appended to it, once. Close it at the end.

    The log may not exist yet. One that is truncated is read again from its start. After a rename the old file is read,
    which its rank still writes to, until the new file of that name has content. A log that cannot be read gives nothing,
    and `trouble` says why.
    """

    def __init__(self, path: Path, on_truncation: Callable[[Truncation], object] = lambda _: None) -> None:
        self.path = path
        self.position = 0  # offset of the next byte to read
        self.trouble: str | None = None  # why the last `read`, or something asked since, failed
        self._log: int | None = None  # a descriptor
        self._identity: tuple[int, int] | None = None  # device and inode of the file that was open last
        self._size_bytes = 0  # of that file, when it was looked at last
        self._is_displaced = False  # another file, or none, has its name
        self._on_truncation = on_truncation

    def read(self, limit_bytes: int = CHUNK_BYTES) -> tuple[int, bytes]:
        """Read at most `limit_bytes` new bytes; return them with the offset of the first. Does not block."""
        self.trouble = None
        chunk = b""
        try:
            self._look()
            chunk = self._read(limit_bytes)
            if not chunk and self._follow_name():
                chunk = self._read(limit_bytes)
        except OSError as error:
            self._note(error)
        offset = self.position
        self.position += len(chunk)
        return offset, chunk

    @property
    def end(self) -> int:
        """The size of the log now, of the file that has its name; 0 where it cannot be read."""
        try:
            self._look()
            self._follow_name()
        except OSError as error:
            self._note(error)
            return 0
        return self._size_bytes

    @property
    def unread_bytes(self) -> int:
        """The number of bytes that are unread now; 0 where the log cannot be read."""
        return max(0, self.end - self.position)

    def skip_to_last(self, keep_bytes: int, keep_lines: int | None = None) -> int:
        """Skip all but the last `keep_bytes` and `keep_lines`, and the rest of the line before them; return how many bytes."""
        before, skipped = self.position, self.unread_bytes - keep_bytes
        if skipped > 0:
            self.position += skipped
            _, last = self.read(keep_bytes)
            self.position -= len(last.partition(b"\n")[2])
            before = min(before, self.position)  # it may have been truncated meanwhile
        if keep_lines is not None:
            self.skip_to_last_lines(keep_lines)
        return self.position - before

    def skip_to_last_lines(self, count: int) -> None:
        """Read on at the last `count` unread lines of the log as it is now; change nothing where it cannot be read."""
        end = self.end
        if self._log is not None:
            try:
                self.position = start_of_last_lines(self._log, end, count, self.position)
            except OSError as error:
                self._note(error)

    def before(self, limit_bytes: int) -> Iterator[tuple[int, bytes]]:
        """Yield at most `limit_bytes` that stand right before the next byte to read, in chunks with their offsets."""
        with suppress(OSError):
            for offset in range(max(0, self.position - limit_bytes), self.position, CHUNK_BYTES):
                if self._log is not None:
                    yield offset, bytes_between(self._log, offset, min(offset + CHUNK_BYTES, self.position))

    @property
    def displaced(self) -> int | None:
        """The descriptor of a file that has lost its name and is still read; None if the log has its name."""
        return self._log if self._is_displaced else None

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def _note(self, error: OSError) -> None:
        self.trouble = error.strerror or str(error)
        self.close()  # its name may have another file soon
        if error.errno in {errno.EISDIR, errno.EINVAL}:  # something else has its name, and perhaps its inode
            self._identity = None

    def _look(self) -> None:
        """Open the log if it is there, and look at its size."""
        if self._log is None:
            with suppress(FileNotFoundError):
                self._take(open_regular(self.path))
        if self._log is not None:
            size_bytes = os.fstat(self._log).st_size
            if size_bytes < self._size_bytes:
                truncation = Truncation(self._size_bytes, max(0, self._size_bytes - self.position))
                self._size_bytes, self.position = size_bytes, 0
                self._on_truncation(truncation)
            self._size_bytes = size_bytes

    def _follow_name(self) -> bool:
        """Go to the file that has the log's name now, if it is another one with content; return whether it is."""
        found = None
        with suppress(FileNotFoundError):
            found = self.path.stat()
        is_other = found is None or (found.st_dev, found.st_ino) != self._identity
        self._is_displaced = self._log is not None and is_other
        if self._is_displaced and found is not None and (found.st_size or not stat.S_ISREG(found.st_mode)):
            self._take(open_regular(self.path))
        return self._log is not None and is_other and not self._is_displaced

    def _take(self, log: int) -> None:
        """Read that file from now on: from its start, unless it is the last one again."""
        self.close()
        self._log, self._is_displaced = log, False
        found = os.fstat(log)
        if (found.st_dev, found.st_ino) != self._identity:
            self._identity = (found.st_dev, found.st_ino)
            self._size_bytes, self.position = found.st_size, 0

    def _read(self, limit_bytes: int) -> bytes:
        if self._log is None:
            return b""
        chunk = os.pread(self._log, limit_bytes, self.position)
        if not chunk.startswith(b"\0") or chunk.strip(b"\0"):
            return chunk
        # A file that was emptied under a program that does not append begins with a hole, of any size.
        self.position = _data_after(self._log, self.position)
        return os.pread(self._log, limit_bytes, self.position)
