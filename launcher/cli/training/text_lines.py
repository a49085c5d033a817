"""The lines of texts that are to be translated: of stdin as they arrive, of files plain or gzip."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from launcher.core.errors import UnreadableError
from launcher.core.frozen import frozen
from launcher.corpus.text import read_lines

MAX_LINE_BYTES = 1 << 20
BLOCK_BYTES = 1 << 16
STDIN = "stdin"


@frozen
class Line:
    text: str  # without its end
    size_bytes: int  # with it, in the text


def stdin_lines() -> Iterator[Line]:
    """Yield each line of stdin as soon as it is there. Not through the interpreter's buffer, which a thread must not hold at the end.

    Raises:
        UnreadableError: stdin cannot be read, or a line of it is not UTF-8 or longer than MAX_LINE_BYTES.
    """
    begun, number = b"", 0
    while block := _block_of_stdin():
        *lines, begun = (begun + block).split(b"\n")
        for line in lines:
            number += 1
            yield _line(line, number, ended=True)
        if len(begun) > MAX_LINE_BYTES:
            _line(begun, number + 1, ended=False)
    if begun:
        yield _line(begun, number + 1, ended=False)


def _block_of_stdin() -> bytes:
    try:
        return os.read(sys.stdin.fileno(), BLOCK_BYTES)
    except OSError as error:
        raise UnreadableError(f"{STDIN}: cannot be read: {error.strerror}") from None


def _line(content: bytes, number: int, *, ended: bool) -> Line:
    if len(content) > MAX_LINE_BYTES:
        raise UnreadableError(
            f"{STDIN}:{number}: a line of more than {MAX_LINE_BYTES:,} bytes", hint="one sentence a line"
        )
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableError(
            f"{STDIN}:{number}: not UTF-8: byte 0x{content[error.start]:02x} at position {error.start + 1} of the line",
            hint="iconv -f ISO-8859-1 -t UTF-8, if it is that",
        ) from None
    return Line((text.removeprefix("\ufeff") if number == 1 else text).removesuffix("\r"), len(content) + ended)


def file_lines(path: Path) -> Iterator[Line]:
    """Yield the lines of a file, unpacked if it is gzip.

    Raises:
        UnreadableError: as `read_lines`.
    """
    for text in read_lines(path):
        yield Line(text, len(text.encode()) + 1)
