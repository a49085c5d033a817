"""Read the training progress of each rank (step, loss, speed) from its heartbeat, or else from its log.

Figures from logs are only displayed. Detection of hung and slow ranks does not use them.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.core.heartbeat import Beat, Heartbeat, read_heartbeat
from launcher.core.run_dir import RunDir
from launcher.logs.log_file import bytes_between, opened
from launcher.runs.record import read_fields

if TYPE_CHECKING:
    from launcher.logs.figures import Figures
    from launcher.logs.select import Matcher

LOOK_BYTES = 1 << 15  # per read of a log; there may be a thousand logs


@frozen
class RankFigures:
    """The newest training figures of a rank, such as step and loss, all from one heartbeat or log line."""

    heartbeat: Heartbeat | None = None  # any heartbeat, including a touched file
    from_log: bool = False
    step: int | None = None
    last_step: int | None = None
    epoch: float | None = None  # from a log; `step` and `last_step` then usually count within the epoch
    loss: float | None = None
    tokens_per_s: float | None = None
    steps_per_s: float | None = None  # from a log
    counts_samples: bool = False  # `step` and `last_step` from a log count samples
    is_bare: bool = False  # from a progress bar without words, which may belong to an epoch or another loop
    refused: str | None = None  # why its log is not read: --progress-regex took too long

    @property
    def compared_step(self) -> int | None:
        """The step for comparing ranks, or None. If the log counts samples, it is the percentage of the epoch."""
        if self.step is None or not self.counts_samples:
            return self.step
        return 100 * self.step // self.last_step if self.last_step else None

    @property
    def is_over(self) -> bool:
        """True if a progress bar without text has reached its last step, so that its loop has ended."""
        return self.is_bare and self.step is not None and self.step == self.last_step

    @property
    def known(self) -> bool:
        return any(value is not None for value in (self.step, self.epoch, self.loss, self.tokens_per_s))


@dataclass(slots=True)
class _Log:
    """The read position in a rank's log and the newest figures found there. `position` is always at a line start."""

    path: Path
    offset: int = 0  # where the current attempt starts
    position: int = 0
    seen: tuple[int, int] = (0, 0)  # inode and size at the last look
    found: RankFigures | None = None


def pattern_of(text: str | None) -> Matcher | None:
    """Compile the value of --progress-regex. For None, return None (built-in line formats). Raises UsageError."""
    if text is None:
        return None
    from launcher.logs.figures import progress_regex  # noqa: PLC0415 - few runs have one

    return progress_regex(text)


def pattern_for(run_dir: RunDir, text: str | None) -> Matcher | None:
    """Compile `text` or, if it is None, the run's recorded --progress-regex. Raise UsageError if `text` is invalid."""
    if text is not None:
        return pattern_of(text)
    recorded = read_fields(run_dir).get("progress_regex")
    with suppress(UsageError):
        return pattern_of(recorded if isinstance(recorded, str) else None)
    return None


class FiguresReader:
    """Reads the newest training figures of ranks. Each call reads at most the last 32 KiB of new log text.

    It keeps no file open, never blocks, raises no errors for file content, and gives up an expression that is too slow.
    """

    def __init__(self, run_dir: RunDir, pattern: Matcher | None = None) -> None:
        """Use `pattern` (from `progress_regex`) to find figures in logs, or the built-in line formats if it is None."""
        self.refused: UsageError | None = None  # why the pattern was given up
        self._run_dir, self._pattern = run_dir, pattern
        self._logs: dict[int, _Log] = {}

    def look(self, global_rank: int, log_offset: int = 0) -> RankFigures:
        """Return the newest figures of a rank from its heartbeat, or from its log after `log_offset`."""
        heartbeat = read_heartbeat(self._run_dir.heartbeat(global_rank))
        beat = heartbeat.beat if heartbeat is not None else Beat()
        figures = RankFigures(
            heartbeat, step=beat.step, last_step=beat.last_step, loss=beat.loss, tokens_per_s=beat.tokens_per_s
        )
        if figures.known or (logged := self.logged(global_rank, log_offset)) is None:
            return figures
        return replace(logged, heartbeat=heartbeat)

    def logged(self, global_rank: int, log_offset: int = 0) -> RankFigures | None:
        """Return the newest figures in a rank's log, or None. If the pattern was too slow, return only `refused`."""
        log = self._logs.get(global_rank)
        if log is None or log.offset != log_offset:
            path = self._run_dir.train_log(global_rank)
            log = self._logs[global_rank] = _Log(path, log_offset, log_offset)
        if self.refused is None:
            try:
                self._read(log)
            except UsageError as error:
                self.refused = error
            except OSError:
                pass
        return log.found if self.refused is None else RankFigures(refused=self.refused.message)

    def _read(self, log: _Log) -> None:
        found = os.stat(log.path)  # noqa: PTH116 - hundreds of them, every second
        before, log.seen = log.seen, (found.st_ino, found.st_size)
        if log.seen == before:
            return
        if found.st_ino != before[0]:
            log.position = log.offset
        if found.st_size < log.position:  # truncated, usually by logrotate
            log.position = 0
        from launcher.logs.figures import LINE_END, figures_in, last_line  # noqa: PLC0415 - programs with heartbeats need none

        with opened(log.path) as descriptor:
            begin = max(log.position, found.st_size - LOOK_BYTES)
            text = bytes_between(descriptor, begin, found.st_size)
        if begin > log.position:  # the first line may be incomplete
            first_end = LINE_END.search(text)
            text = text[first_end.end() if first_end else 0 :]
        log.position = found.st_size - len(text) + max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        newest: Figures | None = None
        for each in figures_in(text, self._pattern):
            newest = newest or each
            if not each.is_bare:
                newest = each
                break
        # Keep figures from informative lines, although bars without words come more often.
        if newest is not None and (not newest.is_bare or log.found is None or log.found.is_bare):
            log.found = RankFigures(from_log=True, **vars(newest))
        if log.found is not None and log.found.is_over:
            # The speed of a finished loop is obsolete; so are all its figures once the program prints something else.
            line = last_line(text)
            goes_on = line is not None and next(figures_in(line, self._pattern), None) is None
            log.found = None if goes_on else replace(log.found, steps_per_s=None)
