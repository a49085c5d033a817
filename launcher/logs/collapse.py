"""Merge equal lines of several ranks into one, as `[0-7] loss is 9.87..9.91`. Show other lines per rank, as `[3] ...`.

Each rank has a queue of lines. If the first lines of all queues are alike, they become one line. If they differ, the
lines after them show which ranks have additional lines and which lack some: the queues are realigned at their longest
common subsequence. If there is none, the line that came first is shown once it has waited long enough. Lines of
different attempts, or with times far apart, are never merged.

`group_key.py` decides which lines are alike. A traceback is shown as a whole: it waits for its last line, and is shown
together for the ranks with the same frames. If their exceptions differ, each rank continues separately from there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

from launcher.core.frozen import frozen
from launcher.core.text import ranges
from launcher.logs.group_key import Alike, Identity, Kinds, folded
from launcher.logs.lines import Line
from launcher.logs.log_merge import Stage
from launcher.logs.traceback_blocks import TracebackLines

WINDOW_NS = 500_000_000
LOOK_AHEAD = 32  # lines of a rank that are compared with other ranks' lines
COUNTING_WEIGHT = 10
FAR_APART_NS = 60_000_000_000  # a line this much later than the same line of others is shown separately
MAX_COMPARED = 8  # different first lines that are examined at a time
MAX_LINES_OF_RANK = 1000  # lines in queues; beyond it, or beyond `MAX_CHARS`, nothing waits
MAX_CHARS = 8 << 20
MAX_TRACEBACK_LINES = 500  # kept together
TOGETHER = 256  # lines of finished logs added before some are taken


@frozen
class Shown:
    ranks: tuple[int, ...]  # global ranks, ascending
    text: str

    @property
    def prefix(self) -> str:
        return f"[{ranges(self.ranks)}] "

    def __str__(self) -> str:
        return f"{self.prefix}{self.text}"


def _together(parts: Sequence[Sequence[Alike]], at: int = 0) -> Iterator[Shown]:
    """Yield the lines of several ranks from index `at` on. Merge the lines across ranks until the ranks diverge."""
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
    """Yield the lines of finished logs in the order of `merge`. Matching lines from different ranks are merged."""
    collapser = Collapser(global_ranks)
    attempt = None
    for number, line in enumerate(lines, 1):
        if line.attempt != attempt:
            attempt = line.attempt
            yield from collapser.flush()
        collapser.put(line)
        if number % TOGETHER == 0:
            yield from collapser.take(0)  # a clock that stands still
    yield from collapser.flush()


class Collapser(Stage[Alike, Shown]):
    """Merges matching lines from different ranks while they write. A line waits at most twice `WINDOW_NS` for them."""

    def __init__(self, global_ranks: Collection[int]) -> None:
        super().__init__(global_ranks, WINDOW_NS)
        self._kinds = Kinds()
        self._tracebacks: defaultdict[int, TracebackLines] = defaultdict(TracebackLines)  # by global rank
        self._unended: dict[int, Alike] = {}  # by global rank: the traceback to which its next line may belong
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
            known = sure and self._writing <= self._queues.keys()
            if known:  # unless the traceback at the head of a rank's queue may continue
                writing = ((rank, first) for rank, first in self._unended.items() if rank in self._writing)
                known = not any(self._queues[rank][0] is first for rank, first in writing)
            if not known and not self._is_ready(chosen, now_ns):
                return
            parts = [[first, *first.following] for first in (self._queues[rank].popleft() for rank in chosen)]
            self._chars -= sum(len(line.text) for part in parts for line in part)
            for global_rank, (first, *_) in zip(chosen, parts, strict=True):
                if not self._queues[global_rank]:
                    del self._queues[global_rank]
                if self._unended.get(global_rank) is first:
                    del self._unended[global_rank]
            yield from _together(parts)

    def _is_ready(self, global_ranks: Sequence[int], now_ns: int | None) -> bool:
        if now_ns is None or self._chars > MAX_CHARS:
            return True
        came_ns = min(self._queues[global_rank][0].came_ns for global_rank in global_ranks)
        return now_ns - came_ns >= self._window_ns or max(map(len, self._queues.values())) > MAX_LINES_OF_RANK

    # --- the ranks whose first lines go next ---

    def _choice(self) -> tuple[list[int], bool]:
        """Return the ranks whose first lines are merged and shown next, and True if this choice is certain."""
        most, *others = self._groups()
        ahead = self._ahead(most) if others else []
        unknown = others[MAX_COMPARED:]
        for global_ranks in others[:MAX_COMPARED]:
            pair = first_in_common(ahead, self._ahead(global_ranks))
            if pair is None:
                unknown.append(global_ranks)
            elif pair[1] > 0:  # they have additional lines; if `most` has some too, the earliest line
                return (global_ranks if pair[0] == 0 else min(most, global_ranks, key=self._came)), True
        return min([most, *unknown], key=self._came), not unknown

    def _groups(self) -> list[list[int]]:
        """Group ranks whose first lines are alike and not far apart in time. The largest group comes first."""
        alike: dict[Identity, list[Alike]] = {}
        for _, queue in sorted(self._queues.items()):
            alike.setdefault(queue[0].identity, []).append(queue[0])
        groups = []
        for lines in alike.values():
            last_ns = min((line.time_ns for line in lines if line.time_ns is not None), default=0) + FAR_APART_NS
            groups.append([line.global_rank for line in lines if line.time_ns is None or line.time_ns <= last_ns])
        return sorted(groups, key=len, reverse=True)

    def _ahead(self, global_ranks: Sequence[int]) -> list[Identity | None]:
        """Return the keys of the first lines in the longest queue of these ranks. A blank line has the key None."""
        queue = max((self._queues[global_rank] for global_rank in global_ranks), key=len)
        return [waiting.identity if waiting.text.strip() else None for waiting in islice(queue, LOOK_AHEAD)]

    def _came(self, global_ranks: Sequence[int]) -> int:
        return min(self._queues[global_rank][0].number for global_rank in global_ranks)


def first_in_common(ours: Sequence[Identity | None], theirs: Sequence[Identity | None]) -> tuple[int, int] | None:
    """Return the indices in `ours` and `theirs` at which their heaviest common subsequence begins, or None.

    An item None equals nothing. A line with a counter is unique and weighs more than others. Dynamic programming in
    len(ours) * len(theirs) steps: cell (i, j) holds the weight for ours[i:] and theirs[j:].
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
