"""Follow a log piece by piece without holding it open: who reads keeps the place up to which it has read."""

from __future__ import annotations

import os
import re
from pathlib import Path

from launcher.core.frozen import frozen
from launcher.logs.log_file import bytes_between, opened

MAX_BYTES = 1 << 17  # of a piece; more that has come since the last one is left out

_PLACE = re.compile(r"(\d{1,20})-(\d{1,19})", re.ASCII)


@frozen
class Place:
    """A place in a log: which file that is, and the offset behind the end of a line."""

    inode: int
    offset: int

    def __str__(self) -> str:
        return f"{self.inode}-{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Place | None:
        """Return the place that `str` has written; None where the text is none."""
        found = _PLACE.fullmatch(text)
        return cls(int(found[1]), int(found[2])) if found else None


@frozen
class Piece:
    """What has come to a log after a place."""

    place: Place | None  # behind the lines; None where there is no log
    lines: tuple[bytes, ...] = ()  # without newlines
    rest: bytes = b""  # the beginning of a line, which the next piece begins with again
    is_anew: bool = False  # the log was never read, replaced or truncated: it is read from its end
    skipped_bytes: int = 0  # before the lines: more had come than a piece may hold


def piece_after(log: Path, place: Place | None) -> Piece:
    """Return what has come after `place`, at most the last 128 KiB of it; from the end of a log that was never read.

    Never blocks. Raises OSError where the log is there and cannot be read.
    """
    try:
        with opened(log) as descriptor:
            found = os.fstat(descriptor)
            is_anew = place is None or place.inode != found.st_ino or place.offset > found.st_size
            after = 0 if place is None or is_anew else place.offset
            begin = max(after, found.st_size - MAX_BYTES)
            text = bytes_between(descriptor, begin, found.st_size)
    except FileNotFoundError:
        return Piece(None, is_anew=place is not None)
    if begin > after:  # in the midst of a line, as a rule
        cut = text.find(b"\n") + 1
        begin, text = begin + cut, text[cut:]
    *lines, rest = text.split(b"\n")
    behind = Place(found.st_ino, begin + len(text) - len(rest))
    return Piece(behind, tuple(lines), rest, is_anew, begin - after)
