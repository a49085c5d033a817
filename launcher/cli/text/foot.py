"""The row at the foot of a terminal: lines that ranks have begun, or the state of the run."""

from __future__ import annotations

import math
import os
import re
import select
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from launcher.cli.text import verdict_text
from launcher.cli.text.columns import columns_of, counted, cut_to
from launcher.cli.text.log_format import Format
from launcher.cli.text.progress_text import ProgressText
from launcher.cli.text.summary import describe
from launcher.core.events import AttemptStarted, Cause, Event, RankEnded, Stopping
from launcher.core.records import RunSpec
from launcher.core.run_dir import RunDir
from launcher.core.text import ranges
from launcher.logs.lines import Begun, Line
from launcher.logs.terminal import printable, without_colours
from launcher.runs.progress import Progress

# Where the status cannot be redrawn in place, it is repeated at most this often.
STATUS_EVERY_S = 1.0
ERASED = "\r\x1b[K"
CUT = "…; "
SPARE_COLUMNS = 2  # where a terminal writes ^C: in a full row it would wrap, and a half of it would stay
MIN_WHY_COLUMNS = 10  # columns; less of a failure says nothing

SHOWN_AFTER_S = 0.3  # most lines that are seen half written are ended by then
REDRAWN_EVERY_S = 0.1
BETWEEN = "  "  # what different ranks say
BAR = re.compile(r"\|(?=[ ]*[#=>\u2581-\u258f]|[ ]{8})[ #=>.\u2581-\u258f-]{3,}\|")

ENDING_SHOWN_AFTER_S = 1.0  # most processes end at once, and then nothing needs to be said


