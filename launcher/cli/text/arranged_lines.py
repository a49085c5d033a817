"""Lines that are looked at before they are shown: searched, merged by time, collapsed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain

from launcher.cli.text.log_format import Format
from launcher.logs.collapse import Collapser, Shown
from launcher.logs.lines import OVERWRITES, Line, PartialLine
from launcher.logs.log_file import fair_shares
from launcher.logs.log_merge import Merger, merge
from launcher.logs.select import Selector
from launcher.runs.rank_logs import AT_ONCE_BYTES, RankLogs

STAGE_S = 0.05  # how often lines that wait for others are asked for
# Read at once of all ranks: lines that are not alike take their time to be compared, and the display has its turns.
COLLAPSED_BYTES = 64 << 10


class ArrangedFeed:
    """A `Feed` (launcher/cli/text/log_stream.py)."""

    def __init__(
        self, logs: RankLogs, shape: Format, selector: Selector | None = None, *,
        merged: bool = False, collapsed: bool = False,
    ) -> None:  # fmt: skip
        self._logs, self._format, self._selection = logs, shape, Selection(selector, shape)
        self._at_once_bytes = COLLAPSED_BYTES if collapsed else AT_ONCE_BYTES
        self._stage: Merger | Collapser | None = None  # where lines wait for those of other ranks
        if merged or collapsed:
            self._stage = Merger(logs.of_rank) if merged else Collapser(logs.of_rank)
        self._attempt: int | None = None  # of the last line
        self._next: list[Line | Shown] = []  # shown before what the stage gives
        self._flushed = False
        self._ended: set[int] = set()  # ranks whose last lines may not have been read yet
        self.close = logs.close

    def next_text(self, *, ended: bool = False) -> bytes | None:
        came = False
        for lines in self._logs.new_lines(ended=ended, at_once_bytes=self._at_once_bytes):
            came = True
            self._put(self._selection.of(lines))
        if self._stage is not None:
            for global_rank in [each for each in self._ended if self._logs.is_read(each)]:
                self._ended.discard(global_rank)
                self._stage.end(global_rank)
            self._next += self._stage.take(time.monotonic_ns())
        if ended and not (came or self._next or self._flushed):
            self._flushed = True
            for log in self._logs.of_rank.values():
                self._put(self._selection.of(log.rest()))
            self._flush()
        shown, self._next = self._next, []
        if shown or came:
            return self._format.lines(shown)
        return (self._format.end() or None) if ended else None

    def partial(self) -> dict[int, PartialLine]:
        return {global_rank: begun for global_rank, log in self._logs.of_rank.items() if (begun := log.begun)}

    def begin_with_last(self, count: int) -> None:
        """Show of what there is the last `count` selected lines of each rank. Call it first."""
        last = {rank: self._selection.last(log.present(), count) for rank, log in self._logs.of_rank.items()}
        if self._stage is None:
            self._put(chain.from_iterable(last.values()))
        else:
            self._put(merge(last))

    def rank_ended(self, global_rank: int) -> None:
        if global_rank in self._logs.of_rank:
            self._ended.add(global_rank)
            self._logs.look_at(global_rank)

    def skip_to_last(self, keep_bytes: int) -> Iterator[tuple[int, int]]:
        kept_bytes = fair_shares({rank: log.unread_bytes for rank, log in self._logs.of_rank.items()}, keep_bytes)
        for global_rank, log in self._logs.of_rank.items():
            if skipped := log.skip_to_last_bytes(kept_bytes[global_rank]):
                yield global_rank, skipped

    def wait(self, seconds: float) -> None:
        self._logs.wait(min(seconds, STAGE_S) if self._stage is not None and self._stage.waits else seconds)

    def _put(self, selected: Iterable[Line]) -> None:
        if self._stage is None:
            self._next.extend(selected)
            return
        for line in selected:
            if line.attempt != self._attempt:
                self._attempt = line.attempt
                self._flush()
            self._stage.put(line)

    def _flush(self) -> None:
        if self._stage is not None:
            self._next += self._stage.flush()


class Selection:
    """A choice among lines of several ranks, each rank's in their order."""

    def __init__(self, selector: Selector | None, shape: Format) -> None:
        """Without a `selector` all lines are shown."""
        self._selector, self._format = selector, shape

    def of(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Yield the lines to show as `lines` come. Raises what `Selector.accepts` does."""
        searches = self._selector is not None and self._selector.searches
        for line in lines:
            if self._selector is not None and not self._selector.accepts(line):
                continue
            # What follows overwrites this piece of a progress bar, and it was not searched for.
            nothing = line.overwritten or not (line.ends or line.raw.strip(OVERWRITES))
            if nothing and not searches and not self._format.as_json:
                continue
            if (kept := self._format.of_long(line)) is not None:
                yield kept

    def last(self, lines: Iterable[Line], count: int) -> Iterator[Line]:
        """Yield the last `count` lines to show. It keeps no more of them in memory, and reads `lines` when the first is asked for."""
        yield from deque(self.of(lines), maxlen=count)
