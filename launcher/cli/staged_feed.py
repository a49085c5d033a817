"""Lines that are looked at before they are shown: searched, merged by time, collapsed."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator

from launcher.cli.log_format import Format
from launcher.logs.collapse import Collapser, Shown
from launcher.logs.lines import Line
from launcher.logs.merge import Merger
from launcher.logs.select import Selector
from launcher.runs.rank_logs import RankLogs

STAGE_S = 0.05  # how often lines that wait for others are asked for


class _AsTheyCome:
    """No stage at all."""

    def __init__(self) -> None:
        self._lines: list[Line] = []

    def put(self, line: Line) -> None:
        self._lines.append(line)

    def end(self, global_rank: int) -> None:
        """Nobody waits for anybody here."""

    def take(self, now_ns: int) -> list[Line]:  # noqa: ARG002 - as the others
        taken, self._lines = self._lines, []
        return taken

    def flush(self) -> list[Line]:
        return self.take(0)

    @property
    def waits(self) -> bool:
        return False


class StagedFeed:
    """A `Feed` (launcher/cli/log_feeds.py)."""

    def __init__(
        self, logs: RankLogs, shape: Format, selector: Selector | None = None, *,
        merged: bool = False, collapsed: bool = False,
    ) -> None:  # fmt: skip
        self._logs, self._format, self._selector = logs, shape, selector
        self._stage: _AsTheyCome | Merger | Collapser = _AsTheyCome()
        if merged or collapsed:
            self._stage = Merger(logs.of_rank) if merged else Collapser(logs.of_rank)
        self._flushed = False
        self._ended: set[int] = set()  # ranks whose last lines may not have been read yet
        self.close = logs.close

    def next_text(self, *, ended: bool = False) -> bytes | None:
        came = False
        for lines in self._logs.new_lines(ended=ended):
            came = True
            self._put(lines)
        self._wait_no_more()
        shown: Collection[Line | Shown] = self._stage.take(time.monotonic_ns())
        if ended and not (came or shown or self._flushed):
            self._flushed = True
            for log in self._logs.of_rank.values():
                self._put(log.rest())
            shown = self._stage.flush()
        return self._format.lines(shown) if shown else b"" if came else None

    def rank_ended(self, global_rank: int) -> None:
        self._ended.add(global_rank)
        self._logs.look_at(global_rank)

    def skip_to_last(self, keep_bytes: int) -> Iterator[tuple[int, int]]:
        for global_rank, log in self._logs.of_rank.items():
            if skipped := log.skip_to_last_bytes(keep_bytes // len(self._logs.of_rank)):
                yield global_rank, skipped

    def wait(self, seconds: float) -> None:
        self._logs.wait(min(seconds, STAGE_S) if self._stage.waits else seconds)

    def _wait_no_more(self) -> None:
        for global_rank in [each for each in self._ended if self._logs.is_read(each)]:
            self._ended.discard(global_rank)
            self._stage.end(global_rank)

    def _put(self, lines: Iterable[Line]) -> None:
        for line in lines:
            for selected in self._selector.put(line) if self._selector else (line,):
                if selected is not None and (shown := self._format.of_long(selected)) is not None:
                    self._stage.put(shown)
