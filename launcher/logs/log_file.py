"""Read log files: their last lines, and appended data, across truncation and replacement of a file."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from launcher.core.frozen import frozen
from launcher.core.regular_files import open_regular
from launcher.logs.terminal import printable, shortened
from launcher.preload.masking import masked_text

TAIL_BYTES = 1 << 16
CHUNK_BYTES = 1 << 16  # larger reads are slower: memory of that size is requested from the system every time
MAX_STEP_BYTES = 1 << 20  # backwards in a log, and in memory
MAX_PIECE_BYTES = 1 << 17  # of a `LogCursor`; older unread bytes beyond that are skipped
MAX_BACK_BYTES = 256 << 20  # for each step of the search for the last lines

_PLACE = re.compile(r"(\d{1,20})-(\d{1,19})", re.ASCII)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open a log for reading and yield its descriptor, which is closed after the block. Raises OSError."""
    descriptor = open_regular(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def bytes_between(log: int, begin: int, end: int) -> bytes:
    """Read the bytes of an open log from `begin` to `end`, or fewer if the log is shorter. Raises OSError."""
    chunks: list[bytes] = []
    while begin < end and (chunk := os.pread(log, end - begin, begin)):
        chunks.append(chunk)
        begin += len(chunk)
    return b"".join(chunks)


def tail(path: Path, offset: int = 0, limit_bytes: int = TAIL_BYTES) -> bytes:
    """Return the last bytes of a log, but none before `offset`. The result is empty if the log is missing."""
    try:
        with opened(path) as log:
            end = os.fstat(log).st_size
            return bytes_between(log, max(end - limit_bytes, offset if offset <= end else 0), end)
    except FileNotFoundError:
        return b""


def last_lines(path: Path, count: int, offset: int = 0) -> list[str]:
    """Return the last `count` lines of a log from `offset` on, as printable text with secrets masked.

    Reads only the last 64 KiB; blank lines at the end are dropped. Raises OSError, also if the log is missing.
    """
    path.stat()
    text = masked_text(tail(path, offset).decode("utf-8", errors="replace"))
    return [shortened(printable(line)) for line in text.rstrip().split("\n")[-count:]] if text.strip() else []


def start_of_last_lines(log: int, end: int, count: int, first: int = 0) -> int:
    """Return the offset of the last `count` lines before `end`, or `first` if fewer lines follow `first`.

    An unfinished last line counts as one. Looks back at most `MAX_BACK_BYTES`. `log` is a descriptor. Raises OSError.
    """
    if count <= 0:
        return end
    first = max(first, end - MAX_BACK_BYTES)
    behind, step_bytes = end, CHUNK_BYTES
    while behind > first:
        begin = max(first, behind - step_bytes)
        chunk = bytes_between(log, begin, behind)
        # The newline at the very end belongs to the last line; every other newline comes before a line.
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
    """Divide `total` among keys. Small needs are met in full; the other keys get equal shares of the remainder."""
    shares: dict[int, int] = {}
    for at, key in enumerate(sorted(needs, key=lambda key: needs[key])):
        shares[key] = min(needs[key], (total - sum(shares.values())) // (len(needs) - at))
    return shares


@frozen
class Truncation:
    """A log that became shorter while it was read, as with logrotate's `copytruncate`."""

    lost_bytes: int  # the size of the log when last checked
    unread_bytes: int  # how many of them were unread; bytes written after that check are not counted


class GrowingLog:
    """Reads a log while it grows, each byte once. Call `close` at the end.

    The log may not exist yet. A truncated log is read again from its start. After a rename, the old file is read until
    the new file has content, because the rank still writes to the old one. A log that cannot be read returns nothing,
    and `trouble` holds the reason.
    """

    def __init__(self, path: Path, on_truncation: Callable[[Truncation], object] = lambda _: None) -> None:
        self.path = path
        self.position = 0  # offset of the next byte to read
        self.trouble: str | None = None  # why the last read or query failed
        self._log: int | None = None  # a descriptor
        self._identity: tuple[int, int] | None = None  # device and inode of the last open file
        self._size_bytes = 0  # of that file, when last checked
        self._is_displaced = False  # another file, or none, has its name
        self._on_truncation = on_truncation

    def read(self, limit_bytes: int = CHUNK_BYTES) -> tuple[int, bytes]:
        """Read at most `limit_bytes` new bytes without blocking. Return the offset of the first byte, and the bytes."""
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
        """The current size of the log in bytes, or 0 if the log cannot be read."""
        try:
            self._look()
            self._follow_name()
        except OSError as error:
            self._note(error)
            return 0
        return self._size_bytes

    @property
    def unread_bytes(self) -> int:
        return max(0, self.end - self.position)

    def skip_to_last(self, keep_bytes: int, keep_lines: int | None = None) -> int:
        """Skip to the last `keep_lines` lines, at most `keep_bytes` bytes long. Return the number of bytes skipped."""
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
        """Skip all but the last `count` unread lines. If the log cannot be read, skip nothing."""
        end = self.end
        if self._log is not None:
            try:
                self.position = start_of_last_lines(self._log, end, count, self.position)
            except OSError as error:
                self._note(error)

    def before(self, limit_bytes: int) -> Iterator[tuple[int, bytes]]:
        """Yield up to `limit_bytes` bytes that precede the next byte to read, as pairs (offset, chunk)."""
        with suppress(OSError):
            for offset in range(max(0, self.position - limit_bytes), self.position, CHUNK_BYTES):
                if self._log is not None:
                    yield offset, bytes_between(self._log, offset, min(offset + CHUNK_BYTES, self.position))

    @property
    def displaced(self) -> int | None:
        """The descriptor of the open file if this file was renamed, or None if it still has the name of the log."""
        return self._log if self._is_displaced else None

    def close(self) -> None:
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def _note(self, error: OSError) -> None:
        self.trouble = error.strerror or str(error)
        self.close()  # another file may get its name soon
        if error.errno in {errno.EISDIR, errno.EINVAL}:  # another file has its name, and perhaps its inode
            self._identity = None

    def _look(self) -> None:
        """Open the log if it exists, and check its size."""
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
        """If the log was rotated and the new file is not empty, continue with the new file and return True."""
        found = None
        with suppress(FileNotFoundError):
            found = self.path.stat()
        is_other = found is None or (found.st_dev, found.st_ino) != self._identity
        self._is_displaced = self._log is not None and is_other
        if self._is_displaced and found is not None and (found.st_size or not stat.S_ISREG(found.st_mode)):
            self._take(open_regular(self.path))
        return self._log is not None and is_other and not self._is_displaced

    def _take(self, log: int) -> None:
        """Switch to the file descriptor `log`. If it refers to a different file than before, start at its beginning."""
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
        # If a file is truncated while a program writes to it without appending, it begins with a hole of any size.
        try:
            self.position = os.lseek(self._log, self.position, os.SEEK_DATA)
        except OSError as error:  # ENXIO: no data follows; otherwise the file system does not support it
            self.position = os.fstat(self._log).st_size if error.errno == errno.ENXIO else self.position
        return os.pread(self._log, limit_bytes, self.position)


# --- pieces ---


@frozen
class Place:
    """A position in a log: the inode of the file, and the offset at which a line starts."""

    inode: int
    offset: int

    def __str__(self) -> str:
        return f"{self.inode}-{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Place | None:
        """Parse a position that was converted with `str`. Return None if `text` is not a position."""
        found = _PLACE.fullmatch(text)
        return cls(int(found[1]), int(found[2])) if found else None


@frozen
class LogCursor:
    place: Place | None  # after the lines; None if there is no log
    lines: tuple[bytes, ...] = ()  # without newlines
    rest: bytes = b""  # the start of an unfinished line, with which the next piece begins again
    is_anew: bool = False  # the log was never read, replaced or truncated, so it is read from its end
    skipped_bytes: int = 0  # lines are missing before these, since more arrived than a piece holds


def piece_after(log: Path, place: Place | None) -> LogCursor:
    """Return the lines after `place`, or all lines if `place` is None: at most the last 128 KiB. Raises OSError."""
    try:
        with opened(log) as descriptor:
            found = os.fstat(descriptor)
            is_anew = place is None or place.inode != found.st_ino or place.offset > found.st_size
            after = 0 if place is None or is_anew else place.offset
            begin = max(after, found.st_size - MAX_PIECE_BYTES)
            text = bytes_between(descriptor, begin, found.st_size)
    except FileNotFoundError:
        return LogCursor(None, is_anew=place is not None)
    if begin > after:  # usually in the middle of a line
        cut = text.find(b"\n") + 1
        begin, text = begin + cut, text[cut:]
    *lines, rest = text.split(b"\n")
    behind = Place(found.st_ino, begin + len(text) - len(rest))
    return LogCursor(behind, tuple(lines), rest, is_anew, begin - after)
