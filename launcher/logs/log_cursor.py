"""Follow a log in pieces without keeping it open: the reader remembers its position."""

from __future__ import annotations

import os
import re
from pathlib import Path

from launcher.core.frozen import frozen
from launcher.logs.log_file import bytes_between, opened

MAX_BYTES = 1 << 17  # of a piece; older unread bytes beyond that are skipped

_PLACE = re.compile(r"(\d{1,20})-(\d{1,19})", re.ASCII)


@frozen
class Place:
    """A position in a log: the file, and the offset after the end of a line."""

    inode: int
    offset: int

    def __str__(self) -> str:
        return f"{self.inode}-{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Place | None:
        """Parse a position written by `str`; return None if `text` is not one."""
        found = _PLACE.fullmatch(text)
        return cls(int(found[1]), int(found[2])) if found else None


@frozen
class LogCursor:
    """The new lines of a log after a position."""

    place: Place | None  # after the lines; None if there is no log
    lines: tuple[bytes, ...] = ()  # without newlines
    rest: bytes = b""  # the start of an unfinished line, with which the next piece begins again
    is_anew: bool = False  # the log was never read, replaced or truncated, so it is read from its end
    skipped_bytes: int = 0  # lines are missing before these, since more arrived than a piece holds


def piece_after(log: Path, place: Place | None) -> LogCursor:
    """Return the lines after `place`, at most the last 128 KiB; from the log's end if it was never read.

    Never blocks. Raises OSError if the log exists and cannot be read.
    """
    try:
        with opened(log) as descriptor:
            found = os.fstat(descriptor)
            is_anew = place is None or place.inode != found.st_ino or place.offset > found.st_size
            after = 0 if place is None or is_anew else place.offset
            begin = max(after, found.st_size - MAX_BYTES)
            text = bytes_between(descriptor, begin, found.st_size)
    except FileNotFoundError:
        return LogCursor(None, is_anew=place is not None)
    if begin > after:  # usually in the middle of a line
        cut = text.find(b"\n") + 1
        begin, text = begin + cut, text[cut:]
    *lines, rest = text.split(b"\n")
    behind = Place(found.st_ino, begin + len(text) - len(rest))
    return LogCursor(behind, tuple(lines), rest, is_anew, begin - after)
