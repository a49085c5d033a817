"""From logs to lines: select, merge or collapse; until the logs end, or the run does."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Protocol

from launcher.cli.chosen_run import chosen_live
from launcher.cli.log_options import LogOptions
from launcher.cli.log_writer import Writer
from launcher.core.errors import EXIT_OK
from launcher.core.ranges import ranges
from launcher.logs.collapse import Collapser, Shown
from launcher.logs.lines import Line
from launcher.logs.merge import Merger, merge
from launcher.logs.raised import first_tracebacks
from launcher.logs.select import Selector
from launcher.runs.live import Watch
from launcher.runs.rank_logs import RankLog, RankLogs
from launcher.runs.recorded import read_recorded

TICK_S = 0.05
LOOK_S = 0.5  # between two looks whether the run goes on


def show(runs_dir: Path, run: str | None, options: LogOptions) -> int:
    """Write what was asked for to stdout; the exit code. With --follow this blocks until the run ends.

    Raises:
        UsageError: the options mean nothing for this run.
        UnreadableError: there is no such run, or no record of it.
    """
    options.check()
    run_dir = chosen_live(runs_dir, run)
    watch = Watch(run_dir)
    state, recorded = watch.look(), read_recorded(run_dir)
    global_ranks = options.chosen_ranks(recorded.places, state)
    near_ns = state.started_ns or time.time_ns()
    writer = Writer(options, recorded.places, global_ranks)
    logs = RankLogs(run_dir, global_ranks, near_ns, environment=options.environment)
    with closing(logs):
        logs.note_attempts()
        if options.lines is not None:
            for log in logs.of_rank.values():
                log.skip_to_last(options.lines)
        try:
            return _show(logs, writer, watch, options)
        except BrokenPipeError:  # whoever read (`| head`) has seen enough
            return EXIT_OK


def _show(logs: RankLogs, writer: Writer, watch: Watch, options: LogOptions) -> int:
    if options.errors:
        writer.write_errors(first_tracebacks({rank: log.whole() for rank, log in logs.of_rank.items()}))
        return EXIT_OK
    if options.plain and not options.follow:
        for global_rank, log in logs.of_rank.items():
            writer.write_blocks(global_rank, log.blocks())
        return EXIT_OK
    selector, exit_code = options.selector(), EXIT_OK
    if options.follow:
        exit_code = _follow(logs, writer, watch, selector, options)
    else:
        writer.write(_all_that_is(logs, selector, options))
    _say_what_is_missing(selector)
    return exit_code if options.exit_code else EXIT_OK


def _say_what_is_missing(selector: Selector) -> None:
    """Lines that --since or --until left out because nobody knows their time."""
    if selector.without_time:
        ranks = f"rank{'s' if len(selector.without_time) > 1 else ''} {ranges(selector.without_time)}"
        with suppress(OSError):  # nobody reads stderr
            print(f"some lines of {ranks} tell no time and follow none that does: left out", file=sys.stderr)


# --- once ---


def _all_that_is(logs: RankLogs, selector: Selector, options: LogOptions) -> Iterator[Line | Shown | None]:
    of_rank = {rank: log.whole() for rank, log in logs.of_rank.items()}
    if options.merged or options.collapsed:
        selected = _selected(merge(of_rank), selector)
    else:
        selected = (line for lines in of_rank.values() for line in _selected(lines, selector))
    if not options.collapsed:
        return selected
    collapser = Collapser(of_rank)
    return _collapsed(selected, collapser)


def _selected(lines: Iterable[Line], selector: Selector) -> Iterator[Line | None]:
    for line in lines:
        yield from selector.put(line)


def _collapsed(lines: Iterable[Line | None], collapser: Collapser) -> Iterator[Shown]:
    for number, line in enumerate(lines):
        if line is not None:
            collapser.put(line)
        if number % 256 == 0:
            yield from collapser.take(0)
    yield from collapser.flush()


# --- follow ---


class Stage(Protocol):
    """What lines of several ranks wait in until they can be shown."""

    def put(self, line: Line) -> None: ...

    def end(self, global_rank: int) -> None: ...

    def take(self, now_ns: int) -> list[Line] | list[Shown]: ...

    def flush(self) -> list[Line] | list[Shown]: ...


class _AsTheyCome:
    """No stage at all."""

    def __init__(self) -> None:
        self._lines: list[Line] = []

    def put(self, line: Line) -> None:
        self._lines.append(line)

    def end(self, global_rank: int) -> None:
        pass

    def take(self, now_ns: int) -> list[Line]:  # noqa: ARG002 - as the others
        taken, self._lines = self._lines, []
        return taken

    def flush(self) -> list[Line]:
        return self.take(0)


def _follow(logs: RankLogs, writer: Writer, watch: Watch, selector: Selector, options: LogOptions) -> int:
    """Until the run is over and everything that it wrote has been shown; the run's exit code."""
    stage: Stage = _AsTheyCome()
    if options.merged:
        stage = Merger(logs.of_rank)
    elif options.collapsed:
        stage = Collapser(logs.of_rank)
    looked_s, state = time.monotonic(), watch.look()
    while True:
        over = state.state.over
        came = _take_new(logs.of_rank.values(), selector, stage)
        writer.write(stage.take(time.monotonic_ns()))
        if over and not came:
            break
        if not came:
            time.sleep(TICK_S)
        if time.monotonic() - looked_s >= LOOK_S:
            looked_s, state = time.monotonic(), watch.look()
            logs.note_attempts()
            for global_rank in state.progress.exits:
                stage.end(global_rank)
    for log in logs.of_rank.values():
        _put(log.rest(), selector, stage)
    writer.write(stage.flush())
    return state.exit_code or EXIT_OK


def _take_new(logs: Collection[RankLog], selector: Selector, stage: Stage) -> bool:
    came = False
    for log in logs:
        lines = log.new_lines()
        came = came or bool(lines)
        _put(lines, selector, stage)
    return came


def _put(lines: Iterable[Line], selector: Selector, stage: Stage) -> None:
    for line in lines:
        for selected in selector.put(line):
            if selected is not None:
                stage.put(selected)
