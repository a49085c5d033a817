"""How far each rank is: by its heartbeat, or, where it writes none, by what it prints.

Nothing but what people look at uses figures of logs: whether a rank hangs or is slow is found without them.
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

LOOK_BYTES = 1 << 15  # of a log at a time: there may be a thousand


@frozen
class RankFigures:
    """The newest figures of a rank, all of one source."""

    heartbeat: Heartbeat | None = None  # whatever there is of it, a touch included
    from_log: bool = False
    step: int | None = None
    last_step: int | None = None
    epoch: float | None = None  # from a log; `step` and `last_step` are of an epoch then, as a rule
    loss: float | None = None
    tokens_per_s: float | None = None
    steps_per_s: float | None = None  # from a log
    counts_samples: bool = False  # `step` and `last_step` are numbers of samples, as a log tells them
    is_bare: bool = False  # of a progress bar without words, which may be that of an epoch, or of another loop
    refused: str | None = None  # why its log is not read: --progress-regex has taken too long

    @property
    def compared_step(self) -> int | None:
        """The step, by which ranks are compared; of samples the hundredths of the epoch, for a step has many of them."""
        if self.step is None or not self.counts_samples:
            return self.step
        return 100 * self.step // self.last_step if self.last_step else None

    @property
    def is_over(self) -> bool:
        """True for a progress bar without words that has come to its end: its loop is over, and another may be going on."""
        return self.is_bare and self.step is not None and self.step == self.last_step

    @property
    def known(self) -> bool:
        """True where anything is known of the training."""
        return any(value is not None for value in (self.step, self.epoch, self.loss, self.tokens_per_s))


@dataclass(slots=True)
class _Log:
    """How far a log was read, and what was found in it. Invariant: `position` is behind the end of a line."""

    path: Path
    offset: int = 0  # where the current attempt begins
    position: int = 0
    seen: tuple[int, int] = (0, 0)  # inode and size at the last look
    found: RankFigures | None = None


def pattern_of(text: str | None) -> Matcher | None:
    """Return the expression that finds figures in lines, as --progress-regex gave it; None for the known forms.

    Raises:
        UsageError: it is none.
    """
    if text is None:
        return None
    from launcher.logs.figures import progress_regex  # noqa: PLC0415 - few runs have one

    return progress_regex(text)


def recorded_pattern(run_dir: RunDir) -> Matcher | None:
    """Return the expression of --progress-regex that a run was started with; None for the known forms. Never raises."""
    text = read_fields(run_dir).get("progress_regex")
    with suppress(UsageError):
        return pattern_of(text if isinstance(text, str) else None)
    return None


def pattern_for(run_dir: RunDir, text: str | None) -> Matcher | None:
    """Return the expression that is asked for now, else the one that the run was started with.

    Raises:
        UsageError: it is none.
    """
    return recorded_pattern(run_dir) if text is None else pattern_of(text)


class FiguresReader:
    """Looks at ranks again and again; reads at most the last 32 KiB of what has come to a log since its last look.

    Holds no file open, never blocks, and never raises for what it finds. An expression that takes too long is given up.
    """

    def __init__(self, run_dir: RunDir, pattern: Matcher | None = None) -> None:
        """`pattern`: of `progress_regex`, in place of the forms of lines that are known."""
        self.refused: UsageError | None = None  # why the pattern is not searched for any more
        self._run_dir, self._pattern = run_dir, pattern
        self._logs: dict[int, _Log] = {}

    def look(self, global_rank: int, log_offset: int = 0) -> RankFigures:
        """Return the figures of a rank; `log_offset`: where its log begins to be of the current attempt."""
        heartbeat = read_heartbeat(self._run_dir.heartbeat(global_rank))
        beat = heartbeat.beat if heartbeat is not None else Beat()
        figures = RankFigures(
            heartbeat, step=beat.step, last_step=beat.last_step, loss=beat.loss, tokens_per_s=beat.tokens_per_s
        )
        if figures.known or (logged := self.logged(global_rank, log_offset)) is None:
            return figures
        return replace(logged, heartbeat=heartbeat)

    def logged(self, global_rank: int, log_offset: int = 0) -> RankFigures | None:
        """Return the newest figures of a log, whatever the heartbeat says; None before there are any.

        Where the pattern was given up they are none, and say why.
        """
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
        if found.st_size < log.position:  # it was truncated: by logrotate, as a rule
            log.position = 0
        from launcher.logs.figures import LINE_END, figures_in, last_line  # noqa: PLC0415 - programs with heartbeats need none

        with opened(log.path) as descriptor:
            begin = max(log.position, found.st_size - LOOK_BYTES)
            text = bytes_between(descriptor, begin, found.st_size)
        if begin > log.position:  # the first line of it may be the end of one
            first_end = LINE_END.search(text)
            text = text[first_end.end() if first_end else 0 :]
        log.position = found.st_size - len(text) + max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        newest: Figures | None = None
        for each in figures_in(text, self._pattern):
            newest = newest or each
            if not each.is_bare:
                newest = each
                break
        # Lines that say more stay, though bars without words come more often.
        if newest is not None and (not newest.is_bare or log.found is None or log.found.is_bare):
            log.found = RankFigures(from_log=True, **vars(newest))
        if log.found is not None and log.found.is_over:
            # Of a loop that is over the speed is none any more, and nothing is once the program has printed of other things.
            line = last_line(text)
            goes_on = line is not None and next(figures_in(line, self._pattern), None) is None
            log.found = None if goes_on else replace(log.found, steps_per_s=None)
