"""Merge lines of many ranks into one sequence: by time if they have one, otherwise by arrival.

The order of one rank's lines never changes, even if their times disagree. Lines without their own time stay behind the
line that they follow, if they are available when it is shown, so that tracebacks stay together. An attempt of a run
begins after the previous one has ended on all ranks. Therefore lines are put into a `Merger` attempt by attempt, and
all lines are taken out in between.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count, groupby
from typing import Generic, Protocol, TypeVar

from launcher.logs.lines import Line

WINDOW_NS = 200_000_000
MAX_BLOCK_LINES = 200  # lines without a time that follow one with a time, before other ranks get their turn
MAX_LINES = 10_000  # in a `Merger`
MAX_BYTES = 16 << 20


def merge(lines_of_rank: Mapping[int, Iterator[Line]]) -> Iterator[Line]:
    """Merge the lines of finished logs by time, attempt by attempt. Only one line of each rank is kept in memory."""
    attempts = {
        rank: groupby(lines, lambda line: -1 if line.attempt is None else line.attempt)
        for rank, lines in lines_of_rank.items()
    }
    now = {rank: next(parts, None) for rank, parts in attempts.items()}
    is_beginning = True
    while known := {rank: part for rank, part in now.items() if part is not None}:
        first = min(attempt for attempt, _ in known.values())
        parts = {rank: lines for rank, (attempt, lines) in known.items() if attempt == first}
        yield from _merged(parts, after_others=is_beginning)
        is_beginning = False
        now = {**known, **{rank: next(attempts[rank], None) for rank in parts}}


def _merged(lines_of_rank: Mapping[int, Iterator[Line]], *, after_others: bool) -> Iterator[Line]:
    """Merge the lines of one attempt by time. With `after_others`, first lines may get their time from omitted lines.

    A line that follows no line with a time has an unknown time. Ranks at such a line yield one each; then the rank with
    the earliest known time yields its line, and so on.
    """
    untimed: deque[Line] = deque()
    timed: list[tuple[int, int, Line]] = []
    turns = count()  # among equal times, the one that has waited longest is first

    def wait(line: Line | None, *, is_first: bool = False) -> None:
        if line is not None and line.time_ns is not None and (line.dated or is_first):
            heappush(timed, (line.time_ns, next(turns), line))
        elif line is not None:
            untimed.append(line)

    for lines in lines_of_rank.values():
        wait(next(lines, None), is_first=after_others)
    while untimed or timed:
        for _ in range(len(untimed)):
            line = untimed.popleft()
            yield line
            wait(next(lines_of_rank[line.global_rank], None))
        if timed:
            line = heappop(timed)[2]
            wait((yield from _block(line, lines_of_rank[line.global_rank])))


def _block(first: Line, following: Iterator[Line]) -> Generator[Line, None, Line | None]:
    """Yield `first` and the lines after it that contain no time. Return the next line, or None at the end."""
    yield first
    for number, line in enumerate(following, 1):
        if line.dated or number > MAX_BLOCK_LINES:
            return line
        yield line
    return None


class Waiting(Protocol):
    came_ns: int


W = TypeVar("W", bound=Waiting)
Given = TypeVar("Given")


class Stage(ABC, Generic[W, Given]):
    """Keeps lines in a queue for each rank while ranks still write, until the lines can be shown in order.

    A line is returned when every writing rank has a line waiting, or `window_ns` after its arrival, on any monotonic
    clock. The order of one rank's lines is kept. Lines are put attempt by attempt, and all are flushed in between.
    """

    def __init__(self, global_ranks: Collection[int], window_ns: int) -> None:
        self._window_ns = window_ns
        self._writing = set(global_ranks)
        self._queues: dict[int, deque[W]] = {}  # of ranks with waiting lines
        self._new: list[W] = []  # arrived since the last `take`
        self._number = count()

    @abstractmethod
    def put(self, line: Line) -> None:
        """Add a line to the queue of its rank. Call `take` regularly to keep the queues short."""

    def end(self, global_rank: int) -> None:
        """Stop waiting for lines of this rank. The rank may still write again."""
        self._writing.discard(global_rank)

    def take(self, now_ns: int) -> list[Given]:
        """Return the lines that can be shown now, in order."""
        for waiting in self._new:
            waiting.came_ns = now_ns
        self._new.clear()
        return list(self._ready(now_ns))

    def flush(self) -> list[Given]:
        """Return all waiting lines, in order."""
        self._new.clear()
        return list(self._ready(None))

    @property
    def waits(self) -> bool:
        return bool(self._queues)

    def _enqueue(self, global_rank: int, waiting: W) -> bool:
        """Append a line to the queue of its rank. Return True if it is the first line in the queue."""
        queue = self._queues.setdefault(global_rank, deque())
        queue.append(waiting)
        self._new.append(waiting)
        self._writing.add(global_rank)
        return len(queue) == 1

    @abstractmethod
    def _ready(self, now_ns: int | None) -> Iterator[Given]:
        """Yield the lines that can be shown at `now_ns`, or all lines if `now_ns` is None."""


@dataclass(slots=True, eq=False)
class _Waiting:
    line: Line
    key: int  # its time; for a line without one, the latest time before its arrival
    number: int  # among all lines, in order of arrival
    came_ns: int = 0
    shown: bool = False


class Merger(Stage[_Waiting, Line]):
    """Merges lines by time while ranks still write. A line waits briefly for earlier lines of other ranks.

    Times of lines are only compared with each other, not with a clock. Above `MAX_LINES` or `MAX_BYTES`, the next
    `take` returns the excess.
    """

    def __init__(self, global_ranks: Collection[int]) -> None:
        super().__init__(global_ranks, WINDOW_NS)
        self._firsts: list[tuple[int, int, int]] = []  # a heap: time, number and global rank of each rank's first line
        self._oldest: deque[_Waiting] = deque()  # all lines in order of arrival; some behind the first have been shown
        self._latest_ns = 0  # of all lines with a time; lines without one are placed after the lines that came before
        self._lines = 0
        self._bytes = 0

    def put(self, line: Line) -> None:
        if line.dated and line.time_ns is not None:
            key = line.time_ns
            self._latest_ns = max(self._latest_ns, key)
        else:
            key = self._latest_ns
        waiting = _Waiting(line, key, next(self._number))
        if self._enqueue(line.global_rank, waiting):
            heappush(self._firsts, (key, waiting.number, line.global_rank))
        self._oldest.append(waiting)
        self._lines += 1
        self._bytes += len(line.raw)

    def _ready(self, now_ns: int | None) -> Iterator[Line]:
        while self._firsts and (
            now_ns is None
            or (len(self._queues) >= len(self._writing) and self._writing <= self._queues.keys())
            or self._lines > MAX_LINES
            or self._bytes > MAX_BYTES
            # A line has waited long enough; lines with earlier times, even new ones, go before it.
            or now_ns - self._oldest[0].came_ns >= self._window_ns
        ):
            # The first line of all, and the lines of its rank that stay behind it.
            global_rank = heappop(self._firsts)[2]
            queue = self._queues[global_rank]
            yield self._shown(queue.popleft())
            for _ in range(MAX_BLOCK_LINES):
                if not queue or queue[0].line.dated or queue[0].line.time_ns is None:
                    break
                yield self._shown(queue.popleft())
            if queue:
                heappush(self._firsts, (queue[0].key, queue[0].number, global_rank))
            else:
                del self._queues[global_rank]

    def _shown(self, waiting: _Waiting) -> Line:
        waiting.shown = True
        self._lines -= 1
        self._bytes -= len(waiting.line.raw)
        while self._oldest and self._oldest[0].shown:
            self._oldest.popleft()
        return waiting.line
