"""An interactive view of a table of ranks: order, grouping and scrolling."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from launcher.cli.text.columns import Painters, cut_off, fitted
from launcher.cli.text.keys import DOWN, END, HOME, PAGE_DOWN, PAGE_UP, UP
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
    """The user's view of the table. While `grouped` is None, ranks are grouped if they do not fit on the screen."""

    sorted_by: int | None = None  # column; None: by rank, smallest groups first
    reverse: bool = False
    grouped: bool | None = None
    helps: bool = False
    first: int = 0  # index of the top row
    page: int = 1  # rows on the screen
    total: int = 0  # rows of the table
    is_grouped: bool = False  # rows are groups

    def press(self, key: str, column_count: int) -> None:
        """Handle a key; unknown keys do nothing."""
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
        """Yield the header and at most `most_rows` rows; all rows if it is None."""
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
        """Return a line with the visible rows and the main keys, cut to `width`."""
        order = (
            "" if self.sorted_by is None else f": {columns[self.sorted_by].name}{', reversed' if self.reverse else ''}"
        )
        last = min(self.total, self.first + self.page)
        what = "groups" if self.is_grouped else "rows"
        part = f"{what} {self.first + 1}-{last} of {self.total}" if last - self.first < self.total else ""
        parts = [part, "? keys", "q quit", "g each rank" if self.is_grouped else "g group", f"s sort{order}"]
        return cut_off("  ".join(filter(None, parts)), width)

    @staticmethod
    def help_lines(width: int) -> Iterator[str]:
        """Yield the help for each key."""
        column = max(len(keys) for keys, _ in HELP)
        for keys, what in HELP:
            yield cut_off(f"{keys.ljust(column)}  {what}", width)
