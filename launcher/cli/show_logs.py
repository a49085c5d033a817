"""From logs to lines: select, merge or collapse; until the logs end, or the run does."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, suppress
from itertools import chain
from pathlib import Path

from launcher.cli.chosen_run import chosen_live
from launcher.cli.columns import counted
from launcher.cli.log_feeds import Feed, PlainFeed, truncated
from launcher.cli.log_format import Format
from launcher.cli.log_options import LogOptions
from launcher.cli.log_selection import Selection
from launcher.cli.log_writer import Writer
from launcher.cli.outlet import as_people_call_it
from launcher.cli.run_words import describe, shown_name
from launcher.cli.staged_feed import StagedFeed
from launcher.cli.unfinished import Unfinished
from launcher.core.errors import EXIT_FAILURE, EXIT_OK, EXIT_USAGE, UnreadableError, UsageError
from launcher.core.system import make_room
from launcher.core.text import ranges
from launcher.logs.collapse import Shown, collapse
from launcher.logs.growing import Truncation
from launcher.logs.lines import Line
from launcher.logs.merge import merge
from launcher.logs.raised import first_tracebacks
from launcher.logs.select import Selector
from launcher.runs.progress import State
from launcher.runs.rank_logs import RankLogs
from launcher.runs.recorded import read_recorded
from launcher.runs.status import RunState, RunStatusReader

LOOK_S = 0.5  # between two looks whether the run goes on, and at most so long for the rest of one whose files are gone


def show(runs_dir: Path, run: str | None, options: LogOptions) -> int:
    """Write what was asked for to stdout; the exit code. With --follow this blocks until the run ends.

    Raises:
        UsageError: the options mean nothing for this run.
        UnreadableError: there is no such run, no record of it, or no longer one; or stdout takes nothing.
    """
    options.check()
    run_dir = chosen_live(runs_dir, run)
    watch = RunStatusReader(run_dir)
    state, recorded = watch.look(), read_recorded(run_dir)
    global_ranks = options.chosen_ranks(recorded.places, state)
    near_ns = state.started_ns or time.time_ns()
    shape = Format(options.look, sys.stdout, recorded.places, global_ranks)
    notices: list[str] = []  # what is to be said of the logs as soon as nothing else is on the screen

    def note_truncation(global_rank: int, truncation: Truncation) -> None:
        notices.append(truncated(as_people_call_it(run_dir.train_log(global_rank)), truncation))

    logs = RankLogs(run_dir, global_ranks, near_ns, environment=options.environment, on_truncation=note_truncation)
    if not make_room(len(global_ranks)):
        raise UsageError(
            f"{len(global_ranks)} logs are more files than one process may open here",
            hint="raise the limit (ulimit -Hn), or choose --rank",
        )
    with closing(logs):
        unreadable = _say_what_is_unreadable(logs)
        if not logs.of_rank:
            return EXIT_USAGE
        logs.note_attempts()
        if options.lines is not None and not options.selects:
            for log in logs.of_rank.values():
                log.skip_to_last(options.lines, with_times=not (options.plain or options.collapsed))
        exit_code = None
        with suppress(BrokenPipeError):  # whoever read (`| head`) has seen enough
            if options.follow:
                exit_code = _show_live(logs, shape, watch, options, notices)
            else:
                _show_all(logs, Writer(shape), shape, options)
            unreadable |= _say_what_is_unreadable(logs, unreadable)
            _say_all(notices)
    if exit_code is not None and options.exit_code:
        return exit_code
    return EXIT_USAGE if unreadable else EXIT_OK


def _show_all(logs: RankLogs, writer: Writer, shape: Format, options: LogOptions) -> None:
    for log in logs.of_rank.values():
        log.before_read = writer.flush_late
    if options.errors:
        writer.write_errors(first_tracebacks({rank: log.whole() for rank, log in logs.of_rank.items()}))
    elif options.plain:
        for global_rank, log in logs.of_rank.items():
            writer.write_blocks(global_rank, log.blocks())
    else:
        selector = options.selector()
        writer.write(_all_that_is(logs, shape, selector, options))
        _say_what_is_missing(selector)
        if options.merged and (undated := selector.undated - selector.dated) and len(logs.of_rank) > 1:
            _say(f"{_of(undated)} tell no time: they are shown in turn, not in the order in which they were written")


def _show_live(logs: RankLogs, shape: Format, watch: RunStatusReader, options: LogOptions, notices: list[str]) -> int:
    selector = options.selector()
    if options.plain:
        feed: Feed = PlainFeed(logs.follower(), shape)
    else:
        feed = staged = StagedFeed(logs, shape, selector, merged=options.merged, collapsed=options.collapsed)
        if options.lines is not None and options.selects:
            staged.begin_with_last(options.lines)
    unfinished = Unfinished(shape, sys.stdout, hidden=options.selects)
    with closing(feed), closing(unfinished):
        state = _follow(feed, Writer(shape), watch, unfinished, notices)
    _say_what_is_missing(selector)
    if state.state is State.LOST:
        _say(f"{shown_name(state)}: {describe(state)}")
    return EXIT_FAILURE if state.exit_code is None else state.exit_code


def _say_what_is_unreadable(logs: RankLogs, told: Collection[int] = ()) -> set[int]:
    """Of those that have not been `told`; their global ranks."""
    untold = {rank: found for rank, found in logs.unreadable.items() if rank not in told}
    for global_rank, (path, reason) in untold.items():
        _say(f"rank {global_rank}: {as_people_call_it(path)} cannot be read: {reason}")
    return set(untold)


def _say_what_is_missing(selector: Selector) -> None:
    """Lines that --since or --until left out because nobody knows their time, and those not searched to their end."""
    if never := selector.without_time - selector.dated:
        _say(f"{_of(never)} tell no time: left out")
    if some := selector.without_time & selector.dated:
        _say(f"some {_of(some)} tell no time and follow none that does: left out")
    if selector.searches and not selector.matched:
        _say("no line matches")
    if selector.cut_short:
        lines = counted(selector.cut_short, "long line")
        _say(f"of {lines} only the beginning was searched, as the search took too long")


def _of(global_ranks: Collection[int]) -> str:
    return f"lines of rank{'s' if len(global_ranks) > 1 else ''} {ranges(global_ranks)}"


def _say_all(notices: list[str]) -> None:
    """Print the notices, and forget them."""
    for notice in notices:
        _say(notice)
    notices.clear()


def _say(words: str) -> None:
    with suppress(OSError):  # nobody reads stderr
        print(words, file=sys.stderr, flush=True)


# --- once ---


def _all_that_is(
    logs: RankLogs, shape: Format, selector: Selector, options: LogOptions
) -> Iterator[Line | Shown | None]:
    selection = Selection(selector, shape)
    of_rank = {rank: log.whole() for rank, log in logs.of_rank.items()}
    arrange = merge if options.merged or options.collapsed else _one_after_the_other
    if options.lines is not None and options.selects:
        lines = arrange({rank: _last(selection, whole, options.lines) for rank, whole in of_rank.items()})
    else:
        lines = selection.of(arrange(of_rank))
    if options.collapsed:
        return collapse(lines, of_rank)
    return selection.with_gaps(lines) if options.surroundings else lines


def _one_after_the_other(of_rank: Mapping[int, Iterator[Line]]) -> Iterator[Line]:
    return chain.from_iterable(of_rank.values())


def _last(selection: Selection, lines: Iterator[Line], count: int) -> Iterator[Line]:
    """Read when it is asked for."""
    yield from selection.last(lines, count)


# --- follow ---

_FOLLOWED_UNTIL = {
    State.ELSEWHERE: "it says that it has ended",
    State.UNWATCHED: "all its ranks are seen to have ended",
}


def _follow(feed: Feed, writer: Writer, watch: RunStatusReader, unfinished: Unfinished, notices: list[str]) -> RunState:
    """Show all that the run writes until it is over; return how it stands then.

    Raises:
        BrokenPipeError: nobody reads stdout any more, whether there is something to write or not.
        UnreadableError: the run's directory has been removed, or stdout takes nothing.
    """
    looked_s, state = 0.0, watch.look()
    if state.state in _FOLLOWED_UNTIL:
        _say(f"{shown_name(state)}: {describe(state)}; followed until {_FOLLOWED_UNTIL[state.state]}")
    noted: set[tuple[int, int]] = set()  # attempts and ranks that ended in them
    while True:
        if time.monotonic() - looked_s >= LOOK_S:
            writer.check_reader()
            looked_s, state = time.monotonic(), watch.look()
            _note_ends(feed, state, noted)
            if _is_gone(watch.run_dir.root):
                unfinished.close()
                _show_rest(feed, writer)
                raise UnreadableError(
                    f"{shown_name(state)}: the run's directory has been removed while it was followed"
                )
        over = _is_over(state)
        text = feed.next_text(ended=over)
        if notices:
            writer.put(unfinished.erase().encode())
            _say_all(notices)
        if text:
            writer.put(unfinished.erase().encode() + text)
        elif text is None and over:
            return state
        elif text is None:
            if unfinished.wanted:
                ended = state.progress.exits
                unfinished.show({rank: line for rank, line in feed.begun().items() if rank not in ended})
            feed.wait(LOOK_S)


def _note_ends(feed: Feed, state: RunState, noted: set[tuple[int, int]]) -> None:
    ends = {(state.progress.attempt, global_rank) for global_rank in state.progress.exits}
    for _, global_rank in ends - noted:
        feed.rank_ended(global_rank)
    noted |= ends


def _is_over(state: RunState) -> bool:
    """Of a run of another version at least its report tells."""
    return state.state.over or (state.state is State.UNKNOWN and state.run_dir.report.is_file())


def _is_gone(directory: Path) -> bool:
    """Whether there certainly is no such directory."""
    try:
        directory.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _show_rest(feed: Feed, writer: Writer) -> None:
    """What was written before the files were removed; ranks may go on writing where nobody will find it."""
    until_s = time.monotonic() + LOOK_S
    while time.monotonic() < until_s and (text := feed.next_text(ended=True)) is not None:
        writer.put(text)
