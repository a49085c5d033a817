"""Choose the logs, lines and format that `tlaunch logs` shows."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

from launcher.cli.options.chosen_run import chosen_live
from launcher.cli.options.logs import LogOptions
from launcher.cli.text.columns import counted
from launcher.cli.text.log_format import Format
from launcher.cli.text.log_stream import truncated
from launcher.cli.text.stdout import as_people_call_it, say
from launcher.cli.text.verdict_text import culprit_failure
from launcher.core.errors import UsageError
from launcher.core.machine.proc import make_room
from launcher.core.text import ranges
from launcher.logs.lines import Line
from launcher.logs.log_file import Truncation
from launcher.logs.select import Selector
from launcher.runs.rank_logs import SCHEDULER, AttemptPlaces, RankLogs
from launcher.runs.record import read_recorded
from launcher.runs.status import RunStatusReader


@dataclass
class ChosenLogs:
    """The opened logs, and the options that select and format their lines. The caller must close `logs`."""

    options: LogOptions
    watch: RunStatusReader
    logs: RankLogs
    shape: Format
    selector: Selector
    notices: list[str] = field(default_factory=list)  # to be printed once the screen shows no partial lines

    def skip_to_last_lines(self) -> None:
        """Skip to the last `options.lines` lines of each log, unless other options also select lines."""
        self.logs.note_attempts()
        options = self.options
        if options.lines is not None and not options.selects:
            for log in self.logs.of_rank.values():
                log.skip_to_last(options.lines, with_times=not (options.plain or options.collapsed))

    def say_what_is_unreadable(self, known: Collection[int] = ()) -> set[int]:
        """Report logs that cannot be read, and return their ranks. Ranks in `known` are skipped."""
        new = {rank: found for rank, found in self.logs.unreadable.items() if rank not in known}
        for global_rank, (path, reason) in new.items():
            say(f"{_who([global_rank])}: {as_people_call_it(path)} cannot be read: {reason}")
        return set(new)

    def say_what_is_missing(self) -> None:
        """Report lines that were omitted because they have no time, and long lines that were searched only in part."""
        selector = self.selector
        if never := selector.without_time - selector.dated:
            say(f"{lines_of(never)} have no time, so --since and --until leave them out")
        if some := selector.without_time & selector.dated:
            say(f"some {lines_of(some)} are left out, because they come before the log's first line with a time")
        if selector.searches and not selector.matched:
            say("no line matches")
        if selector.cut_short:
            lines = counted(selector.cut_short, "long line")
            say(f"the search took too long: {lines} searched only in part")

    def cause(self) -> tuple[int, str] | None:
        """Return the rank that failed first and its traceback, if a verdict has it and the rank's log is chosen."""
        number = self.options.attempt
        attempts = [each for each in self.watch.look().attempts if number in {None, each.number}]
        verdict = attempts[-1].verdict if attempts else None
        failure = culprit_failure(verdict) if verdict else None
        if failure is None or not failure.traceback or failure.global_rank not in self.logs.of_rank:
            return None
        return failure.global_rank, failure.traceback

    def say_notices(self) -> None:
        for notice in self.notices:
            say(notice)
        self.notices.clear()


def lines_of(global_ranks: Collection[int]) -> str:
    return f"lines of {_who(global_ranks)}"


def _who(global_ranks: Collection[int]) -> str:
    if SCHEDULER in global_ranks:
        return "the scheduler"
    return f"rank{'s' if len(global_ranks) > 1 else ''} {ranges(global_ranks)}"


def choose(runs_dir: Path, run: str | None, options: LogOptions) -> ChosenLogs:
    """Find the run, and open the chosen logs.

    Raises UsageError if an option does not apply to this run, and UnreadableError if the run or its run.json is
    missing.
    """
    options.check()
    run_dir = chosen_live(runs_dir, run)
    watch = RunStatusReader(run_dir)
    state, recorded = watch.look(), read_recorded(run_dir)
    places = AttemptPlaces(recorded)
    options = replace(options, by_attempt=places.change)
    options.check_attempt(state)
    global_ranks = (SCHEDULER,) if options.scheduler else options.chosen_ranks(recorded, state)
    if options.scheduler and not run_dir.scheduler.is_dir():
        raise UsageError("this run did not start MindSpore's scheduler", hint="leave --scheduler out")
    if not make_room(len(global_ranks)):
        raise UsageError(
            f"cannot open {len(global_ranks)} logs: the limit on open files per process is too low",
            hint="raise the hard limit (`ulimit -Hn`), or choose fewer ranks with --rank",
        )
    notices: list[str] = []

    def note_truncation(global_rank: int, truncation: Truncation) -> None:
        log = run_dir.scheduler_log if options.scheduler else run_dir.train_log(global_rank)
        notices.append(truncated(as_people_call_it(log), truncation))

    by_server = options.by_attempt and options.server is not None
    is_filtered = by_server or options.attempt is not None

    def is_wanted(line: Line) -> bool:
        """Return True if --attempt and --server select this line."""
        if options.attempt not in {None, line.attempt or 0}:
            return False
        place = places.of_line(line) if by_server else None
        return not by_server or (place is not None and options.is_chosen(place))

    # Invalid expressions raise here, before any log is opened.
    known = (replace(recorded.places[0], global_rank=SCHEDULER),) if options.scheduler else recorded.places
    places_of = places.of if options.by_attempt else None
    shape = Format(options.line_options(), sys.stdout, known, global_ranks, places_of=places_of)
    selector = options.selector()
    logs = RankLogs(
        run_dir, global_ranks, state.started_ns or time.time_ns(), environment=options.environment,
        on_truncation=note_truncation, places=places, wanted=is_wanted if is_filtered else None, timed=options.timed,
    )  # fmt: skip
    return ChosenLogs(options, watch, logs, shape, selector, notices)
