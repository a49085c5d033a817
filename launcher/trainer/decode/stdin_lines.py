"""Read the lines of stdin as they arrive."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from launcher.core.errors import UnreadableError
from launcher.corpus.text_files import GZIP_MAGIC

MAX_LINE_BYTES = 1 << 20
BLOCK_BYTES = 1 << 16
STDIN = "stdin"


def stdin_lines() -> Iterator[list[str]]:
    """Yield lists of lines from stdin as soon as they arrive, without line ends.

    Raises:
        UnreadableError: stdin cannot be read or is compressed, or a line is not UTF-8 or is longer than MAX_LINE_BYTES.
            Earlier lines are yielded first.
    """
    begun, number = b"", 0
    while block := _block():
        *ended, begun = (begun + block).split(b"\n")
        lines: list[str] = []
        try:
            for content in ended:
                number += 1
                lines.append(_text(content, number))
            _check_length(begun, number + 1)
        except UnreadableError:
            yield lines
            raise
        yield lines
    if begun:
        yield [_text(begun, number + 1)]


def _block() -> bytes:
    try:
        return os.read(sys.stdin.fileno(), BLOCK_BYTES)
    except OSError as error:
        raise UnreadableError(f"{STDIN}: cannot be read: {error.strerror}") from None


def _check_length(content: bytes, number: int) -> None:
    if len(content) > MAX_LINE_BYTES:
        raise UnreadableError(
            f"{STDIN}:{number}: a line of more than {MAX_LINE_BYTES:,} bytes", hint="write one sentence per line"
        )


def _text(content: bytes, number: int) -> str:
    _check_length(content, number)
    if number == 1 and content.startswith(GZIP_MAGIC):
        raise UnreadableError(f"{STDIN} is compressed with gzip", hint="uncompress it: `zcat FILE | tlaunch translate`")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableError(
            f"{STDIN}:{number}: not UTF-8: byte 0x{content[error.start]:02x} at position {error.start + 1} of the line",
            hint="if the text is ISO-8859-1, convert it with `iconv -f ISO-8859-1 -t UTF-8`",
        ) from None
    return (text.removeprefix("\ufeff") if number == 1 else text).removesuffix("\r")
