"""The row at the foot of a terminal: lines that ranks have begun, or how the run stands."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from launcher.cli.text import verdict_text
from launcher.cli.text.columns import counted
from launcher.cli.text.log_format import Format
from launcher.cli.text.partial_lines import PartialLines
from launcher.cli.text.progress_text import ProgressText
from launcher.cli.text.status_line import StatusLine
from launcher.cli.text.summary import describe
from launcher.core.events import AttemptStarted, Cause, Event, RankEnded, Stopping
from launcher.core.records import RunSpec
from launcher.core.run_dir import RunDir
from launcher.logs.lines import Begun
from launcher.runs.progress import Progress

ENDING_SHOWN_AFTER_S = 1.0  # most processes end at once, and then nothing needs to be said


class Foot:
    """Drawn again and again on a terminal; elsewhere how the run stands is a line when it changes."""

    def __init__(self, spec: RunSpec, progress: Progress, shape: Format, shown_dir: Path) -> None:
        self._grace_s = spec.supervision.grace_s
        self._progress = progress
        self._shown_dir = shown_dir
        self._status = StatusLine(sys.stderr)
        self._partial = PartialLines(shape, sys.stdout, before=self._status.erase)
        self._stopping_since_s = math.inf
        self._last_end_s = -math.inf
        self._measured: ProgressText | None = None
        if spec.console == "status":
            self._measured = ProgressText(RunDir(spec.run_dir), on_terminal=sys.stderr.isatty())

    @property
    def wants_lines(self) -> bool:
        """True where lines that ranks have begun would be shown now."""
        return self._partial.wanted and self._progress.current.ending.stopping is None

    def event(self, event: Event) -> None:
        """Note when what is shown changes."""
        match event:
            case RankEnded():
                self._last_end_s = time.monotonic()
            case Stopping() if event.cause is not Cause.AGENT_LOST:
                self._stopping_since_s = time.monotonic()
            case AttemptStarted() if event.number:
                self._status.hurry()
                if self._measured is not None:
                    self._measured.forget()
            case _:
                pass

    def show(self, begun: Mapping[int, Begun], *, killed: bool) -> None:
        """Draw the lines of `begun`, by global rank, or how the run stands; `killed`: every rank gets SIGKILL."""
        going_on = {rank: line for rank, line in begun.items() if rank not in self._progress.current.exits}
        if self._partial.show(going_on) and self._status.on_terminal:
            return
        text = "" if killed else self._text()
        self._status.show(text, self._why() if text and self._progress.current.ending.stopping is not None else "")

    def erase(self) -> str:
        """Take the row away; returns what `StatusLine.erase` does."""
        return max(self._partial.erase(), self._status.erase())

    def _text(self) -> str:
        """Return how the run stands; empty while nothing has started yet, is left, or is waited for."""
        progress = self._progress
        started, running, total = len(progress.current.starts), progress.current.running, progress.rank_count
        if progress.current.ending.stopping is not None and running:
            end = "being killed" if progress.current.ending.killed else "killed if they take too long"
            return f"{counted(running, 'rank')} of {total} to end, {end}"
        if progress.current.ending.stopping is not None:
            return self._text_of_leftovers()
        if not running or started < total:
            return ""
        if running == total:
            return self._all_started()
        lasts = time.monotonic() - self._last_end_s > ENDING_SHOWN_AFTER_S  # ranks that end together do so one by one
        return f"{running} of {total} ranks running" if lasts else ""

    def _all_started(self) -> str:
        ranks = counted(self._progress.rank_count, "rank")
        if self._measured is not None and (measured := self._measured.text()):
            return f"{ranks}: {measured}"
        if self._progress.current.number:  # the directory is the run's, and has been told
            return f"attempt {self._progress.current.number}: {ranks} started"
        return f"{ranks} started in {self._shown_dir}"

    def _text_of_leftovers(self) -> str:
        """Return what is waited for once no rank is left: processes that ranks had started."""
        begun = self._progress.current.starts and self._progress.not_begun is None
        lasts = time.monotonic() >= self._stopping_since_s + ENDING_SHOWN_AFTER_S
        if self._progress.ended or not begun or not lasts:
            return ""
        return f"ending processes that ranks left, killed if they take more than {self._grace_s:g} s"

    def _why(self) -> str:
        if self._progress.current.verdict is not None:
            return f"{verdict_text.headline(self._progress.current.verdict)}; "
        failed = self._progress.current.first_failure
        return "" if failed is None else f"rank {failed.global_rank} failed ({describe(failed)}); "
