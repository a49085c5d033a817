"""Group and sort the rows of a table of ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Generic, TypeVar

from launcher.core.frozen import frozen
from launcher.core.text import ranges

T = TypeVar("T")
UNKNOWN = "-"
NEXT_TO = 1  # steps; ranks that are read one after the other usually differ by this much

Joined = Callable[[Sequence[Any], Callable[[Any], str]], str]  # formats the values of several ranks as one cell


def span(values: Sequence[Any], text: Callable[[Any], str]) -> str:
    """Format the range of several values: "118..120".

    >>> span([3, None, 1], str), span([3, 3], str), span([None], str)
    ('1..3', '3', '-')
    """
    known = sorted(value for value in values if value is not None)
    if not known:
        return UNKNOWN
    first, last = text(known[0]), text(known[-1])
    return first if first == last else f"{first}..{last}"


def most(values: Sequence[Any], text: Callable[[Any], str]) -> str:
    return text(max((value for value in values if value is not None), default=None))


def same(values: Sequence[Any], text: Callable[[Any], str]) -> str:
    return text(values[0]) if len(set(values)) == 1 else UNKNOWN


def listed(values: Sequence[Any], text: Callable[[Any], str]) -> str:
    """Format integers as ranges: "0-61,63"."""
    known = {value for value in values if value is not None}
    return ranges(known) if len(known) > 1 else text(values[0])


@frozen
class Column(Generic[T]):
    name: str
    value: Callable[[T], Any]  # of a rank, also for sorting; None if unknown
    text: Callable[[Any], str] = str
    joined: Joined = span


def grouped(rows: Iterable[T], group_key: Callable[[T], Hashable]) -> list[tuple[T, ...]]:
    """Group rows by key, and return the groups with the smallest group first."""
    groups: dict[Hashable, list[T]] = {}
    for row in rows:
        groups.setdefault(group_key(row), []).append(row)
    return [tuple(group) for group in sorted(groups.values(), key=len)]


def step_groups(steps: Mapping[int, int | None]) -> dict[int, int]:
    """Group ranks whose steps differ by at most one, and return the highest step in each rank's group.

    >>> step_groups({0: 120, 1: 119, 2: 80, 3: None})
    {0: 120, 1: 120, 2: 80}
    """
    found: dict[int, int] = {}
    highest = math.inf
    for step, global_rank in sorted(((step, rank) for rank, step in steps.items() if step is not None), reverse=True):
        if step < highest - NEXT_TO:
            highest = step
        found[global_rank] = int(highest)
    return dict(sorted(found.items()))


def group_key(
    rows: Iterable[T],
    state: Callable[[T], Hashable],
    step: Callable[[T], int | None],
    loss: Callable[[T], float | None],
) -> Callable[[T], Hashable]:
    """Return a key function that groups rows by state, by step, and by whether the loss is finite."""
    steps = dict(enumerate(map(step, rows)))
    of_step = {steps[number]: highest for number, highest in step_groups(steps).items()}

    def key(row: T) -> Hashable:
        value = loss(row)
        return state(row), of_step.get(step(row)), None if value is None else math.isfinite(value)

    return key


def age_s(time_ns: int | None, looked_ns: int) -> float | None:
    """Return the seconds from `time_ns` to `looked_ns`, but at least 0. Return None if `time_ns` is None."""
    return None if time_ns is None else max(0.0, (looked_ns - time_ns) / 1e9)


def in_order(groups: Sequence[tuple[T, ...]], column: Column[T], *, reverse: bool = False) -> list[tuple[T, ...]]:
    """Sort groups by their smallest value in a column, or by their largest value if `reverse` is true."""
    keyed: list[tuple[Any, tuple[T, ...]]] = []
    for group in groups:
        values = [value for row in group if (value := column.value(row)) is not None and value == value]  # noqa: PLR0124 - NaN
        keyed.append(((max if reverse else min)(values, default=None), group))
    known = sorted((each for each in keyed if each[0] is not None), key=itemgetter(0), reverse=reverse)
    return [group for _, group in known] + [group for key, group in keyed if key is None]


def cells(group: Collection[T], columns: Iterable[Column[T]]) -> tuple[str, ...]:
    texts = []
    for column in columns:
        values = [column.value(row) for row in group]
        texts.append(column.text(values[0]) if len(values) == 1 else column.joined(values, column.text))
    return tuple(texts)
