"""The status line of a run. It shows partial lines of ranks, or the state of the run."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from launcher.cli.text import verdict_text
from launcher.cli.text.columns import counted, cut_off, duration_in_seconds
from launcher.cli.text.log_format import Format
from launcher.cli.text.progress_text import ProgressText, about_silence, fitting
from launcher.cli.text.status_line import StatusLine
from launcher.cli.text.stdout import as_argument, is_pipe
from launcher.cli.text.summary import describe_exit
from launcher.core.events import (
    AttemptStarted,
    Awaiting,
    Cause,
    Event,
    Leftovers,
    Preloaded,
    Preloading,
    RankEnded,
    Stopping,
)
from launcher.core.records import RunSpec
from launcher.core.run_dir import RunDir
from launcher.core.text import ranges, some_of
from launcher.logs.group_key import Alike, Kinds, folded
from launcher.logs.lines import Line, PartialLine
from launcher.logs.terminal import printable, without_colours
from launcher.runs.progress import Progress
from launcher.runs.rank_figures import pattern_of

SHOWN_AFTER_S = 0.3  # most partial lines are completed by then
REDRAWN_EVERY_S = 0.1
PRINTED_EVERY_S = 1.0  # at most, if the row cannot be redrawn in place
BETWEEN = "  "  # separates the lines of different ranks
BAR = re.compile(r"\|(?=[ ]*[#=>\u2581-\u258f]|[ ]{8})[ #=>.\u2581-\u258f-]{3,}\|")

DOTS = " ..."
PACKAGES_SHOWN = 3  # names of preloaded packages
ENDING_SHOWN_AFTER_S = 1.0  # most processes end within this time


def is_own_module(name: str) -> bool:
    """Return True for modules of tlaunch, which are preloaded for the bundled trainer."""
    return name.partition(".")[0] in {"_package", "launcher"}


class PartialLines:
    """Draws partial lines of ranks, such as progress bars, in one row of a terminal."""

    def __init__(
        self, shape: Format, stream: TextIO, *, hidden: bool = False, before: Callable[[], object] = lambda: None
    ) -> None:
        """Create the row. `before` is called before each drawing, to clear other text in the row."""
        row = StatusLine(stream)
        self._row = row if shape.redraws and row.on_terminal and not hidden else None
        self._format, self._before = shape, before
        self._since_s: dict[tuple[int, int], float] = {}  # by global rank and line offset: when it was first seen
        self._drawn: set[tuple[int, int]] = set()  # the lines in `_text`
        self._text = ""
        self._next_s = 0.0

    @property
    def wanted(self) -> bool:
        return self._row is not None

    def show(self, begun: Mapping[int, PartialLine]) -> bool:
        """Draw the partial lines, keyed by global rank. Return True if any line is visible."""
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
        """Erase the row as `StatusLine.erase` does, so that other text can be written."""
        return "" if self._row is None else self._row.erase()

    def close(self) -> None:
        self.erase()

    def _text_of(self, begun: Mapping[int, PartialLine]) -> str:
        seen = {  # tabs become spaces
            global_rank: without_colours(printable(line.state.decode(errors="replace"))).replace("\t", " ")
            for global_rank, line in sorted(begun.items())
        }
        said = {global_rank: text for global_rank, text in seen.items() if text.strip()}
        if len(said) == 1:
            [(global_rank, text)] = said.items()
            return f"{self._format.prefix(global_rank)}{text}".replace("\n", " ")
        kinds = Kinds()
        alike: dict[str, list[Alike]] = {}
        for global_rank, text in said.items():  # without progress bars, since they differ first
            line = Alike(Line(global_rank, 0, BAR.sub(" ", text.strip()).encode(errors="replace")), kinds)
            alike.setdefault(line.kind.words, []).append(line)
        return BETWEEN.join(
            f"[{ranges([each.global_rank for each in lines])}] {folded(lines)}" for lines in alike.values()
        )


class RunStatusLine:
    """The status line of a run. On a terminal, it is redrawn in place; elsewhere, its changes are printed."""

    def __init__(self, spec: RunSpec, progress: Progress, shape: Format, shown_dir: Path) -> None:
        self._progress = progress
        self._run_dir, self._shown_dir = RunDir(spec.run_dir), shown_dir
        self._server_count = len(spec.cluster.servers)
        # If stdout is a pipe to `tee`, tee also writes to the terminal, so the row cannot be redrawn.
        self._status = StatusLine(sys.stderr, alone=spec.console in {"status", "none"} or not is_pipe(sys.stdout))
        self._partial = PartialLines(shape, sys.stdout, before=self._status.erase)
        self._grace_s = spec.supervision.grace_s
        self._began_s = self._phase_s = time.monotonic()
        self._doing = "starting"  # the phase before ranks run
        self._killed_at_s = math.inf  # when the grace period ends
        self._stopping_since_s = math.inf
        self._last_end_s = -math.inf
        self._printed, self._print_after_s = "", 0.0  # the last line, if there is no terminal
        self._has_hinted = False
        self._measured: ProgressText | None = None
        if spec.console == "status" or self._status.on_terminal:
            pattern = pattern_of(spec.progress_regex)
            self._measured = ProgressText(self._run_dir, pattern, on_terminal=self._status.on_terminal)
        self._replaces_steps = spec.console == "rank0" and self._status.on_terminal and shape.redraws

    @property
    def wants_lines(self) -> bool:
        return self._partial.wanted and self._progress.current.ending.stopping is None

    def without_steps(self, text: bytes) -> bytes:
        """Return lines of rank 0, without step lines if the status line shows the step."""
        if self._measured is None or not self._replaces_steps:
            return text
        return self._measured.without_steps(text, self._progress.current.starts)

    def event(self, event: Event) -> None:
        now_s = time.monotonic()
        match event:
            case Awaiting(server_ids=missing):
                waits = f"waiting for {len(missing)} of {counted(self._server_count, 'server')}"
                self._do(waits if missing else "starting", event.seconds if missing else 0.0)
            case Preloading(modules=modules):
                packages = tuple(dict.fromkeys(name.partition(".")[0] for name in modules if not is_own_module(name)))
                self._do(f"importing {some_of(packages, PACKAGES_SHOWN)}")
            case Preloaded():
                self._do("starting ranks")
            case RankEnded():
                self._last_end_s = now_s
            case Stopping(grace_s=grace_s) if event.cause is not Cause.AGENT_LOST:
                self._stopping_since_s, self._killed_at_s = now_s, now_s + grace_s
            case Leftovers():
                self._killed_at_s = now_s + self._grace_s
            case AttemptStarted() if event.number:
                self._do("starting ranks")
                self._began_s, self._killed_at_s = now_s, math.inf
                self._print_after_s = 0.0
                if self._measured is not None:
                    self._measured.forget()

    def _do(self, what: str, already_s: float = 0.0) -> None:
        """Set the text for the current phase of the start. The phase began `already_s` seconds ago."""
        self._doing, self._phase_s = what, time.monotonic() - already_s

    def show(self, begun: Mapping[int, PartialLine], *, killed: bool) -> None:
        """Draw the partial lines. If there are none, draw the run's state unless its ranks were `killed`."""
        attempt = self._progress.current
        all_run = len(attempt.starts) == self._progress.rank_count and attempt.running
        if self._measured is not None and self._status.on_terminal and all_run and attempt.ending.stopping is None:
            self._measured.look(attempt.starts, attempt.exits)  # even if partial lines hide the status
        unended = {rank: line for rank, line in begun.items() if rank not in attempt.exits}
        if self._partial.show(unended) and self._status.on_terminal:
            return
        text = "" if killed else self._text()
        why, verdict, failed = "", attempt.verdict, attempt.first_failure
        if text and attempt.ending.stopping is not None:
            if verdict is not None:
                why = f"{verdict_text.headline(verdict)}; "
            elif failed is not None:
                why = f"rank {failed.global_rank} failed ({describe_exit(failed)}); "
        if self._status.on_terminal:
            self._status.show(text, why)
        else:
            self._print(why + text)

    def _print(self, text: str) -> None:
        """Print the state of the run on stderr if it has changed, at most once in `PRINTED_EVERY_S` seconds."""
        text = without_colours(text)
        if text and text != self._printed and time.monotonic() >= self._print_after_s:
            with suppress(OSError, ValueError):  # stderr is closed
                print(text, file=sys.stderr, flush=True)
            self._printed, self._print_after_s = text, time.monotonic() + PRINTED_EVERY_S

    def start_report(self) -> Iterator[str]:
        """If all ranks have started, yield a line about it for a terminal. Elsewhere, print it as the run's state."""
        if len(self._progress.current.starts) < self._progress.rank_count:
            return
        if self._status.on_terminal:
            yield self._started_text()
        else:
            self._print(self._started_text())

    def hint(self) -> tuple[str, ...]:
        """Return lines about silent ranks the first time that ranks are silent for unusually long, else ()."""
        silent_s = {} if self._measured is None else self._measured.silences.silent_s
        if not silent_s or self._has_hinted or self._progress.current.ending.stopping is not None:
            return ()
        self._has_hinted = True
        return about_silence(silent_s, self._progress.current.running, as_argument(self._run_dir))

    def erase(self) -> str:
        """Erase the row as `StatusLine.erase` does."""
        return max(self._partial.erase(), self._status.erase())

    def _text(self) -> str:
        progress, attempt = self._progress, self._progress.current
        if attempt.ending.stopping is not None or attempt.ending.leftovers:
            return self._ending_text()
        if progress.ended or progress.not_begun is not None:
            return ""
        if len(attempt.starts) < progress.rank_count:
            return self._beginning_text() if self._status.on_terminal and not attempt.exits else ""
        return self._running_text() if attempt.running else ""

    def _beginning_text(self) -> str:
        """Describe the current startup phase, such as "importing torch ... 3 s"."""
        attempt, seconds = self._progress.current, time.monotonic() - self._phase_s
        what = self._doing
        if attempt.starts:
            what = f"starting {len(attempt.starts)} of {counted(self._progress.rank_count, 'rank')}"
        since = f" {duration_in_seconds(seconds)}" if seconds >= 1 else ""
        return f"{cut_off(what, self._status.width - len(DOTS) - len(since))}{DOTS}{since}"

    def _running_text(self) -> str:
        """Describe the running ranks and their progress: "4 ranks for 12 s: step 3, loss 2.5000"."""
        attempt, total = self._progress.current, self._progress.rank_count
        ranks = counted(total, "rank")
        if attempt.running < total:  # wait a moment: ranks that finish together end one by one
            ranks = f"{attempt.running} of {total} ranks running"
            if time.monotonic() - self._last_end_s <= ENDING_SHOWN_AFTER_S:
                return ""
        if self._status.on_terminal:
            return self._live_text(ranks)
        if attempt.running < total:
            return ranks
        if self._measured is not None and (measured := self._measured.text(attempt.starts)):
            return f"{ranks}: {measured}"
        return self._started_text()

    def _started_text(self) -> str:
        ranks, number = counted(self._progress.rank_count, "rank"), self._progress.current.number
        # The run directory was shown before the restart.
        return f"attempt {number}: {ranks} started" if number else f"{ranks} started in {self._shown_dir}"

    def _live_text(self, ranks: str) -> str:
        attempt = self._progress.current
        parts = {} if self._measured is None else self._measured.parts()
        if attempt.slow and "lag" not in parts:
            parts["lag"] = f"{verdict_text.rank_list(attempt.slow)} slow"
        who = f"attempt {attempt.number}, {ranks}" if attempt.number else ranks
        return fitting(who, duration_in_seconds(time.monotonic() - self._began_s), parts, self._status.width)

    def _ending_text(self) -> str:
        """Say how many ranks are still ending, and when they will be killed."""
        progress, attempt = self._progress, self._progress.current
        now_s = time.monotonic()
        has_end = self._status.on_terminal and math.isfinite(self._killed_at_s)
        left_s = math.ceil(self._killed_at_s - now_s) if has_end else 0
        if attempt.ending.stopping is not None and attempt.running:
            end = "being killed" if attempt.ending.killed else "killed if they take too long"
            if left_s > 0 and not attempt.ending.killed:
                end = f"killed in {duration_in_seconds(left_s)}"
            return f"{attempt.running} of {counted(progress.rank_count, 'rank')} ending, {end}"
        # All ranks have ended, but not all of their child processes.
        begun = attempt.starts and progress.not_begun is None and not progress.ended
        lasts = now_s >= self._stopping_since_s + ENDING_SHOWN_AFTER_S
        if not begun or not (lasts or (attempt.ending.stopping is None and self._status.on_terminal)):
            return ""
        if left_s > 0:
            return f"terminating processes that ranks left running, killed in {duration_in_seconds(left_s)}"
        return f"terminating processes that ranks left running, killed after {self._grace_s:g} s"
