"""Which lines of ranks say the same, and the one text in which their numbers become ranges.

Lines with equal words are alike, and their numbers become ranges. Some numbers must be equal nevertheless, or line 7 of
one rank would be taken for line 8 of another: those that count, as `step: 7` does. They are found by looking on: a whole
number counts if it grows evenly from line to line, and if different ranks have had the same. Others are no measurements
at all: a place in a source file, and what stands in a traceback (lines, addresses, pids). They are words, and lines that
differ there say different things.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from launcher.logs.lines import Line, shown, without_mark
from launcher.logs.terminal import without_colours
from launcher.logs.times import time_in
from launcher.logs.traceback_blocks import TracebackLines

MAX_NUMBERS = 16  # of a line, among which the ones that count are looked for
MAX_ALIKE_CHARS = 2000  # of a line whose numbers are looked at; a longer one is alike only if it is equal
MAX_KINDS = 500  # that are known at once, those that came last
MAX_VALUES = 64  # of a number that are remembered, to see whether ranks have them in common
MIN_EVEN = 3  # times that a number has grown as it did before; each time that it has not takes back two
MAX_EVEN = 12  # that are held in its favour

_NUMBER = re.compile(
    r"(?<![\d.])(0[xX][\da-fA-F]{1,16}\b"
    r"|(?:(?<![\w)\]])-)?(?:\d{1,3}(?:,\d{3}){1,5}(?![\d,])|\d{1,18})(?:\.\d{1,18})?(?:[eE][-+]?\d{1,3})?)(?!\d|\.\d)"
)
# A place in a source file, as Python's tracebacks, faulthandler and loggers write it.
_PLACE = re.compile(r"""(File "[^"]*", line \d+|[\w./-]*\.py:\d+)""")
_WHOLE = re.compile(r"-?\d+")
_NUMBER_HERE = "\x01"  # neither this nor the next is in any text that is shown
_TIME_HERE = "\x02"

Identity = tuple[str, tuple[str, ...]]


class Alike:
    """One line of one rank, ready to be compared with others; of a traceback the first, with those that follow it."""

    __slots__ = (
        "came_ns", "coloured", "following", "global_rank", "is_frame", "kind", "number", "numbers", "raised", "text", "time",
        "time_ns", "words",
    )  # fmt: skip

    def __init__(self, line: Line, kinds: Kinds, tracebacks: TracebackLines | None = None, number: int = 0) -> None:
        """Compare the line by its words and numbers. `tracebacks` follows this rank's lines."""
        self.global_rank = line.global_rank
        self.number = number  # of all lines, in the order in which they came
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
        self.time_ns = line.time_ns if found else None  # of lines that carry one
        timeless = f"{self.text[: found.start]}{_TIME_HERE}{self.text[found.end :]}" if found else self.text
        parts = _parts(timeless, words_from) if len(timeless) <= MAX_ALIKE_CHARS else [timeless]
        self.numbers = parts[1::2]
        self.kind = kinds.of(_NUMBER_HERE.join(parts[::2]))
        self.kind.learn(line.global_rank, self.numbers)
        self.words = self.kind.words  # with those of its traceback's frames
        self.following: list[Alike] = []
        self.raised = False  # the frames are complete

    @property
    def identity(self) -> Identity:
        """The same for lines, and the frames of tracebacks, that say the same, as far as is known by now."""
        return self.words, self._counted

    @property
    def own_identity(self) -> Identity:
        """The same for lines that say the same, whatever follows them."""
        return self.kind.words, self._counted

    @property
    def _counted(self) -> tuple[str, ...]:
        return tuple(self.numbers[at] for at in self.kind.counting)

    def append(self, line: Alike) -> None:
        """Take the next line of the same traceback."""
        self.raised = self.raised or not line.is_frame
        if not self.raised:
            self.words += f"\n{line.kind.words}"
        self.following.append(line)


class Kinds:
    """The kinds of lines seen lately, by their words."""

    def __init__(self) -> None:
        self._kinds: dict[str, Kind] = {}

    def of(self, words: str) -> Kind:
        if len(words) > MAX_ALIKE_CHARS:  # it is compared as a whole, and would take much memory
            return Kind(words)
        kind = self._kinds.pop(words, None) or Kind(words)
        self._kinds[words] = kind  # now the last of them
        if len(self._kinds) > MAX_KINDS:
            del self._kinds[next(iter(self._kinds))]
        return kind


class Kind:
    """Lines with the same words. Those of their numbers at the places `counting` must be equal."""

    def __init__(self, words: str) -> None:
        self.words = words
        self.counting: tuple[int, ...] = ()
        self._last: dict[int, tuple[list[int | None], list[int]]] = {}  # of a rank: its numbers, how much they grew
        self._even: list[int] = []  # of each number: how often it has grown as before, less what speaks against it
        self._rank_of: list[dict[int, int]] = []  # of each number: which rank had which value
        self._common: set[int] = set()  # numbers that were the same on two ranks

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
    """Split into words and numbers in turn, words first and last; from `words_from` on all are words."""
    varying, fixed = (text, "") if words_from is None else (text[:words_from], text[words_from:])
    if "File " not in varying and ".py:" not in varying:  # nearly every line
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
    """Return one text for lines with the same words: numbers that differ become ranges, the time is the first line's.

    Colours are kept where nothing had to be folded.
    """
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
