"""What several ranks say alike is shown once: `[0-7] loss is 9.87..9.91`; what a rank says alone as `[3] ...`.

Every rank's lines wait in a queue. While the first lines of all queues are alike, they are one. Where they differ, the
lines behind them tell which ranks say something more and which leave something out: the queues are brought into step
again by the longest sequence of lines that they have in common. Where none is seen, the first line that came goes first,
when it has waited for long enough. Lines of different attempts, and those that tell times far apart, are never one.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import count, islice

from launcher.core.frozen import frozen
from launcher.core.ranges import ranges
from launcher.logs.alike import Alike, Identity, Kinds, folded
from launcher.logs.lines import Line
from launcher.logs.traceback_lines import TracebackLines

WINDOW_NS = 500_000_000
LOOK_AHEAD = 32  # lines of a rank that are compared with those of others
COUNTING_WEIGHT = 10
FAR_APART_NS = 60_000_000_000  # a rank that says so much later what others said stands by itself
MAX_COMPARED = 8  # different first lines that are looked into at once
MAX_LINES_OF_RANK = 1000  # that wait; beyond it, or beyond so many characters, nothing is waited for
MAX_CHARS = 8 << 20
TOGETHER = 256  # lines that are put before some are taken, where nobody writes any more


@frozen
class Shown:
    """One line to show."""

    ranks: tuple[int, ...]  # global ranks, ascending
    text: str

    def __str__(self) -> str:
        """As it is shown: `[0-2,5] text`."""
        return f"[{ranges(self.ranks)}] {self.text}"


def collapse(lines: Iterable[Line], global_ranks: Collection[int]) -> Iterator[Shown]:
    """All lines of logs that nobody writes any more, as `merge` gives them."""
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


class Collapser:
    """As `collapse`, for ranks that still write.

    A line is given when every rank that writes has given it, or `window_ns` after it came (when ranks have to be
    brought into step, up to twice that). The order of one rank's lines is kept. `now_ns` may be of any clock that does
    not go back. Memory is bounded if lines are taken as often as some are put. Lines are given attempt by attempt, and all
    is flushed in between.
    """

    def __init__(self, global_ranks: Collection[int], window_ns: int = WINDOW_NS) -> None:
        self._window_ns = window_ns
        self._writing = set(global_ranks)
        self._queues: dict[int, deque[_Waiting]] = {}  # of ranks that have a line waiting
        self._new: list[_Waiting] = []  # came since the last `take`
        self._number = count()
        self._kinds = Kinds()
        self._tracebacks: defaultdict[int, TracebackLines] = defaultdict(TracebackLines)  # by global rank
        self._chars = 0

    def put(self, line: Line) -> None:
        waiting = _Waiting(line, self._kinds, self._tracebacks[line.global_rank], next(self._number))
        self._queues.setdefault(line.global_rank, deque()).append(waiting)
        self._new.append(waiting)
        self._writing.add(line.global_rank)
        self._chars += len(waiting.text)

    def end(self, global_rank: int) -> None:
        """Nobody waits for lines of this rank any more. It may write again."""
        self._writing.discard(global_rank)

    def take(self, now_ns: int) -> list[Shown]:
        """What can be shown now."""
        for waiting in self._new:
            waiting.came_ns = now_ns
        self._new.clear()
        return list(self._ready(now_ns))

    @property
    def waits(self) -> bool:
        """Whether it holds lines."""
        return bool(self._queues)

    def flush(self) -> list[Shown]:
        """All that waits."""
        self._new.clear()
        return list(self._ready(None))

    def _ready(self, now_ns: int | None) -> Iterator[Shown]:
        while self._queues:
            chosen, sure = self._choice()
            if not (sure and self._writing <= self._queues.keys()) and not self._due(chosen, now_ns):
                return
            lines = [self._taken(global_rank) for global_rank in chosen]
            yield Shown(tuple(chosen), folded(lines))

    def _due(self, global_ranks: Sequence[int], now_ns: int | None) -> bool:
        """Whether the first lines of these have waited long enough."""
        if now_ns is None or self._chars > MAX_CHARS:
            return True
        came_ns = min(self._queues[global_rank][0].came_ns for global_rank in global_ranks)
        return now_ns - came_ns >= self._window_ns or max(map(len, self._queues.values())) > MAX_LINES_OF_RANK

    def _taken(self, global_rank: int) -> _Waiting:
        queue = self._queues[global_rank]
        waiting = queue.popleft()
        self._chars -= len(waiting.text)
        if not queue:
            del self._queues[global_rank]
        return waiting

    # --- whose first lines go next ---

    def _choice(self) -> tuple[list[int], bool]:
        """Ranks whose first lines are alike and go next; and whether that is known, or nothing better is."""
        most, *others = self._alike()
        ahead = self._ahead(most) if others else []
        unknown = others[MAX_COMPARED:]
        for global_ranks in others[:MAX_COMPARED]:
            pair = first_in_common(ahead, self._ahead(global_ranks))
            if pair is None:
                unknown.append(global_ranks)
            elif pair[1] > 0:  # they say more; where `most` says more as well, whoever was first
                return (global_ranks if pair[0] == 0 else min(most, global_ranks, key=self._came)), True
        return min([most, *unknown], key=self._came), not unknown

    def _alike(self) -> list[list[int]]:
        """Ranks whose first lines are alike, most of them first; of those far apart in time the earliest."""
        alike: dict[Identity, list[int]] = {}
        for global_rank in sorted(self._queues):
            alike.setdefault(self._queues[global_rank][0].identity, []).append(global_rank)
        return sorted(map(self._earliest, alike.values()), key=len, reverse=True)

    def _earliest(self, global_ranks: list[int]) -> list[int]:
        if len(global_ranks) == 1:
            return global_ranks
        times = [self._queues[global_rank][0].time_ns for global_rank in global_ranks]
        known = [time_ns for time_ns in times if time_ns is not None]
        if not known or max(known) <= (last_ns := min(known) + FAR_APART_NS):
            return global_ranks
        near = zip(global_ranks, times, strict=True)
        return [global_rank for global_rank, time_ns in near if time_ns is None or time_ns <= last_ns]

    def _ahead(self, global_ranks: Sequence[int]) -> list[Identity | None]:
        """The next lines of these ranks, as far as the one tells that wrote most; None for blank ones."""
        queue = max((self._queues[global_rank] for global_rank in global_ranks), key=len)
        return [None if waiting.is_blank else waiting.identity for waiting in islice(queue, LOOK_AHEAD)]

    def _came(self, global_ranks: Sequence[int]) -> int:
        return min(self._queues[global_rank][0].number for global_rank in global_ranks)


class _Waiting(Alike):
    __slots__ = ("came_ns", "number")

    def __init__(self, line: Line, kinds: Kinds, tracebacks: TracebackLines, number: int) -> None:
        super().__init__(line, kinds, tracebacks)
        self.number = number
        self.came_ns = 0


def first_in_common(ours: Sequence[Identity | None], theirs: Sequence[Identity | None]) -> tuple[int, int] | None:
    """Where the heaviest common subsequence begins in both; None where there is none. None is like nothing.

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
