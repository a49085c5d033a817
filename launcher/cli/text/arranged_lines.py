"""A feed that filters log lines, merges them by time or collapses similar lines."""

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

STAGE_S = 0.05  # polling interval while lines wait for other ranks
# Bytes of all ranks read at once; comparing different lines is slow, and the display must be updated in between.
COLLAPSED_BYTES = 64 << 10


class ArrangedFeed:
    """A `Feed` of selected log lines. It can merge lines by time, or show identical lines of several ranks once."""

    def __init__(
        self, logs: RankLogs, shape: Format, selector: Selector | None = None, *,
        merged: bool = False, collapsed: bool = False,
    ) -> None:  # fmt: skip
        self._logs, self._format, self._selection = logs, shape, Selection(selector, shape)
        self._at_once_bytes = COLLAPSED_BYTES if collapsed else AT_ONCE_BYTES
        self._stage: Merger | Collapser | None = None  # holds lines that wait for other ranks
        if merged or collapsed:
            self._stage = Merger(logs.of_rank) if merged else Collapser(logs.of_rank)
        self._attempt: int | None = None  # of the last line
        self._next: list[Line | Shown] = []  # shown before the stage's lines
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
        return {global_rank: begun for global_rank, log in self._logs.of_rank.items() if (begun := log.partial)}

    def begin_with_last(self, count: int) -> None:
        """Start with only the last `count` selected lines of each rank, and skip all earlier lines."""
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
    """A filter for the log lines of several ranks. The lines of each rank stay in order."""

    def __init__(self, selector: Selector | None, shape: Format) -> None:
        """Create a filter. Without a `selector`, all lines are shown."""
        self._selector, self._format = selector, shape

    def of(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Yield the lines to show. Raises UsageError if a regular expression takes too long."""
        searches = self._selector is not None and self._selector.searches
        for line in lines:
            if self._selector is not None and not self._selector.accepts(line):
                continue
            # The next text overwrites this piece of a progress bar; it is shown only if the user searches.
            nothing = line.overwritten or not (line.ends or line.raw.strip(OVERWRITES))
            if nothing and not searches and not self._format.as_json:
                continue
            if (kept := self._format.of_long(line)) is not None:
                yield kept

    def last(self, lines: Iterable[Line], count: int) -> Iterator[Line]:
        """Yield the last `count` lines to show. At most `count` lines are kept in memory."""
        yield from deque(self.of(lines), maxlen=count)
