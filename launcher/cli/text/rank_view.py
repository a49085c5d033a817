"""An interactive table of ranks, which the user can sort, group and scroll."""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from launcher.cli.text.columns import Painters, cut_off, fitted
from launcher.cli.text.rank_rows import Column, cells, grouped, in_order

T = TypeVar("T")
MAX_RANK_COLUMNS = 24  # width of a group's list of ranks
HELP = (
    ("up, k / down, j", "scroll one row"),
    ("page up, b / page down, space", "scroll one page"),
    ("home / end", "go to the first or last row"),
    ("s / S", "sort by the next or previous column"),
    ("r", "reverse the order"),
    ("g", "group similar ranks, or show each rank"),
    ("?", "show or hide this help"),
    ("q", "quit (the run continues)"),
)


@dataclass
class RankView:
    """The view of an interactive table. If `grouped` is None, ranks that do not fit on the screen are grouped."""

    sorted_by: int | None = None  # column; None: by rank, smallest groups first
    reverse: bool = False
    grouped: bool | None = None
    helps: bool = False
    first: int = 0  # index of the top row
    page: int = 1  # rows on the screen
    total: int = 0  # rows of the table
    is_grouped: bool = False  # rows are groups

    def press(self, key: str, column_count: int) -> None:
        moves = {UP: -1, DOWN: 1, PAGE_UP: -self.page, PAGE_DOWN: self.page, HOME: -self.total, END: self.total}
        if self.helps or key == "?":
            self.helps = not self.helps
        elif key in moves:
            self.first = max(0, min(self.first + moves[key], self.total - self.page))
        elif key == "g":
            self.grouped, self.first = not self.is_grouped, 0
        elif key == "r":
            self.reverse, self.first = not self.reverse, 0
        elif key in {"s", "S"}:
            # The default order (None) comes before the columns; it is also that of column 0 unless ranks are grouped.
            places: list[int | None] = [None, *range(1, column_count), 0]
            self.sorted_by = places[(places.index(self.sorted_by) + (1 if key == "s" else -1)) % len(places)]
            self.first = 0

    def lines(
        self,
        rows: Sequence[T],
        columns: Sequence[Column[T]],
        alike: Callable[[T], Hashable],
        width: int,
        most_rows: int | None,
        *,
        giving_way: Sequence[tuple[str, int]],
        right: frozenset[str],
        paint: Painters,
    ) -> Iterator[str]:
        """Yield the header and at most `most_rows` rows, or all rows if `most_rows` is None."""
        wants = self.grouped if self.grouped is not None else most_rows is not None and len(rows) > most_rows
        groups = grouped(rows, alike) if wants else [(row,) for row in rows]
        if self.sorted_by is not None:
            groups = in_order(groups, columns[self.sorted_by], reverse=self.reverse)
        elif self.reverse:
            groups.reverse()
        self.total, self.is_grouped = len(groups), wants
        self.page = len(groups) if most_rows is None else most_rows
        self.first = 0 if most_rows is None else max(0, min(self.first, self.total - self.page))
        shown = [cells(group, columns) for group in groups[self.first : self.first + self.page]]
        header = [column.name for column in columns]
        table = [(cut_off(ranks, MAX_RANK_COLUMNS), *rest) for ranks, *rest in shown]
        yield from fitted(header, table, width, giving_way=giving_way, right=right, paint=paint)

    def foot(self, columns: Sequence[Column[T]], width: int) -> str:
        """Return a line, at most `width` columns wide, that says which rows are visible and lists the main keys."""
        order = "" if self.sorted_by is None else f": {columns[self.sorted_by].name}{', reversed' * self.reverse}"
        last = min(self.total, self.first + self.page)
        what = "groups" if self.is_grouped else "rows"
        part = f"{what} {self.first + 1}-{last} of {self.total}" if last - self.first < self.total else ""
        parts = [part, "? keys", "q quit", "g each rank" if self.is_grouped else "g group", f"s sort{order}"]
        return cut_off("  ".join(filter(None, parts)), width)

    @staticmethod
    def help_lines(width: int) -> Iterator[str]:
        column = max(len(keys) for keys, _ in HELP)
        for keys, what in HELP:
            yield cut_off(f"{keys.ljust(column)}  {what}", width)


UP, DOWN, PAGE_UP, PAGE_DOWN, HOME, END, QUIT = "up", "down", "page up", "page down", "home", "end", "quit"
_NAMES = {
    b"\x1b[A": UP, b"\x1bOA": UP, b"k": UP, b"\x1b[B": DOWN, b"\x1bOB": DOWN, b"j": DOWN, b"\x1b[5~": PAGE_UP, b"b": PAGE_UP,
    b"\x1b[6~": PAGE_DOWN, b" ": PAGE_DOWN, b"\x1b[H": HOME, b"\x1bOH": HOME, b"\x1b[1~": HOME, b"\x1b[F": END,
    b"\x1bOF": END, b"\x1b[4~": END, b"q": QUIT, b"Q": QUIT, b"\x04": QUIT,
}  # fmt: skip
_KEY = re.compile(rb"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Za-z]|.", re.DOTALL)


@contextmanager
def keys_of_terminal() -> Iterator[int | None]:
    """Switch the terminal to unbuffered input and yield its descriptor. Yield None if stdin is not a terminal."""
    if not sys.stdin or not sys.stdin.isatty():
        yield None
        return
    descriptor = sys.stdin.fileno()
    former = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, former)


def pressed(descriptor: int | None, wait_s: float) -> list[str]:
    """Wait up to `wait_s` seconds for input and return the pressed keys, or `QUIT` if the terminal is gone."""
    if descriptor is None:
        time.sleep(wait_s)
        return []
    if not select.select([descriptor], [], [], max(0.0, wait_s))[0]:
        return []
    typed = os.read(descriptor, 256)
    return keys_in(typed) if typed else [QUIT]


def keys_in(typed: bytes) -> list[str]:
    r"""Decode bytes read from a terminal into keys: characters, or names of special keys.

    >>> keys_in(b"s\x1b[B?")
    ['s', 'down', '?']
    """
    return [_NAMES.get(key) or key.decode("latin-1") for key in _KEY.findall(typed)]
