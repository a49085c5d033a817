"""The difference between two texts, line by line, in the form that `patch` reads.

The standard library's own takes time that grows with the square of the changes, which are minutes for a cluster's
table of which every device is repaired. Here lines that stand exactly once in both texts divide them first, and only
what lies between is compared in full.
"""

from __future__ import annotations

import difflib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

CONTEXT_LINES = 3
COMPARED_IN_FULL = 100_000  # pairs of lines; beyond it a stretch is shown as removed and added as a whole


class Block(NamedTuple):
    """Lines old[start:end] became lines new[new_start:new_end]."""

    start: int
    end: int
    new_start: int
    new_end: int


def unified_diff(before: str, after: str, name: str) -> str:
    """A unified diff with line ends as they are; empty where the texts are equal."""
    if before == after:
        return ""
    old, new = _lines(before), _lines(after)
    hunks = (_hunk(old, new, group) for group in _grouped(_blocks(old, new)))
    return "".join([f"--- {name}\n+++ {name}\n", *hunks])


def _lines(text: str) -> list[str]:
    """With their ends; only a line feed ends a line."""
    lines = [f"{line}\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


# --- which lines changed ---


def _blocks(old: Sequence[str], new: Sequence[str]) -> Iterator[Block]:
    """Ascending, with at least one unchanged line between two of them."""
    at, new_at = 0, 0
    for anchor, new_anchor in [*_anchors(old, new), (len(old), len(new))]:
        yield from _between(old, new, Block(at, anchor, new_at, new_anchor))
        at, new_at = anchor + 1, new_anchor + 1


def _anchors(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int]]:
    """Places of lines that stand once in each text: the longest series of them that ascends in both."""
    in_old, in_new = Counter(old), Counter(new)
    place_in_new = {line: place for place, line in enumerate(new) if in_new[line] == 1}
    pairs = [
        (place, place_in_new[line]) for place, line in enumerate(old) if in_old[line] == 1 and line in place_in_new
    ]
    return [pairs[index] for index in _longest_ascending([new_place for _, new_place in pairs])]


def _longest_ascending(numbers: Sequence[int]) -> list[int]:
    """The indices of a longest ascending series.

    >>> _longest_ascending([3, 0, 1, 5, 2])
    [1, 2, 4]
    """
    ends: list[int] = []  # ends[n]: the smallest number that ends a series of n + 1
    indices: list[int] = []
    before: list[int] = []  # for each number: the index of the one before it in its series
    for index, number in enumerate(numbers):
        length = bisect_left(ends, number)
        before.append(indices[length - 1] if length else -1)
        ends[length : length + 1] = [number]
        indices[length : length + 1] = [index]
    series, at = [], indices[-1] if indices else -1
    while at >= 0:
        series.append(at)
        at = before[at]
    return series[::-1]


def _between(old: Sequence[str], new: Sequence[str], gap: Block) -> Iterator[Block]:
    """What changed between two anchors."""
    start, end, new_start, new_end = gap
    if (end - start) * (new_end - new_start) > COMPARED_IN_FULL:
        yield gap
        return
    matcher = difflib.SequenceMatcher(None, old[start:end], new[new_start:new_end], autojunk=False)
    for kind, first, last, new_first, new_last in matcher.get_opcodes():
        if kind != "equal":
            yield Block(start + first, start + last, new_start + new_first, new_start + new_last)


# --- how they are shown ---


def _grouped(blocks: Iterable[Block]) -> Iterator[list[Block]]:
    """Blocks so near to each other that their context would overlap are shown together."""
    group: list[Block] = []
    for block in blocks:
        if group and block.start - group[-1].end > 2 * CONTEXT_LINES:
            yield group
            group = []
        group.append(block)
    if group:
        yield group


def _hunk(old: Sequence[str], new: Sequence[str], group: Sequence[Block]) -> str:
    first, last = group[0], group[-1]
    before = min(CONTEXT_LINES, first.start)
    after = min(CONTEXT_LINES, len(old) - last.end)
    start, new_start = first.start - before, first.new_start - before
    parts = [f"@@ -{_range(start, last.end + after)} +{_range(new_start, last.new_end + after)} @@\n"]
    at = start
    for block in group:
        parts += _marked(" ", old[at : block.start])
        parts += _marked("-", old[block.start : block.end])
        parts += _marked("+", new[block.new_start : block.new_end])
        at = block.end
    return "".join([*parts, *_marked(" ", old[at : at + after])])


def _range(start: int, end: int) -> str:
    """Lines from 1, and how many; an empty stretch is named by the line before it."""
    count = end - start
    return f"{start + 1 if count else start}" + ("" if count == 1 else f",{count}")


def _marked(mark: str, lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield f"{mark}{line}" if line.endswith("\n") else f"{mark}{line}\n\\ No newline at end of file\n"
