"""Decide which lines of different ranks say the same, and merge them into one text with ranges of numbers.

Lines with equal words are grouped, and their numbers become ranges. Some numbers must be equal, or line 7 of one rank
would be grouped with line 8 of another: counters such as `step: 7`. A whole number is a counter if it grows evenly from
line to line, and if different ranks have had the same values. Other numbers are not measurements: line numbers of
source files, and everything in a traceback (lines, addresses, pids). They count as words, so lines that differ in them
are not grouped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from launcher.logs.lines import Line, shown, without_mark
from launcher.logs.terminal import without_colours
from launcher.logs.times import time_in
from launcher.logs.traceback_blocks import TracebackLines

MAX_NUMBERS = 16  # of a line, examined to find counters
MAX_ALIKE_CHARS = 2000  # of a line whose numbers are examined; a longer line must be equal
MAX_KINDS = 500  # kinds known at a time, the most recent ones
MAX_VALUES = 64  # values remembered per number, to see whether ranks share them
MIN_EVEN = 3  # times that a number must grow as before; each exception takes back two
MAX_EVEN = 12  # limit of the count in its favour

_NUMBER = re.compile(
    r"(?<![\d.])(0[xX][\da-fA-F]{1,16}\b"
    r"|(?:(?<![\w)\]])-)?(?:\d{1,3}(?:,\d{3}){1,5}(?![\d,])|\d{1,18})(?:\.\d{1,18})?(?:[eE][-+]?\d{1,3})?)(?!\d|\.\d)"
)
# A place in a source file, as Python's tracebacks, faulthandler and loggers write it.
_PLACE = re.compile(r"""(File "[^"]*", line \d+|[\w./-]*\.py:\d+)""")
_WHOLE = re.compile(r"-?\d+")
_NUMBER_HERE = "\x01"  # neither of these two characters occurs in shown text
_TIME_HERE = "\x02"

Identity = tuple[str, tuple[str, ...]]


class Alike:
    """A line of one rank, prepared for comparison. The first line of a traceback also contains the next lines."""

    __slots__ = (
        "came_ns", "coloured", "following", "global_rank", "is_frame", "kind", "number", "numbers", "raised", "text", "time",
        "time_ns", "words",
    )  # fmt: skip

    def __init__(self, line: Line, kinds: Kinds, tracebacks: TracebackLines | None = None, number: int = 0) -> None:
        """Split the line into words and numbers. `tracebacks` must have processed all earlier lines of this rank."""
        self.global_rank = line.global_rank
        self.number = number  # among all lines, in order of arrival
        self.came_ns = 0
        whole = shown(line)
        self.coloured = without_mark(whole, line.global_rank)
        self.text = without_colours(self.coloured)
        words_from = tracebacks.put(without_colours(whole)) if tracebacks else None
        if words_from is not None:
            words_from = max(0, words_from - (len(whole) - len(self.coloured)))
        self.is_frame = words_from is not None and self.text[words_from : words_from + 1].isspace()
        found = time_in(self.text, line.time_ns or 0) if line.dated and words_from is None else None
        self.time = self.text[found.start : found.end] if found else ""
        self.time_ns = line.time_ns if found else None  # of lines that have one
        timeless = f"{self.text[: found.start]}{_TIME_HERE}{self.text[found.end :]}" if found else self.text
        parts = _parts(timeless, words_from) if len(timeless) <= MAX_ALIKE_CHARS else [timeless]
        self.numbers = parts[1::2]
        self.kind = kinds.of(_NUMBER_HERE.join(parts[::2]))
        self.kind.learn(line.global_rank, self.numbers)
        self.words = self.kind.words  # including those of its traceback's frames
        self.following: list[Alike] = []
        self.raised = False  # all frames are known

    @property
    def identity(self) -> Identity:
        """A key that is equal for two lines with the same words, the same counters and, so far, the same traceback."""
        return self.words, self._counted

    @property
    def own_identity(self) -> Identity:
        """A key that is equal for two lines with the same words and counters, regardless of the lines that follow."""
        return self.kind.words, self._counted

    @property
    def _counted(self) -> tuple[str, ...]:
        return tuple(self.numbers[at] for at in self.kind.counting)

    def append(self, line: Alike) -> None:
        """Add the next line of the same traceback."""
        self.raised = self.raised or not line.is_frame
        if not self.raised:
            self.words += f"\n{line.kind.words}"
        self.following.append(line)