class StatusLine:
    """A line that is redrawn in place on a terminal, and printed elsewhere when it changes.

    A terminal that takes nothing (Ctrl-S) is left as it is: no method blocks.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._encoding = stream.encoding or "utf-8"
        self.on_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = ""
        self.visible = False  # on a terminal
        self._next_s = 0.0

    def hurry(self) -> None:
        """Show what comes next without waiting for the interval to pass."""
        self._next_s = 0.0

    def show(self, text: str, why: str = "") -> None:
        """Show `why` and `text`; `why` is cut first where the terminal is narrow.

        Colours of what is quoted go: the line is cut, and must not lose the end of a colour.
        """
        text, why = without_colours(text), without_colours(why)
        if self.on_terminal:
            columns = 0
            with suppress(OSError):  # of this stream's terminal: stdout may be somewhere else
                columns = os.get_terminal_size(self._stream.fileno()).columns
            width = (columns or shutil.get_terminal_size().columns) - SPARE_COLUMNS
            room = width - columns_of(text)
            if columns_of(why) > room:
                why = f"{cut_to(why, room - len(CUT))}{CUT}" if room > MIN_WHY_COLUMNS else ""
            text = cut_to(why + text, width)
            if (text != self._shown or not self.visible) and self._takes_text():
                self._write(ERASED * self.visible + text)
                self.visible = bool(text)
                self._shown = text
            return
        text = why + text
        if text and text != self._shown and time.monotonic() >= self._next_s:
            self._write(text + "\n")
            self._shown = text
            self._next_s = time.monotonic() + STATUS_EVERY_S

    def erase(self) -> str:
        """Erase the line; where the terminal takes nothing now, return what to write before anything else."""
        if not self.visible:
            return ""
        self.visible = False
        if self._takes_text():
            self._write(ERASED)
            return ""
        return ERASED

    def _takes_text(self) -> bool:
        with suppress(OSError):
            return bool(select.select([], [self._stream.fileno()], [], 0)[1])
        return True  # it is no file

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            self._stream.write(text.encode(self._encoding, errors="replace").decode(self._encoding))
            self._stream.flush()


class PartialLines:
    """Lines that ranks have begun and not ended (progress bars, prompts), in one row.

    Nothing is shown where `stream` is no terminal. Close it at the end, or something is left on the screen.
    """

    def __init__(
        self, shape: Format, stream: TextIO, *, hidden: bool = False, before: Callable[[], object] = lambda: None
    ) -> None:
        """`before` is called before something is drawn, and clears what else is in the row."""
        row = StatusLine(stream)
        self._row = row if shape.redraws and row.on_terminal and not hidden else None
        self._format, self._before = shape, before
        self._since_s: dict[tuple[int, int], float] = {}  # by global rank and line: when it was seen first
        self._drawn: set[tuple[int, int]] = set()  # that `_text` is made of
        self._text = ""
        self._next_s = 0.0

    @property
    def wanted(self) -> bool:
        """True where `show` has anything to do."""
        return self._row is not None

    def show(self, begun: Mapping[int, Begun]) -> bool:
        """Draw how lines stand, by global rank; nothing for none. Return whether something is to be seen."""
        if self._row is None:
            return False
        now_s = time.monotonic()
        lines = {(global_rank, line.line_offset) for global_rank, line in begun.items()}
        self._since_s = {line: self._since_s.get(line, now_s) for line in lines}
        if now_s >= self._next_s or not self._drawn <= lines:
            self._next_s = now_s + REDRAWN_EVERY_S
            self._drawn = {line for line in lines if now_s - self._since_s[line] >= SHOWN_AFTER_S}
            self._text = self._text_of({global_rank: begun[global_rank] for global_rank, _ in self._drawn})
        if self._text:
            self._before()
        self._row.show(self._text)
        return self._row.visible

    def erase(self) -> str:
        """Erase the row before anything else is written to the terminal; as `StatusLine.erase`."""
        return "" if self._row is None else self._row.erase()

    def close(self) -> None:
        self.erase()

    def _text_of(self, begun: Mapping[int, Begun]) -> str:
        seen = {  # a tab is as wide as a blank
            global_rank: without_colours(printable(line.state.decode(errors="replace"))).replace("\t", " ")
            for global_rank, line in sorted(begun.items())
        }
        said = {global_rank: text for global_rank, text in seen.items() if text.strip()}
        if len(said) == 1:
            [(global_rank, text)] = said.items()
            return f"{self._format.prefix(global_rank)}{text}".replace("\n", " ")
        return BETWEEN.join(_folded(said))


def _folded(said: Mapping[int, str]) -> list[str]:
    """Return what ranks say alike, with these ranks; bars are left out, whose lengths differ before their numbers do."""
    from launcher.logs.collapse import Alike, Kinds, folded  # one rank alone needs none of it

    kinds = Kinds()
    alike: dict[str, list[Alike]] = {}
    for global_rank, text in said.items():
        line = Alike(Line(global_rank, 0, BAR.sub(" ", text.strip()).encode(errors="replace")), kinds)
        alike.setdefault(line.kind.words, []).append(line)
    return [f"[{ranges([each.global_rank for each in lines])}] {folded(lines)}" for lines in alike.values()]


class Foot:
    """The row of a run: drawn again and again on a terminal; elsewhere a line when the state of the run changes."""

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
        elif spec.console == "rank0" and self._status.on_terminal and shape.redraws:
            self._measured = ProgressText(RunDir(spec.run_dir), on_terminal=True, needs_end=True)

    @property
    def wants_lines(self) -> bool:
        """True where lines that ranks have begun would be shown now."""
        return self._partial.wanted and self._progress.current.ending.stopping is None

    def without_steps(self, text: bytes) -> bytes:
        """Return lines of rank 0 without those of steps, where the row tells how far the training is."""
        return text if self._measured is None else self._measured.without_steps(text)

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
        attempt = self._progress.current
        unended = {rank: line for rank, line in begun.items() if rank not in attempt.exits}
        if self._partial.show(unended) and self._status.on_terminal:
            return
        text = "" if killed else self._text()
        why, verdict, failed = "", attempt.verdict, attempt.first_failure
        if text and attempt.ending.stopping is not None:
            if verdict is not None:
                why = f"{verdict_text.headline(verdict)}; "
            elif failed is not None:
                why = f"rank {failed.global_rank} failed ({describe(failed)}); "
        self._status.show(text, why)

    def erase(self) -> str:
        """Erase the row; return what `StatusLine.erase` does."""
        return max(self._partial.erase(), self._status.erase())

    def _text(self) -> str:
        """Return how the run stands; empty while nothing has started yet, is left, or is waited for."""
        progress, attempt = self._progress, self._progress.current
        started, running, total = len(attempt.starts), attempt.running, progress.rank_count
        if attempt.ending.stopping is not None and running:
            end = "being killed" if attempt.ending.killed else "killed if they take too long"
            return f"{counted(running, 'rank')} of {total} to end, {end}"
        if attempt.ending.stopping is not None:  # what is waited for are processes that ranks had started
            begun = started and progress.not_begun is None and not progress.ended
            lasts = time.monotonic() >= self._stopping_since_s + ENDING_SHOWN_AFTER_S
            what = f"ending processes that ranks left, killed if they take more than {self._grace_s:g} s"
            return what if begun and lasts else ""
        if not running or started < total:
            return ""
        if running < total:  # ranks that end together do so one by one
            lasts = time.monotonic() - self._last_end_s > ENDING_SHOWN_AFTER_S
            return f"{running} of {total} ranks running" if lasts else ""
        ranks = counted(total, "rank")
        if self._measured is not None and (measured := self._measured.text()):
            return f"{ranks}: {measured}"
        # The directory is the run's, and has been shown before a restart.
        return (
            f"attempt {attempt.number}: {ranks} started" if attempt.number else f"{ranks} started in {self._shown_dir}"
        )
