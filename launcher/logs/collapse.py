"""Show once what several ranks say alike, as `[0-7] loss is 9.87..9.91`; what a rank says alone as `[3] ...`.

Every rank's lines wait in a queue. While the first lines of all queues are alike, they are one. Where they differ, the
lines behind them show which ranks say something more and which leave something out: the queues are brought into step
again by the longest sequence of lines that they have in common. Where none is seen, the first line that came goes first,
when it has waited for long enough. Lines of different attempts, or with times far apart, are never one.

Lines with equal words are alike, and their numbers become ranges. Some numbers must be equal nevertheless, or line 7 of
one rank would be taken for line 8 of another: those that count, as `step: 7` does. They are found by looking on: a whole
number counts if it grows evenly from line to line, and if different ranks have had the same. Others are no measurements
at all: a place in a source file, and what stands in a traceback (lines, addresses, pids). They are words, and lines that
differ there say different things. A traceback is shown as a whole: it waits for its last line, and is of those ranks
together that have the same frames. Where their exceptions differ, each goes on by itself from there.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

from launcher.core.frozen import frozen
from launcher.core.text import ranges
from launcher.logs.lines import Line, shown, without_mark
from launcher.logs.merge import Stage
from launcher.logs.terminal import without_colours
from launcher.logs.times import time_in
from launcher.logs.traceback_blocks import TracebackLines

WINDOW_NS = 500_000_000
LOOK_AHEAD = 32  # lines of a rank that are compared with those of others
COUNTING_WEIGHT = 10
FAR_APART_NS = 60_000_000_000  # a rank that says so much later what others said stands by itself
MAX_COMPARED = 8  # different first lines that are looked into at once
MAX_LINES_OF_RANK = 1000  # that wait; beyond it, or beyond `MAX_CHARS`, nothing is waited for
MAX_CHARS = 8 << 20
MAX_TRACEBACK_LINES = 500  # that are kept together
TOGETHER = 256  # lines of finished logs that are put before some are taken

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


@frozen
class Shown:
    """A line to show, with the ranks that wrote it."""

    ranks: tuple[int, ...]  # global ranks, ascending
    text: str

    @property
    def prefix(self) -> str:
        """What is shown before the text: `[0-2,5] `."""
        return f"[{ranges(self.ranks)}] "

    def __str__(self) -> str:
        return f"{self.prefix}{self.text}"


def _together(parts: Sequence[Sequence[Alike]], at: int = 0) -> Iterator[Shown]:
    """Yield the lines of several ranks from `at` on: once while they are alike, then those of each by themselves."""
    while parts:
        alike: dict[Identity, list[Sequence[Alike]]] = {}
        for part in parts:
            if at < len(part):
                alike.setdefault(part[at].own_identity, []).append(part)
        if len(alike) > 1:
            for some in alike.values():
                yield from _together(some, at)
            return
        parts = next(iter(alike.values()), [])
        if parts:
            lines = [part[at] for part in parts]
            yield Shown(tuple(line.global_rank for line in lines), folded(lines))
        at += 1


def collapse(lines: Iterable[Line], global_ranks: Collection[int]) -> Iterator[Shown]:
    """Yield all lines of finished logs; `lines` as `merge` yields them."""
    collapser = Collapser(global_ranks)
    attempt = None
    for number, line in enumerate(lines, 1):
        if line.attempt != attempt:
            attempt = line.attempt
            yield from collapser.flush()
        collapser.put(line)
        if number % TOGETHER == 0:
            yield from collapser.take(0)  # time stands still
    yield from collapser.flush()


class Collapser(Stage[Alike, Shown]):
    """Collapses lines as `collapse` does, for ranks that still write.

    A line may wait up to twice `WINDOW_NS` when ranks have to be brought into step.
    """

    def __init__(self, global_ranks: Collection[int]) -> None:
        super().__init__(global_ranks, WINDOW_NS)
        self._kinds = Kinds()
        self._tracebacks: defaultdict[int, TracebackLines] = defaultdict(TracebackLines)  # by global rank
        self._unended: dict[int, Alike] = {}  # by global rank: the traceback that its next line may belong to
        self._chars = 0

    def put(self, line: Line) -> None:
        rank, tracebacks = line.global_rank, self._tracebacks[line.global_rank]
        waiting = Alike(line, self._kinds, tracebacks, next(self._number))
        self._chars += len(waiting.text)
        unended = self._unended.get(rank)
        if unended is not None and tracebacks.continues and len(unended.following) < MAX_TRACEBACK_LINES:
            unended.append(waiting)
            return
        self._unended.pop(rank, None)
        if tracebacks.is_within:
            self._unended[rank] = waiting
        self._enqueue(rank, waiting)

    def _ready(self, now_ns: int | None) -> Iterator[Shown]:
        while self._queues:
            chosen, sure = self._choice()
            known = sure and self._writing <= self._queues.keys() and not self._grows()
            if not known and not self._due(chosen, now_ns):
                return
            parts = [[first, *first.following] for first in (self._queues[rank].popleft() for rank in chosen)]
            self._chars -= sum(len(line.text) for part in parts for line in part)
            for global_rank, (first, *_) in zip(chosen, parts, strict=True):
                if not self._queues[global_rank]:
                    del self._queues[global_rank]
                if self._unended.get(global_rank) is first:
                    del self._unended[global_rank]
            yield from _together(parts)

    def _grows(self) -> bool:
        """Return whether more may come of a traceback that is the first of a rank which still writes."""
        writing = ((rank, first) for rank, first in self._unended.items() if rank in self._writing)
        return any(self._queues[rank][0] is first for rank, first in writing)

    def _due(self, global_ranks: Sequence[int], now_ns: int | None) -> bool:
        """Return whether the first lines of these have waited long enough."""
        if now_ns is None or self._chars > MAX_CHARS:
            return True
        came_ns = min(self._queues[global_rank][0].came_ns for global_rank in global_ranks)
        return now_ns - came_ns >= self._window_ns or max(map(len, self._queues.values())) > MAX_LINES_OF_RANK

    # --- the ranks whose first lines go next ---

    def _choice(self) -> tuple[list[int], bool]:
        """Return ranks whose first lines are alike and go next, and whether that is known or only the best guess."""
        most, *others = self._alike()
        ahead = self._ahead(most) if others else []
        unknown = others[MAX_COMPARED:]
        for global_ranks in others[:MAX_COMPARED]:
            pair = first_in_common(ahead, self._ahead(global_ranks))
            if pair is None:
                unknown.append(global_ranks)
            elif pair[1] > 0:  # they say more; where `most` says more as well, the first that came
                return (global_ranks if pair[0] == 0 else min(most, global_ranks, key=self._came)), True
        return min([most, *unknown], key=self._came), not unknown

    def _alike(self) -> list[list[int]]:
        """Return groups of ranks whose first lines are alike, the largest first; of lines far apart the earliest."""
        alike: dict[Identity, list[Alike]] = {}
        for _, queue in sorted(self._queues.items()):
            alike.setdefault(queue[0].identity, []).append(queue[0])
        groups = []
        for lines in alike.values():
            last_ns = min((line.time_ns for line in lines if line.time_ns is not None), default=0) + FAR_APART_NS
            groups.append([line.global_rank for line in lines if line.time_ns is None or line.time_ns <= last_ns])
        return sorted(groups, key=len, reverse=True)

    def _ahead(self, global_ranks: Sequence[int]) -> list[Identity | None]:
        """Return the next lines of the one of these ranks with the most waiting; None for blank ones."""
        queue = max((self._queues[global_rank] for global_rank in global_ranks), key=len)
        return [waiting.identity if waiting.text.strip() else None for waiting in islice(queue, LOOK_AHEAD)]

    def _came(self, global_ranks: Sequence[int]) -> int:
        return min(self._queues[global_rank][0].number for global_rank in global_ranks)


def first_in_common(ours: Sequence[Identity | None], theirs: Sequence[Identity | None]) -> tuple[int, int] | None:
    """Return where the heaviest common subsequence begins in both; or None. An identity of None equals no other.

    A line with a number that counts comes once, and weighs more than others. Dynamic programming, len(ours) *
    len(theirs) steps: cell (i, j) holds the weight in ours[i:] and theirs[j:].
    """
    if not set(ours) & (set(theirs) - {None}):
        return None
    rows, columns = len(ours), len(theirs)
    weight = [[0] * (columns + 1) for _ in range(rows + 1)]
    for i in range(rows - 1, -1, -1):
        identity = ours[i]
        here = 0 if identity is None else COUNTING_WEIGHT if identity[1] else 1
        for j in range(columns - 1, -1, -1):
            same = here and identity == theirs[j]
            weight[i][j] = here + weight[i + 1][j + 1] if same else max(weight[i + 1][j], weight[i][j + 1])
    i = j = 0
    while ours[i] is None or ours[i] != theirs[j]:
        i, j = (i + 1, j) if weight[i + 1][j] == weight[i][j] else (i, j + 1)
    return i, j
