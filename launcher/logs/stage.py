"""What holds lines of ranks that still write until they can be shown in order: the common part of Merger and Collapser."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterator
from itertools import count
from typing import Generic, Protocol, TypeVar

from launcher.logs.lines import Line


class Waiting(Protocol):
    """A line that waits."""

    came_ns: int


W = TypeVar("W", bound=Waiting)
Given = TypeVar("Given")


class Stage(ABC, Generic[W, Given]):
    """Lines that wait, in a queue per rank.

    A line is given when every rank that writes has one waiting, or `window_ns` after it came, on any clock that does not
    go back. The order of one rank's lines is kept. Lines are put attempt by attempt, and all are flushed in between.
    """

    def __init__(self, global_ranks: Collection[int], window_ns: int) -> None:
        self._window_ns = window_ns
        self._writing = set(global_ranks)
        self._queues: dict[int, deque[W]] = {}  # of ranks that have a line waiting
        self._new: list[W] = []  # came since the last `take`
        self._number = count()

    @abstractmethod
    def put(self, line: Line) -> None:
        """Add a line. Never fails; take lines as often as some are put, and memory stays bounded."""

    def end(self, global_rank: int) -> None:
        """Stop waiting for lines of this rank. It may write again."""
        self._writing.discard(global_rank)

    def take(self, now_ns: int) -> list[Given]:
        """Return what can be shown now, in order."""
        for waiting in self._new:
            waiting.came_ns = now_ns
        self._new.clear()
        return list(self._ready(now_ns))

    def flush(self) -> list[Given]:
        """Return all that waits, in order."""
        self._new.clear()
        return list(self._ready(None))

    @property
    def waits(self) -> bool:
        """Whether it holds lines."""
        return bool(self._queues)

    def _enqueue(self, global_rank: int, waiting: W) -> bool:
        """Append to the queue of the rank; return whether it is the first there."""
        queue = self._queues.get(global_rank)
        is_first = queue is None
        if queue is None:
            self._queues[global_rank] = queue = deque()
        queue.append(waiting)
        self._new.append(waiting)
        self._writing.add(global_rank)
        return is_first

    @abstractmethod
    def _ready(self, now_ns: int | None) -> Iterator[Given]:
        """Yield what can be shown at `now_ns`; all for None."""
