"""List the shared libraries that a compiled program needs, from its ELF file. Unlike `ldd`, this executes nothing."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

_MAGIC = b"\x7fELF"
_LOAD, _DYNAMIC = 1, 2  # segment types
_END, _NEEDED, _STRINGS = 0, 1, 5  # tags in the dynamic segment
_MAX_TABLE_BYTES = 1 << 20  # of a table; larger claims are treated as damage
_MAX_NAME_BYTES = 4096


def needed_libraries(path: Path) -> tuple[str, ...]:
    """Return the shared libraries that an ELF file needs, such as "libmpi.so.40", or () for other files."""
    try:
        with path.open("rb") as file:
            return tuple(_names(file))
    except (OSError, struct.error, ValueError, OverflowError):
        return ()


def _names(file: BinaryIO) -> Iterator[str]:
    ident = file.read(16)
    if len(ident) < 16 or ident[:4] != _MAGIC or ident[4] not in {1, 2} or ident[5] not in {1, 2}:
        return
    wide, order = ident[4] == 2, "<" if ident[5] == 1 else ">"
    segments = list(_segments(file, order, wide=wide))
    dynamic = next((segment for segment in segments if segment[0] == _DYNAMIC), None)
    if dynamic is None:
        return
    entry = struct.Struct(order + ("qQ" if wide else "iI"))
    size = min(dynamic[3], _MAX_TABLE_BYTES) // entry.size * entry.size
    tags = list(takewhile(lambda found: found[0] != _END, entry.iter_unpack(_at(file, dynamic[1], size))))
    strings = next((value for tag, value in tags if tag == _STRINGS), -1)  # the address of the names when loaded
    loaded = (offset - start for kind, offset, start, size in segments if kind == _LOAD and 0 <= strings - start < size)
    if (moved := next(loaded, None)) is not None:
        for needed in (value for tag, value in tags if tag == _NEEDED):
            name = _at(file, strings + moved + needed, _MAX_NAME_BYTES, whole=False)
            yield name.partition(b"\0")[0].decode(errors="replace")


def _segments(file: BinaryIO, order: str, *, wide: bool) -> Iterator[tuple[int, int, int, int]]:
    """Yield the (type, offset, address, size in the file) of each segment of an ELF file."""
    header = struct.Struct(order + ("HHIQQQIHHH" if wide else "HHIIIIIHHH"))
    *_, start, _, _, _, entry_size, count = header.unpack(_at(file, 16, header.size))
    layout = struct.Struct(order + ("IIQQQQ" if wide else "IIIIII"))
    for index in range(count):
        fields = layout.unpack(_at(file, start + index * entry_size, layout.size))
        yield (fields[0], fields[2], fields[3], fields[5]) if wide else (fields[0], fields[1], fields[2], fields[4])


def _at(file: BinaryIO, offset: int, size: int, *, whole: bool = True) -> bytes:
    file.seek(offset)
    data = file.read(size)
    if whole and len(data) < size:
        raise ValueError("the file ends early")
    return data
