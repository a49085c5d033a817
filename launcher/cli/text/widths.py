"""How many columns of a terminal a text takes: Chinese characters and emoji two each, accents that combine none."""

from __future__ import annotations

from itertools import accumulate

_WIDE = frozenset("WF")
_WITHOUT_WIDTH = frozenset({"Mn", "Me", "Cf"})
_FORMATS_WITH_WIDTH = frozenset("\xad\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2")


def columns_of(text: str) -> int:
    """Of text without colours. A sequence of several characters that is shown as one may take fewer."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def cut_to(text: str, columns: int) -> str:
    """The beginning of text without colours, as much as fits."""
    if text.isascii():
        return text[: max(0, columns)]
    ends = accumulate(map(_columns, text))
    return "".join(character for character, end in zip(text, ends, strict=True) if end <= columns)


def _columns(character: str) -> int:
    import unicodedata  # most texts need none of it

    if unicodedata.category(character) in _WITHOUT_WIDTH and character not in _FORMATS_WITH_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(character) in _WIDE else 1
