"""From logs to lines: select, merge or collapse; until the logs end, or the run does."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path

from launcher.cli.chosen_run import chosen_live
from launcher.cli.log_feeds import Feed, PlainFeed
from launcher.cli.log_format import Format
from launcher.cli.log_options import LogOptions
from launcher.cli.log_writer import Writer
from launcher.cli.staged_feed import StagedFeed
from launcher.core.descriptors import make_room
from launcher.core.errors import EXIT_OK, UsageError
from launcher.core.ranges import ranges
from launcher.logs.collapse import Collapser, Shown
from launcher.logs.lines import Line
from launcher.logs.merge import merge
from launcher.logs.raised import first_tracebacks
from launcher.logs.select import Selector
from launcher.runs.live import Watch
from launcher.runs.rank_logs import RankLogs
from launcher.runs.recorded import read_recorded

FILES_OF_LOG = 3  # itself, its index, and a part of it
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
    shape = Format(options.look, sys.stdout, recorded.places, global_ranks)
    logs = RankLogs(run_dir, global_ranks, near_ns, environment=options.environment)
    if not make_room(FILES_OF_LOG * len(global_ranks)):
        raise UsageError(
            f"{len(global_ranks)} logs are more files than one process may open here",
            hint="raise the limit (ulimit -Hn), or choose --rank",
        )
    with closing(logs):
        logs.note_attempts()
        if options.lines is not None:
            for log in logs.of_rank.values():
                log.skip_to_last(options.lines)
        try:
            if options.follow:
                exit_code = _show_live(logs, Writer(shape), shape, watch, options)
                return exit_code if options.exit_code else EXIT_OK
            _show_all(logs, Writer(shape), options)
        except BrokenPipeError:  # whoever read (`| head`) has seen enough
            pass
    return EXIT_OK


def _show_all(logs: RankLogs, writer: Writer, options: LogOptions) -> None:
    if options.errors:
        writer.write_errors(first_tracebacks({rank: log.whole() for rank, log in logs.of_rank.items()}))
    elif options.plain:
        for global_rank, log in logs.of_rank.items():
            writer.write_blocks(global_rank, log.blocks())
    else:
        selector = options.selector()
        writer.write(_all_that_is(logs, selector, options))
        _say_what_is_missing(selector)


def _show_live(logs: RankLogs, writer: Writer, shape: Format, watch: Watch, options: LogOptions) -> int:
    selector = options.selector()
    feed: Feed = PlainFeed(logs.follower(), shape)
    if not options.plain:
        feed = StagedFeed(logs, shape, selector, merged=options.merged, collapsed=options.collapsed)
    exit_code = _follow(feed, writer, watch, logs.note_attempts)
    _say_what_is_missing(selector)
    return exit_code


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


def _follow(feed: Feed, writer: Writer, watch: Watch, note_attempts: Callable[[], None]) -> int:
    """Until the run is over and everything that it wrote has been shown; the run's exit code."""
    looked_s, state = 0.0, watch.look()
    told: set[tuple[int, int]] = set()  # attempts and ranks that ended in them
    while True:
        if time.monotonic() - looked_s >= LOOK_S:
            looked_s, state = time.monotonic(), watch.look()
            note_attempts()
            ends = {(state.progress.attempt, global_rank) for global_rank in state.progress.exits}
            for _, global_rank in ends - told:
                feed.rank_ended(global_rank)
            told |= ends
        text = feed.next_text(ended=state.state.over)
        if text is not None:
            writer.put(text)
        elif state.state.over:
            return state.exit_code or EXIT_OK
        else:
            feed.wait(LOOK_S)
