"""Make text from programs and files safe to show on a terminal."""

from __future__ import annotations

import re

from launcher.core.text import CONTROL, SHOWN_AS

MAX_LINE_CHARS = 1000  # characters shown of one line
_COLOUR_END = "\x1b[0m"
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_CUT_COLOUR = re.compile(r"\x1b[^m]*\Z")
# Complete sequences that move the cursor, set a title and so on: they make no sense among other lines.
_OTHER_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-ln-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_CONTROL_BUT_NEWLINE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

_HARMLESS_BYTES = bytes({*b"\t\n", *range(0x20, 0x7F), *range(0x80, 0x100)})
_C1_CONTROL = re.compile(rb"\xc2[\x80-\x9f]")  # encoded as UTF-8
_DIRECTION = re.compile(rb"\xe2(?:\x80[\xaa-\xae]|\x81[\xa6-\xa9])")


def printable_lines(text: str) -> list[str]:
    """Split `text` into lines and make each line printable, as `printable` does."""
    lines = text.split("\n")
    return lines if _CONTROL_BUT_NEWLINE.search(text) is None else [printable(line) for line in lines]


def printable(line: str) -> str:
    r"""Remove or escape everything in a line that affects the terminal, except colours and tabs.

    Of text overwritten after a carriage return (progress bars), the last part is kept, as on a screen.

    >>> printable("10%\r20%\r"), printable("\x1b]0;title\x07bell\x07")
    ('20%', 'bell^G')
    """
    return _harmless(next((part for part in reversed(line.split("\r")) if part), ""))


def printable_parts(line: str) -> list[str]:
    r"""Split a line at carriage returns, and make each part printable. The result has at least one part.

    >>> printable_parts("10%\r20%\r")
    ['10%', '20%']
    """
    return [_harmless(part) for part in line.split("\r") if part] or [""]


def one_line(text: str) -> str:
    r"""Join all lines of `text` into one printable line with single spaces.

    >>> one_line("no such file:\n    a.txt\n")
    'no such file: a.txt'
    """
    return printable(" ".join(text.split()))


def shortened(line: str) -> str:
    """Shorten a printable line that is too long, and append the size of the omitted text."""
    if len(line) <= MAX_LINE_CHARS:
        return line
    more_bytes = len(line[MAX_LINE_CHARS:].encode(errors="replace"))
    kept = _CUT_COLOUR.sub("", line[:MAX_LINE_CHARS])
    shift, unit = next((each for each in ((20, "MiB"), (10, "KiB")) if more_bytes >> each[0]), (0, "bytes"))
    return f"{kept}{_COLOUR_END if _COLOUR.search(kept) else ''}… {more_bytes >> shift} {unit} more"


def without_colours(text: str) -> str:
    """Remove the ANSI colours that `printable` keeps, so that each character takes one column."""
    return _COLOUR.sub("", text)


def escaped(text: str) -> str:
    r"""Escape unprintable characters as Python does, so that `text` fits on one line.

    >>> escaped("a\n\x1b[2J")
    'a\\n\\x1b[2J'
    """
    return text if text.isprintable() else text.encode("unicode_escape", "surrogatepass").decode("ascii")


def _harmless(text: str) -> str:
    if CONTROL.search(text) is None:
        return text
    text = _OTHER_SEQUENCE.sub("", text)
    pieces, colours = _COLOUR.split(text), [*_COLOUR.findall(text), ""]
    safe = "".join(piece.translate(SHOWN_AS) + colour for piece, colour in zip(pieces, colours, strict=True))
    return safe + _COLOUR_END if any(colours) and not safe.endswith(_COLOUR_END) else safe


def certainly_printable(block: bytes) -> bool:
    """Return True if all lines in `block` are certainly printable, and False if they must be examined further."""
    if block.translate(None, _HARMLESS_BYTES):
        return False
    if (b"\xc2" in block and _C1_CONTROL.search(block)) or (b"\xe2" in block and _DIRECTION.search(block)):
        return False
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True
