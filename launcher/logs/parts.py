"""What was moved out of a log: compressed in blocks, each of which can be read, and can be damaged, alone.

The format is blocked gzip (BGZF: the SAM specification, section 4.1). zcat reads it. Every block is a gzip member whose
header says how long the member is, so that one is found without those before it being decompressed.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import zlib
from collections.abc import Iterable
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import BinaryIO

# Of the log in every block but the last of a part. The format counts a compressed block in 16 bits, and what cannot be
# compressed becomes a little longer.
BLOCK_BYTES = 0xFF00
_LEVEL = 1
_HEADER = struct.Struct("<4sIBBH2sHH")
_MAGIC, _FIELD = b"\x1f\x8b\x08\x04", b"BC"
_TRAILER = struct.Struct("<II")
_RAW_DEFLATE = -15


def held_bytes(path: Path) -> int:
    """How many bytes of its log a part holds, as far as the headers of its blocks lead.

    Raises:
        OSError: the file cannot be read.
    """
    held = 0
    with closing(Part(path, 0, 0)) as part, suppress(ValueError):
        for number in count():
            held += part.size_of_block(number)
    return held


def write_part(file: BinaryIO, blocks: Iterable[bytes]) -> None:
    """Write a part to `file`. Every block but the last must be BLOCK_BYTES long.

    Raises:
        OSError: as `blocks` or `file` do: the disk is full, ...
    """
    file.writelines(map(_packed, blocks))
    file.write(_packed(b""))  # as the format asks: tells a whole file from one that was cut


class Part:
    """Logical bytes `start` .. `end` of a log, read from `path`. Holds one block in memory. Close it at the end.

    Raises:
        OSError: the file cannot be opened, or what has its name is no file.
    """

    def __init__(self, path: Path, start: int, end: int) -> None:
        self.start, self.end = start, end
        self._file: int | None = _opened(path)
        self._places = [0]  # of the blocks in the file, as far as they are known
        self._number, self._block = -1, b""  # the last one that was read

    def read(self, offset: int) -> bytes:
        """From logical `offset` to the end of its block.

        Raises:
            ValueError: the block is damaged, or missing.
            OSError: the file cannot be read.
        """
        number, skipped = divmod(offset - self.start, BLOCK_BYTES)
        if number != self._number:
            self._block, self._number = self._read_block(number), number
        return self._block[skipped:]

    def readable_from(self, offset: int) -> int:
        """The first logical offset of a sound block behind the one, damaged, that holds `offset`; else the end."""
        while (offset := self._block_end(offset)) < self.end:
            try:
                self.read(offset)
            except (ValueError, OSError):
                continue
            break
        return offset

    def size_of_block(self, number: int) -> int:
        """How many bytes of the log block `number` says that it holds.

        Raises:
            ValueError: the block, or one before it, is damaged or missing.
            OSError: the file cannot be read.
        """
        place, length_bytes = self._find(number)
        trailer = self._bytes(place + length_bytes - _TRAILER.size, _TRAILER.size)
        if len(trailer) < _TRAILER.size:
            raise ValueError("its end is missing")
        size_bytes: int = _TRAILER.unpack(trailer)[1]
        if size_bytes > BLOCK_BYTES:
            raise ValueError("it is damaged")
        return size_bytes

    def close(self) -> None:
        """May be called twice."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _bytes(self, place: int, size_bytes: int) -> bytes:
        assert self._file is not None
        return os.pread(self._file, size_bytes, place)

    def _block_end(self, offset: int) -> int:
        return min(self.end, offset + BLOCK_BYTES - (offset - self.start) % BLOCK_BYTES)

    def _read_block(self, number: int) -> bytes:
        place, length_bytes = self._find(number)
        packed = self._bytes(place, length_bytes)
        first = self.start + number * BLOCK_BYTES
        block = _unpacked(packed)
        if len(block) != self._block_end(first) - first:
            raise ValueError("it holds something else")
        return block

    def _find(self, number: int) -> tuple[int, int]:
        """Where block `number` is in the file, and how long."""
        while len(self._places) <= number:
            self._places.append(self._places[-1] + self._length_at(self._places[-1]))
        return self._places[number], self._length_at(self._places[number])

    def _length_at(self, place: int) -> int:
        header = self._bytes(place, _HEADER.size)
        if not header:
            raise ValueError("its end is missing")
        if len(header) < _HEADER.size or header[:4] != _MAGIC or header[12:14] != _FIELD:
            raise ValueError("it is damaged")
        length_bytes: int = _HEADER.unpack(header)[-1] + 1
        if length_bytes <= _HEADER.size + _TRAILER.size:
            raise ValueError("it is damaged")
        return length_bytes


def _opened(path: Path) -> int:
    """A descriptor. Whatever has that name, a pipe for one, nobody is waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise FileNotFoundError(errno.ENOENT, "no regular file", str(path))


def _packed(block: bytes) -> bytes:
    squeezer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW_DEFLATE)
    body = squeezer.compress(block) + squeezer.flush()
    length_bytes = _HEADER.size + len(body) + _TRAILER.size
    header = _HEADER.pack(_MAGIC, 0, 0, 0xFF, 6, _FIELD, 2, length_bytes - 1)
    return header + body + _TRAILER.pack(zlib.crc32(block), len(block))


def _unpacked(packed: bytes) -> bytes:
    try:
        block = zlib.decompressobj(_RAW_DEFLATE).decompress(packed[_HEADER.size : -_TRAILER.size], BLOCK_BYTES + 1)
    except zlib.error as error:
        raise ValueError("it is damaged") from error
    if _TRAILER.pack(zlib.crc32(block), len(block)) != packed[-_TRAILER.size :]:
        raise ValueError("it is damaged")
    return block
