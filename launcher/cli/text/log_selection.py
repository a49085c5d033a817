"""Which lines are shown, and where lines between two of one rank were left out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from launcher.cli.text.log_format import Format
from launcher.logs.collapse import Shown
from launcher.logs.lines import OVERWRITES, Line
from launcher.logs.select import Selector


class Selection:
    """Of lines of several ranks, each rank's in their order."""

    def __init__(self, selector: Selector | None, shape: Format) -> None:
        """Without a `selector` all lines are shown."""
        self._selector, self._format = selector, shape
        self._after_gap: set[tuple[int, int]] = set()  # ranks and offsets of lines before which others were left out
        self._last_rank: int | None = None  # of which a line was shown

    def put(self, line: Line) -> list[Line]:
        """The lines to show now that `line` has come, as they are to be shown. Raises what `Selector.put` does."""
        shown: list[Line] = []
        is_after_gap = False
        for selected in self._selector.put(line) if self._selector else (line,):
            if selected is None:
                is_after_gap = True
            elif not self._is_overwritten(selected) and (kept := self._format.of_long(selected)) is not None:
                if is_after_gap:
                    self._after_gap.add(_place(kept))
                    is_after_gap = False
                shown.append(kept)
        return shown

    def _is_overwritten(self, line: Line) -> bool:
        """By what follows, so that nothing of this piece of a progress bar is to be seen; unless it was searched for."""
        searches = self._selector is not None and self._selector.searches
        nothing = line.overwritten or not (line.ends or line.raw.strip(OVERWRITES))
        return nothing and not searches and not self._format.as_json

    def of(self, lines: Iterable[Line]) -> Iterator[Line]:
        for line in lines:
            yield from self.put(line)

    def last(self, lines: Iterable[Line], count: int) -> list[Line]:
        """The last `count` of those to show; no more of them are in memory."""
        kept: deque[Line] = deque()
        for line in self.of(lines):
            kept.append(line)
            if len(kept) > count:
                self._after_gap.discard(_place(kept.popleft()))
        return list(kept)

    def with_gaps(self, lines: Iterable[Line | Shown]) -> Iterator[Line | Shown | None]:
        """What was selected, in the order in which it is shown; None between lines of one rank that are no neighbours."""
        for line in lines:
            if isinstance(line, Line):
                if self._after_gap and (place := _place(line)) in self._after_gap:
                    self._after_gap.discard(place)
                    if self._last_rank == line.global_rank:
                        yield None
                self._last_rank = line.global_rank
            yield line


def _place(line: Line) -> tuple[int, int]:
    return line.global_rank, line.offset
