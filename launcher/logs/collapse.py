"""Show once what several ranks say alike, as `[0-7] loss is 9.87..9.91`; what a rank says alone as `[3] ...`.

Every rank's lines wait in a queue. While the first lines of all queues are alike, they are one. Where they differ, the
lines behind them show which ranks say something more and which leave something out: the queues are brought into step
again by the longest sequence of lines that they have in common. Where none is seen, the first line that came goes first,
when it has waited for long enough. Lines of different attempts, or with times far apart, are never one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

from launcher.core.frozen import frozen
from launcher.core.text import ranges
from launcher.logs.alike import Alike, Identity, Kinds, folded
from launcher.logs.lines import Line
from launcher.logs.stage import Stage
from launcher.logs.traceback_blocks import TracebackLines

WINDOW_NS = 500_000_000
LOOK_AHEAD = 32  # lines of a rank that are compared with those of others
COUNTING_WEIGHT = 10
FAR_APART_NS = 60_000_000_000  # a rank that says so much later what others said stands by itself
MAX_COMPARED = 8  # different first lines that are looked into at once
MAX_LINES_OF_RANK = 1000  # that wait; beyond it, or beyond `MAX_CHARS`, nothing is waited for
MAX_CHARS = 8 << 20
TOGETHER = 256  # lines of finished logs that are put before some are taken


@frozen
class Shown:
    """A line to show, with the ranks that wrote it."""

    ranks: tuple[int, ...]  # global ranks, ascending
    text: str

    def __str__(self) -> str:
        """Return it as it is shown: `[0-2,5] text`."""
        return f"[{ranges(self.ranks)}] {self.text}"


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


class _Waiting(Alike):
    __slots__ = ("came_ns", "number")

    def __init__(self, line: Line, kinds: Kinds, tracebacks: TracebackLines, number: int) -> None:
        super().__init__(line, kinds, tracebacks)
        self.number = number  # of all lines, in the order in which they came
        self.came_ns = 0


class Collapser(Stage[_Waiting, Shown]):
    """Collapses lines as `collapse` does, for ranks that still write.

    A line may wait up to twice `window_ns` when ranks have to be brought into step.
    """

    def __init__(self, global_ranks: Collection[int], window_ns: int = WINDOW_NS) -> None:
        super().__init__(global_ranks, window_ns)
        self._kinds = Kinds()
        self._tracebacks: defaultdict[int, TracebackLines] = defaultdict(TracebackLines)  # by global rank
        self._chars = 0

    def put(self, line: Line) -> None:
        waiting = _Waiting(line, self._kinds, self._tracebacks[line.global_rank], next(self._number))
        self._enqueue(line.global_rank, waiting)
        self._chars += len(waiting.text)

    def _ready(self, now_ns: int | None) -> Iterator[Shown]:
        while self._queues:
            chosen, sure = self._choice()
            if not (sure and self._writing <= self._queues.keys()) and not self._due(chosen, now_ns):
                return
            lines = [self._queues[global_rank].popleft() for global_rank in chosen]
            self._chars -= sum(len(line.text) for line in lines)
            for global_rank in chosen:
                if not self._queues[global_rank]:
                    del self._queues[global_rank]
            yield Shown(tuple(chosen), folded(lines))

    def _due(self, global_ranks: Sequence[int], now_ns: int | None) -> bool:
        """Whether the first lines of these have waited long enough."""
        if now_ns is None or self._chars > MAX_CHARS:
            return True
        came_ns = min(self._queues[global_rank][0].came_ns for global_rank in global_ranks)
        return now_ns - came_ns >= self._window_ns or max(map(len, self._queues.values())) > MAX_LINES_OF_RANK

    # --- whose first lines go next ---

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
        """Return the next lines of these ranks, of the one of which most wait; None for blank ones."""
        queue = max((self._queues[global_rank] for global_rank in global_ranks), key=len)
        return [None if waiting.is_blank else waiting.identity for waiting in islice(queue, LOOK_AHEAD)]

    def _came(self, global_ranks: Sequence[int]) -> int:
        return min(self._queues[global_rank][0].number for global_rank in global_ranks)


def first_in_common(ours: Sequence[Identity | None], theirs: Sequence[Identity | None]) -> tuple[int, int] | None:
    """Return where the heaviest common subsequence begins in both; None if there is none. None equals nothing.

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
