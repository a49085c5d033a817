"""The offset in each rank's log at which each attempt begins, from events and the marks in the logs."""

from __future__ import annotations

from launcher.core.events import AttemptStarted, Event, RankStarted
from launcher.core.run_dir import mark_of


class AttemptStarts:
    """The starts of attempts in the logs of all ranks. An attempt after the first starts at its mark."""

    def __init__(self) -> None:
        self.attempt = 0  # the one that was started last
        self._of_rank: dict[int, list[tuple[int, int]]] = {}

    def of(self, global_rank: int) -> list[tuple[int, int]]:
        """Offsets, ascending, and the attempts that begin there. The list grows as more becomes known."""
        return self._of_rank.setdefault(global_rank, [])

    def take(self, event: Event) -> None:
        match event:
            case AttemptStarted(number=number):
                self.attempt = number
            case RankStarted(global_rank=global_rank, log_offset=offset):
                mark_bytes = len(mark_of(self.attempt)) if self.attempt else 0
                self.note(global_rank, max(0, offset - mark_bytes), self.attempt)
            case _:
                pass

    def note(self, global_rank: int, offset: int, attempt: int) -> None:
        """Take note that `attempt`, or a later one, wrote what begins at `offset`."""
        starts = self.of(global_rank)
        if starts and starts[-1][0] > offset:  # its log was emptied: what it wrote since is all that stands before
            starts[:] = [(0, starts[-1][1])]
        if starts and starts[-1][0] == offset:  # it wrote nothing
            starts.pop()
        starts.append((offset, attempt))
