"""The lines of texts as they are delivered: gzip or plain, byte order marks, wrong encodings, odd blanks."""

from __future__ import annotations

import gzip
import re
import unicodedata
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from launcher.core.errors import UnreadableError

GZIP_MAGIC = b"\x1f\x8b"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f]")
# Zero-width space, word joiner, byte order mark: they show nothing, and separate or join no words of their own.
INVISIBLE = re.compile("[\u200b\u2060\ufeff]")


def read_lines(path: Path) -> Generator[str, None, None]:
    """Yield every line of `path` without its end, UTF-8, unpacked when the file is gzip (whatever its name).

    Only a newline ends a line: U+2028, U+0085 and their like occur inside the sentences of web corpora, and would
    shift one side of a parallel text against the other.

    Raises:
        UnreadableError: the file is missing, unreadable, damaged or not UTF-8 (with the line).
    """
    with told_as_unreadable(path), path.open("rb") as raw:
        yield from lines_of(raw, path)


def lines_of(raw: BufferedReader, path: Path) -> Generator[str, None, None]:
    """Yield the lines of an open file as `read_lines` does; the caller may ask `raw` meanwhile how far it has been read.

    Raises:
        UnreadableError: the file is damaged or not UTF-8 (with the line).
    """
    with told_as_unreadable(path):
        # Looked at ahead instead of opened twice, so that a pipe can be read too.
        is_packed = raw.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC)
        for number, line in enumerate(gzip.GzipFile(fileobj=raw) if is_packed else raw, start=1):
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                found = "UTF-16" if number == 1 and line.startswith(UTF16_MARKS) else "ISO-8859-1"
                raise UnreadableError(
                    f"{path}:{number}: not UTF-8: byte 0x{line[error.start]:02x} at position {error.start + 1} of the line",
                    hint=f"if it is {found}: iconv -f {found} -t UTF-8 {path.name} > converted",
                ) from error
            yield (text.removeprefix("\ufeff") if number == 1 else text).removesuffix("\n").removesuffix("\r")


def normalised(text: str) -> str:
    """Compose `text` (NFC), drop invisible characters, and replace each run of blanks and control characters by one blank.

    The result holds no tab and no line end, so it fits a column of a pair file. It is empty if no character of it is visible.
    """
    text = CONTROLS.sub(" ", text)
    if not text.isascii():
        text = unicodedata.normalize("NFC", INVISIBLE.sub("", text))  # once characters that it orders are neighbours
        if all(unicodedata.category(each) == "Cf" or each.isspace() for each in text):
            return ""
    return " ".join(text.split())


@contextmanager
def told_as_unreadable(path: Path) -> Iterator[None]:
    """Turn what opening and reading `path` may raise into an UnreadableError."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UnreadableError(f"{path}: cannot be read: {reason}") from error
