"""Tables of plain text, and amounts as people say them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400
GAP = "  "


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[str] = frozenset()) -> list[str]:
    """One line per row below the header; the columns named in `right` end alike, the others begin alike."""
    table = [tuple(header), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [GAP.join(_cells(row, header, widths, right)).rstrip() for row in table]


def _cells(row: Sequence[str], header: Sequence[str], widths: Sequence[int], right: frozenset[str]) -> Iterator[str]:
    for cell, name, width in zip(row, header, widths, strict=True):
        yield cell.rjust(width) if name in right else cell.ljust(width)


def duration(seconds: float | None) -> str:
    """With two units at most; "-" for None.

    >>> [duration(s) for s in (0.25, 75, 7300, 200000)]
    ['0.2 s', '1 min 15 s', '2 h 1 min', '2 d 7 h']
    """
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for unit_s, unit, part_s, part in (
        (DAY_S, "d", HOUR_S, "h"),
        (HOUR_S, "h", MINUTE_S, "min"),
        (MINUTE_S, "min", 1, "s"),
    ):
        if whole >= unit_s:
            rest = whole % unit_s // part_s
            return f"{whole // unit_s} {unit}" + (f" {rest} {part}" if rest else "")
    return f"{whole} s"


def size(count_bytes: int | None) -> str:
    """In binary units; "-" for None.

    >>> size(900), size(70 << 20)
    ('900 B', '70.0 MiB')
    """
    if count_bytes is None:
        return "-"
    if count_bytes < 1024:
        return f"{count_bytes} B"
    amount = float(count_bytes)
    for unit in ("KiB", "MiB", "GiB"):
        amount /= 1024
        if amount < 1024:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1024:.1f} TiB"


def number(value: float | None, form: str) -> str:
    """As `form` (of `format`) says; "-" for None."""
    return "-" if value is None else format(value, form)