class Kinds:
    def __init__(self) -> None:
        self._kinds: dict[str, Kind] = {}

    def of(self, words: str) -> Kind:
        if len(words) > MAX_ALIKE_CHARS:  # it is compared as a whole; storing it would take much memory
            return Kind(words)
        kind = self._kinds.pop(words, None) or Kind(words)
        self._kinds[words] = kind  # now the most recent one
        if len(self._kinds) > MAX_KINDS:
            del self._kinds[next(iter(self._kinds))]
        return kind


class Kind:
    """A group of lines with the same words. Lines can be merged if their numbers at the positions in `counting` are equal."""

    def __init__(self, words: str) -> None:
        self.words = words
        self.counting: tuple[int, ...] = ()
        self._last: dict[int, tuple[list[int | None], list[int]]] = {}  # by rank: its numbers, and how much they grew
        self._even: list[int] = []  # by number: how often it grew as before, minus exceptions
        self._rank_of: list[dict[int, int]] = []  # by number: which rank had which value
        self._common: set[int] = set()  # numbers that were equal on two ranks

    def learn(self, global_rank: int, numbers: Sequence[str]) -> None:
        if not 0 < len(numbers) <= MAX_NUMBERS:
            return
        values = [int(number) if _WHOLE.fullmatch(number) else None for number in numbers]
        self._even = self._even or [0] * len(values)
        self._rank_of = self._rank_of or [{} for _ in values]
        before, grown = self._last.get(global_rank, (values, [0] * len(values)))
        growth = [0] * len(values)
        for at, (value, last) in enumerate(zip(values, before, strict=True)):
            if value is not None and last is not None:
                growth[at] = value - last
                even = self._even[at] + (1 if growth[at] == grown[at] > 0 else -2)
                self._even[at] = max(0, min(even, MAX_EVEN))
                rank_of = self._rank_of[at]
                if len(rank_of) >= MAX_VALUES:
                    rank_of.clear()
                if rank_of.setdefault(value, global_rank) != global_rank:
                    self._common.add(at)
        self._last[global_rank] = values, growth
        self.counting = tuple(at for at in sorted(self._common) if self._even[at] >= MIN_EVEN)


def _parts(text: str, words_from: int | None) -> list[str]:
    """Split a line into alternating words and numbers. From `words_from` on, all text counts as words."""
    varying, fixed = (text, "") if words_from is None else (text[:words_from], text[words_from:])
    if "File " not in varying and ".py:" not in varying:  # almost every line
        parts = _NUMBER.split(varying)
    else:
        parts = [""]
        for number, piece in enumerate(_PLACE.split(varying)):
            first, *rest = [piece] if number % 2 else _NUMBER.split(piece)
            parts[-1] += first
            parts += rest
    parts[-1] += fixed
    return parts


def folded(lines: Sequence[Alike]) -> str:
    """Merge lines with the same words into one text. Use ranges for numbers that differ, and the first line's time."""
    first = lines[0]
    if all(line.coloured == first.coloured for line in lines):
        return first.coloured
    spans = [""]
    for numbers in zip(*(line.numbers for line in lines), strict=True):
        different = dict.fromkeys(numbers)
        least, most = min(different, key=_value), max(different, key=_value)
        spans.append(numbers[0] if _value(least) == _value(most) else f"{least}..{most}")
    words = first.kind.words.split(_NUMBER_HERE)
    text = "".join(number + word for number, word in zip(spans, words, strict=True))
    return text.replace(_TIME_HERE, first.time)


def _value(number: str) -> float:
    if number[:2] in {"0x", "0X"}:
        return int(number, 16)
    plain = number.replace(",", "")
    return int(plain) if _WHOLE.fullmatch(plain) else float(plain)
