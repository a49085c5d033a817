"""The lines of texts as they are delivered: gzip or plain, byte order marks, wrong encodings, odd blanks."""

from __future__ import annotations

import gzip
import re
import unicodedata
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from launcher.core.errors import UnreadableError

GZIP_MAGIC = b"\x1f\x8b"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f]")


def read_lines(path: Path) -> Generator[str, None, None]:
    """Yield every line of `path` without its end, UTF-8, unpacked when the file is gzip (whatever its name).

    Only a newline ends a line: U+2028, U+0085 and their like occur inside the sentences of web corpora, and would
    shift one side of a parallel text against the other.

    Raises:
        UnreadableError: the file is missing, unreadable, damaged or not UTF-8 (with the line).
    """
    with _opened(path) as lines:
        for number, raw in enumerate(lines, start=1):
            try:
                line = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                found = "UTF-16" if number == 1 and raw.startswith(UTF16_MARKS) else "ISO-8859-1"
                raise UnreadableError(
                    f"{path}:{number}: not UTF-8: byte 0x{raw[error.start]:02x} at position {error.start + 1} of the line",
                    hint=f"if it is {found}: iconv -f {found} -t UTF-8 {path.name} > converted",
                ) from error
            yield (line.removeprefix("\ufeff") if number == 1 else line).removesuffix("\n").removesuffix("\r")


def normalised(text: str) -> str:
    """Compose `text` (NFC), and make every run of blanks, tabs, newlines and control characters one blank.

    The result holds no tab and nothing that a reader takes for the end of a line, so it fits a column of a pair file.
    """
    return " ".join(CONTROLS.sub(" ", unicodedata.normalize("NFC", text)).split())


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open `path` for reading bytes; look ahead instead of opening twice, so that a pipe can be read too."""
    try:
        with path.open("rb") as raw:
            if raw.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC):
                with gzip.GzipFile(fileobj=raw) as unpacked:
                    yield cast("BinaryIO", unpacked)
            else:
                yield raw
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UnreadableError(f"{path}: cannot be read: {reason}") from error
