"""Plain-text tables and sparklines, display widths, and formatted durations, sizes and numbers."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from types import MappingProxyType

from launcher.logs.terminal import escaped, without_colours

Painters = Mapping[str, Callable[[str], str]]

DURATIONS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
GAP = "  "
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
SERVERS_SHOWN = 8  # names in a list of servers; the others are counted
BLOCKS = "▁▂▃▄▅▆▇█"
PLAIN = "_.:-=+*#"  # for encodings without block elements
MAX_SECOND_COLUMNS = 28
MIN_LAST_COLUMNS = 16
MAX_NUMBER_CHARS = 16  # longer numbers, for example from a heartbeat file, are shown as powers of ten


def aligned(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[str] = frozenset(), paint: Painters = MappingProxyType({})
) -> list[str]:  # fmt: skip
    """Return the lines of a table with a header. Columns in `right` are right-aligned.

    Colours in the cells are removed; `paint` maps a column's name to a function that colours its cells.
    """
    table = [tuple(header), *(tuple(map(without_colours, row)) for row in rows)]
    widths = [max(map(columns_of, column)) for column in zip(*table, strict=True)]
    lines = []
    for number, row in enumerate(table):
        cells = []
        for cell, name, width in zip(row, header, widths, strict=True):
            shown = padded(cell, width, right=name in right)
            cells.append(shown.replace(cell, paint[name](cell), 1) if number and cell and name in paint else shown)
        lines.append(GAP.join(cells).rstrip())
    return lines


def fitted(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    giving_way: Sequence[tuple[str, int]],
    right: frozenset[str] = frozenset(),
    paint: Painters = MappingProxyType({}),
) -> list[str]:
    """Return the lines of a table. If possible, columns are shrunk to fit the table into `width` characters.

    `giving_way` lists the columns to shrink, in this order, with their minimum widths; 0 drops the column. Other
    columns keep their width.
    """
    table = [tuple(header), *(tuple(map(without_colours, row)) for row in rows)]
    whole = {name: max(map(columns_of, column)) for name, *column in zip(header, *table, strict=True)}
    widths = dict(whole)

    def excess() -> int:
        return sum(widths.values()) + len(GAP) * (len(widths) - 1) - width

    for name, least in giving_way:
        if excess() <= 0:
            break
        if least:
            widths[name] = max(min(least, widths[name]), widths[name] - excess())
        else:
            del widths[name]
    for name, columns in tuple(widths.items()):  # a dropped column may leave some room
        widths[name] = min(whole[name], columns + max(0, -excess()))
    kept = [(place, widths[name]) for place, name in enumerate(header) if name in widths]
    shown = [tuple(cut_off(row[place], columns) for place, columns in kept) for row in table]
    lines = aligned(shown[0], shown[1:], right=right)
    painted = aligned(shown[0], shown[1:], right=right, paint=paint) if paint else lines
    return [
        whole if columns_of(line) <= width else cut_off(line, width) for line, whole in zip(lines, painted, strict=True)
    ]


def wrapped_columns(rows: Sequence[tuple[str, str, str]], width: int | None) -> Iterator[str]:
    """Yield the rows as aligned columns. Texts in the last column are wrapped at `width`, unless it is None.

    A long text in the second column shifts the last one to the right. If the last column would be narrow, its texts
    that do not fit begin on a new line.
    """
    first = max(columns_of(row[0]) for row in rows)
    second = max(columns_of(row[1]) for row in rows if columns_of(row[1]) <= MAX_SECOND_COLUMNS)
    for one, two, text in rows:
        begins, at = f"{padded(one, first)}{GAP}{padded(two, second)}", first + second + 2 * len(GAP)
        if width is None or columns_of(f"{begins}{GAP}{text}") <= width:
            yield f"{begins}{GAP}{text}".rstrip()
            continue
        if width - at < MIN_LAST_COLUMNS:
            at = 4
        if columns_of(begins) + len(GAP) > at:
            yield begins.rstrip()
            begins = ""
        lines = textwrap.wrap(text, max(1, width - at), break_long_words=False, break_on_hyphens=False)
        for line in lines or [""]:
            yield f"{padded(begins, at)}{line}"
            begins = ""


def cut_off(text: str, columns: int) -> str:
    """Remove colours from `text`. If it is wider than `columns` on a terminal, shorten it with "…"."""
    return text if columns_of(text) <= columns else f"{cut_to(text, columns - 1)}…"


def padded(text: str, columns: int, *, right: bool = False) -> str:
    """Pad `text` with spaces to `columns` columns on a terminal. If `right` is true, right-align the text."""
    blanks = " " * (columns - columns_of(text))
    return blanks + text if right else text + blanks


def duration(seconds: float | None) -> str:
    """Format a duration with at most two units, or return "-" for None.

    >>> [duration(s) for s in (0.25, 42.88, 75, 7300, 200000)]
    ['0.2 s', '43 s', '1 min 15 s', '2 h 1 min', '2 d 7 h']
    """
    if seconds is None:
        return "-"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for (unit_s, unit), (part_s, part) in pairwise(DURATIONS):
        if whole >= unit_s:
            rest = whole % unit_s // part_s
            return f"{whole // unit_s} {unit}" + (f" {rest} {part}" if rest else "")
    return f"{whole} s"


def time_limit(limit_s: float | None) -> str:
    """Describe the time limit of a run: "time limit of 1.5 s", "time limit of 8 h"."""
    return f"time limit of {f'{limit_s:g} s' if limit_s is not None and limit_s < 60 else duration(limit_s)}"


def duration_in_seconds(seconds: float) -> str:
    """Format a duration as `duration` does, without fractions of a second.

    >>> duration_in_seconds(4.7)
    '4 s'
    """
    return f"{int(seconds)} s" if seconds < 10 else duration(seconds)


def size(count_bytes: int | None) -> str:
    """Format a number of bytes in binary units, or return "-" for None.

    >>> size(900), size(70 << 20)
    ('900 B', '70.0 MiB')
    """
    if count_bytes is None:
        return "-"
    power = min((max(count_bytes, 1).bit_length() - 1) // 10, len(UNITS) - 1)
    if power == 0:
        return f"{_short(str(count_bytes), count_bytes)} B"
    tenths = (20 * count_bytes + 1024**power) // (2 * 1024**power)  # integers, because the size may exceed a float
    return f"{_short(f'{tenths // 10}.{tenths % 10}', tenths // 10)} {UNITS[power]}"


def number(value: float | None, form: str) -> str:
    """Format a number with the format spec `form`, or in scientific notation if the result is too long.

    >>> number(1e30, ",.0f")
    '1.00e+30'
    """
    return "-" if value is None else _short(format(value, form), value)


def step_time(step_s: float | None, shares: Mapping[str, float]) -> str:
    """Format the time of a step and its shares, such as compute and communication.

    >>> step_time(0.774, {"compute": 0.8, "communication": 0.2, "bubble": 0})
    '0.774 s: compute 80%, communication 20%'
    """
    parts = ", ".join(f"{part} {number(share, '.0%')}" for part, share in shares.items() if share)
    seconds = "-" if step_s is None else f"{number(step_s, '.3g')} s"
    return f"{seconds}: {parts}" if parts else seconds


def clipped_text(share: float | None) -> str:
    """Return the share of steps with a clipped gradient as text to append to the gradient norm, or "" if unknown."""
    return "" if share is None else f", clipped in {number(share, '.0%')} of steps"


def _short(text: str, value: float) -> str:
    if len(text) <= MAX_NUMBER_CHARS:
        return text
    from decimal import Decimal  # rarely needed

    return f"{Decimal(value):.2e}"


def counted(count: int, noun: str, nouns: str | None = None) -> str:
    """Return a count with its noun: "1 server", "16,384 devices". `nouns` is the plural if it is irregular."""
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"


def awaited(who: str, limit_s: float | None) -> str:
    """Return a message such as "waiting for server h2", with the time limit if there is one."""
    limit = "" if limit_s is None else f"; at most {limit_s:g} s in total (--join-timeout)"
    return f"waiting for {who}{limit}"


def server_list(server_ids: Sequence[str]) -> str:
    """Return a short list of servers: "servers h2, h3 and 12 more"."""
    shown = ", ".join(map(escaped, server_ids[:SERVERS_SHOWN]))
    more = f" and {len(server_ids) - SERVERS_SHOWN} more" if len(server_ids) > SERVERS_SHOWN else ""
    return f"server{'s' * (len(server_ids) > 1)} {shown}{more}"


def columns_of(text: str) -> int:
    """Return the number of columns that a text without colours takes on a terminal.

    Chinese characters and emoji are two columns wide, combining accents zero.
    """
    if text.isascii():
        return len(text)
    return sum(_widths(text))


def _widths(text: str) -> Iterator[int]:
    from rich.cells import get_character_cell_size  # slow to import, and most texts are ASCII

    return map(get_character_cell_size, text)


def cut_to(text: str, columns: int) -> str:
    """Return the longest prefix of a text without colours that fits into `columns`."""
    if text.isascii():
        return text[: max(0, columns)]
    ends = accumulate(_widths(text))
    return "".join(character for character, end in zip(text, ends, strict=True) if end <= columns)


def sparkline(values: Sequence[float | None], width: int, *, plain: bool = False) -> str:
    """Return a sparkline of at most `width` characters. A space stands for a missing value.

    If there are more values than characters, each character shows the mean of several values.

    >>> sparkline([1, 2, None, 4, 8], 10)
    '▁▂ ▄█'
    """
    columns = min(width, len(values))
    parts = (values[index * len(values) // columns : (index + 1) * len(values) // columns] for index in range(columns))
    finite = ([value for value in part if value is not None and math.isfinite(value)] for part in parts)
    means = [math.fsum(value / len(part) for value in part) if part else None for part in finite]
    present = [mean for mean in means if mean is not None]
    if not present:
        return " " * len(means)
    levels = PLAIN if plain else BLOCKS
    count = len(levels)
    low, span = min(present), max(present) / 2 - min(present) / 2  # halves, because the difference may overflow
    # If all values are equal, the middle level is used.
    return "".join(
        " " if mean is None else levels[
            count // 2 if span <= 0 else min(count - 1, int((mean / 2 - low / 2) / span * count))
        ]
        for mean in means
    )  # fmt: skip


def has_blocks(encoding: str | None) -> bool:
    """Return True if an encoding has the block characters of sparklines."""
    with suppress(UnicodeEncodeError, LookupError):
        return bool(BLOCKS.encode(encoding or "ascii"))
    return False
