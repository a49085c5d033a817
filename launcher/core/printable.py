"""Text from elsewhere as a message may show it, on one line: the name of a file may hold anything, line ends too."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Return `text` with everything escaped that ends a line, moves a terminal's cursor or turns its direction.

    >>> printable("no\nerror: all is well.json")
    'no\\u000aerror: all is well.json'
    """
    return text if text.isprintable() else "".join(map(_printable, text))


def _printable(char: str) -> str:
    return char if char.isprintable() else f"\\u{ord(char):04x}"
