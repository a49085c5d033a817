"""Read the lines of text files that may be gzipped, have byte order marks or unusual spaces, or not be UTF-8."""

from __future__ import annotations

import gzip
import re
import unicodedata
import zlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from launcher.core.errors import UnreadableError

GZIP_MAGIC = b"\x1f\x8b"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f]")
# Zero-width space, word joiner, byte order mark: invisible characters that neither separate nor join words.
INVISIBLE = re.compile("[\u200b\u2060\ufeff]")


def read_lines(path: Path) -> Generator[str, None, None]:
    """Yield each line of a UTF-8 file (plain or gzip) without its line end.

    Only a newline ends a line. U+2028, U+0085 and similar characters occur inside sentences of web corpora; splitting
    there would shift one side of a parallel text.

    Raises:
        UnreadableError: the file is missing, unreadable, damaged or not UTF-8 (with the line).
    """
    with as_unreadable_error(path), path.open("rb") as raw:
        yield from lines_of(raw, path)


def count_lines(path: Path) -> int:
    """Return the number of lines that `read_lines` yields, without decoding them."""
    with as_unreadable_error(path), path.open("rb") as raw:
        return sum(1 for _ in _unpacked(raw))


def _unpacked(raw: BufferedReader) -> Iterable[bytes]:
    # Peeked instead of opened twice, so that a pipe can be read too.
    return gzip.GzipFile(fileobj=raw) if raw.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC) else raw


def lines_of(raw: BufferedReader, path: Path) -> Generator[str, None, None]:
    """Yield the lines of the open file `raw`, as `read_lines` does. The caller may use `raw.tell()` between lines."""
    with as_unreadable_error(path):
        for number, line in enumerate(_unpacked(raw), start=1):
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
    """Normalise `text` to NFC, remove invisible characters, and reduce runs of white space and controls to one space.

    The result has no tab or newline, so it fits a column of a pair file. It is empty if no character is visible.
    """
    text = CONTROLS.sub(" ", text)
    if not text.isascii():
        # Composed after the characters that this reorders are adjacent.
        text = unicodedata.normalize("NFC", INVISIBLE.sub("", text))
        if all(unicodedata.category(each) == "Cf" or each.isspace() for each in text):
            return ""
    return " ".join(text.split())


@contextmanager
def as_unreadable_error(path: Path) -> Iterator[None]:
    """Convert errors in opening or reading `path` to an UnreadableError."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UnreadableError(f"{path}: cannot be read: {reason}") from error
