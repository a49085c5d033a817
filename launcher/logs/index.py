"""What stands where of a log whose oldest bytes were moved into parts: train.log.parts.json.

A log has *logical* offsets: how many bytes were ever written before. Those from `parts[0]` to `freed` are in parts;
those from `freed` on are in the live file, whose first byte has the logical offset `base`. Where bytes were cut out of
the live file `base` equals `freed`; where a hole was made in their place, the hole reaches from `base` to `freed`.

The file is only ever replaced as a whole, so that a reader knows by its inode whether anything has changed.
"""

from __future__ import annotations

import errno
import json
import os
import re
import zlib
from contextlib import closing
from dataclasses import asdict
from dataclasses import replace as changed
from pathlib import Path

from launcher.core.atomic import write_text
from launcher.core.frozen import frozen, known
from launcher.logs.parts import BLOCK_BYTES, Part, held_bytes

SCHEMA = 1
_HEAD_BYTES = 4096
_PART_NAME = re.compile(r"\.(\d{16,18})\.gz", re.ASCII)


@frozen
class Index:
    base: int = 0
    freed: int = 0  # Invariant: base <= freed
    parts: tuple[int, ...] = ()  # where each begins; it ends where the next one begins, and the last one at `freed`
    kept_bytes: int = 0  # how many from `freed` on were in the live file when this was noted
    head: int = 0  # CRC-32 of the first of them: tells whether the live file is still the one that was described
    renewals: int = 0  # how often it was found not to be: emptied by somebody, or made again
    # Set while the bytes before `freed` are being cut out: they have been cut out if the file no longer begins with it.
    marker: str | None = None

    @property
    def hole_bytes(self) -> int:
        """How many bytes at the start of the live file are in parts."""
        return self.freed - self.base

    @property
    def noted_end(self) -> int:
        return self.freed + self.kept_bytes


PLAIN = Index()  # of a log from which nothing was moved


def index_path(log: Path) -> Path:
    return log.with_name(f"{log.name}.parts.json")


def part_path(log: Path, start: int) -> Path:
    return log.with_name(f"{log.name}.{start:016d}.gz")


def part_starts(log: Path) -> list[int]:
    """Where each part begins whose file is there, whatever the index says of it, ascending.

    Raises:
        OSError: the directory cannot be read.
    """
    try:
        names = [path.name for path in log.parent.iterdir()]
    except FileNotFoundError:
        return []
    found = (_PART_NAME.fullmatch(name, len(log.name)) for name in names if name.startswith(log.name))
    return sorted(int(match[1]) for match in found if match)


def parse(text: bytes) -> Index:
    """What the index file says.

    Raises:
        ValueError: it is not one, or is one of a later version.
    """
    try:
        fields = json.loads(text)
    except RecursionError as error:
        raise ValueError("not an index") from error
    if not isinstance(fields, dict) or fields.get("schema") != SCHEMA:
        raise ValueError("not an index of this version")
    try:
        index = Index(**{**known(Index, fields), "parts": tuple(fields["parts"])})
        (index.marker or "").encode()
    except (TypeError, KeyError, UnicodeEncodeError) as error:
        raise ValueError("not an index") from error
    if min(index.base, index.kept_bytes, index.head, index.renewals, *index.parts[:1]) < 0:
        raise ValueError("not an index")
    edges = [*index.parts, index.freed]
    if index.base > index.freed or edges != sorted(set(edges)):
        raise ValueError("an index that contradicts itself")
    return index


def save(log: Path, index: Index) -> None:
    """Replace the index of `log`. After a loss of power there is the old one or this one.

    Raises:
        OSError: the disk is full, ...
    """
    write_text(index_path(log), json.dumps({"schema": SCHEMA, **asdict(index)}) + "\n")


def flush_names(log: Path) -> None:
    """On return the names of parts and index of `log` will survive a loss of power."""
    directory = os.open(log.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def is_marked(index: Index, live: int) -> bool:
    """Whether the live file (a descriptor) begins with the marker; False where none is set."""
    marker = (index.marker or "").encode()
    return bool(marker) and os.pread(live, len(marker), 0) == marker


def settled(index: Index, *, marked: bool) -> Index:
    """As it really is, whoever may have been interrupted between cutting bytes out and noting it."""
    return index if index.marker is None or marked else changed(index, base=index.freed, marker=None)


def describes(index: Index, live: int, size_bytes: int) -> bool:
    """Whether the live file (a descriptor) is still the one that a settled index speaks of, with bytes appended."""
    return size_bytes >= index.hole_bytes + index.kept_bytes and index.head == head(live, index)


def noted(index: Index, live: int, size_bytes: int) -> Index:
    """With what is now in the live file, to know it again."""
    index = changed(index, kept_bytes=size_bytes - index.hole_bytes)
    return changed(index, head=head(live, index))


def renewed(index: Index) -> Index:
    """Of a live file that is another one: it begins where the last one was known to end, and what was before is left.

    Its offsets go on, so that no new part takes the name of an old one.
    """
    return Index(base=index.noted_end, freed=index.noted_end, renewals=index.renewals + 1)


def head(live: int, index: Index) -> int:
    return zlib.crc32(os.pread(live, min(index.kept_bytes, _HEAD_BYTES), index.hole_bytes))


def rebuilt(log: Path, live: int | None) -> Index:
    """What parts tell by their names and sizes, where the index is missing or cannot be understood.

    `live`: the live file (a descriptor); None where there is none.

    Raises:
        OSError: a file cannot be read.
    """
    parts = part_starts(log)
    if not parts:
        return PLAIN
    hole_bytes = 0 if live is None else _hole_bytes(live)
    last = part_path(log, parts[-1])
    # What was written, but not noted, is in the live file still.
    is_moved = live is None or not _begins_with(live, hole_bytes, last)
    freed = max(hole_bytes, parts[-1] + (_held_bytes(last) if is_moved else 0))
    index = Index(base=freed - hole_bytes, freed=freed, parts=tuple(start for start in parts if start < freed))
    return index if live is None else noted(index, live, os.fstat(live).st_size)


def _hole_bytes(live: int) -> int:
    """How much of the file's start has been freed without being cut out."""
    try:
        return os.lseek(live, 0, os.SEEK_DATA)
    except OSError as error:
        return os.fstat(live).st_size if error.errno == errno.ENXIO else 0


def _begins_with(live: int, place: int, part: Path) -> bool:
    """Whether the live file holds at `place` what the part begins with."""
    try:
        with closing(Part(part, 0, BLOCK_BYTES)) as opened:
            size_bytes = opened.size_of_block(0)
        with closing(Part(part, 0, size_bytes)) as opened:
            return size_bytes > 0 and os.pread(live, size_bytes, place) == opened.read(0)
    except (OSError, ValueError):
        return False


def _held_bytes(part: Path) -> int:
    """At least one, though nobody knows of which: so it is told that they cannot be read."""
    try:
        return max(1, held_bytes(part))
    except OSError:
        return 1
