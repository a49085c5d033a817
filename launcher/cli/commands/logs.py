"""`tlaunch logs`: what the ranks of a run have written, and what they write meanwhile."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import click

from launcher.cli.options.chosen_run import LIVE_RUN_HELP, chosen_live, run_argument
from launcher.cli.options.logs import LogOptions
from launcher.cli.options.types import IntRange
from launcher.cli.text.arranged_lines import ArrangedFeed, Selection
from launcher.cli.text.columns import counted
from launcher.cli.text.foot import PartialLines
from launcher.cli.text.log_format import Format
from launcher.cli.text.log_stream import Feed, PlainFeed, Writer, truncated
from launcher.cli.text.run_text import describe, shown_name
from launcher.cli.text.stdout import as_people_call_it, say
from launcher.core.errors import EXIT_FAILURE, EXIT_OK, EXIT_USAGE, UnreadableError, UsageError
from launcher.core.proc import make_room
from launcher.core.text import ranges
from launcher.logs.collapse import Shown, collapse
from launcher.logs.lines import Line
from launcher.logs.log_file import Truncation
from launcher.logs.merge import merge
from launcher.logs.select import Selector
from launcher.logs.tracebacks import first_tracebacks
from launcher.runs.attempt_places import AttemptPlaces
from launcher.runs.progress import State
from launcher.runs.rank_logs import RankLogs
from launcher.runs.record import read_recorded
from launcher.runs.status import RunState, RunStatusReader

EPILOG = """\b
Examples:
  tlaunch logs -f
  tlaunch logs --rank 0,3-5 -n 20
  tlaunch logs --rank first-failed
  tlaunch logs -f --collapse
  tlaunch logs --merge --since 10m --grep 'loss|error' -C 2
  tlaunch logs -f -i --grep warning -v heartbeat
  tlaunch logs -f --collapse -H 'loss [0-9.]+'
  tlaunch logs --errors
  tlaunch logs --prefix '{server}/{device} {time} '

--collapse merges lines that differ only in the rank or in numbers: `[0-7] loss is
9.87..9.91`. A line of a single rank, or one that comes a minute later, is shown
by itself: `[3] retrying`.

A line's time is the time written in it, or that of the line before, if it came
with that; else when it came, to within a second. Of a run without an agent
(run.sh, `tlaunch exec`) and of old ones that is not known: --since and --until
drop lines before the first time. A line without a level counts as INFO.
Lines of more than 64 KiB are searched, counted and printed as JSON in pieces.
Control characters of a log are escaped. PREFIX may hold {global_rank},
{local_rank}, {server}, {device} and {time}.

An elastic run numbers its ranks anew in each attempt. --rank chooses by these
numbers; --server, {local_rank}, {server} and {device} tell where a rank was in
the attempt that wrote the line.

Exit codes: 0; 1 no line matches --grep; with --exit-code that of the run; 2 wrong
usage, no such run, a log that cannot be read (the others are shown), or stdout
cannot be written; 130 Ctrl-C.
"""


@click.command(
    epilog=EPILOG, help=f"Show the logs of all ranks: one after another, merged or collapsed.\n\n{LIVE_RUN_HELP}"
)
@click.option("-f", "--follow", is_flag=True, help="Show new lines until the run ends.")
@click.option(
    "-n", "--lines", "--tail", type=IntRange(0), metavar="N", help="Show the last N selected lines of each rank."
)
@click.option("--rank", "rank_expression", metavar="RANKS", default="all",
              help="Show these ranks: 0,3-5, all or first-failed.  [default: all]")  # fmt: skip
@click.option("--server", metavar="SERVER", help="Show the ranks of one server, given by ID or by number from 0.")
@click.option("--since", metavar="TIME", help="Show lines from this time on: 2026-11-21T12:00, 12:00, or 10m (ago).")
@click.option("--until", metavar="TIME", help="Show lines up to this time; 21:30 is a time of today.")
@click.option("--grep", multiple=True, metavar="REGEX", help="Show lines that match; of several, any. Repeatable.")
@click.option("-v", "--exclude", multiple=True, metavar="REGEX", help="Leave out lines that match. Repeatable.")
@click.option(
    "-H", "--highlight", multiple=True, metavar="REGEX", help="Mark what matches, and leave out no line. Repeatable."
)
@click.option("-i", "--ignore-case", is_flag=True, help="Let letters match those of the other case.")
@click.option("-A", "after", type=IntRange(0), default=0, metavar="N", help="Show N lines after each match.")
@click.option("-B", "before", type=IntRange(0), default=0, metavar="N", help="Show N lines before each match.")
@click.option(
    "-C", "around", type=IntRange(0), default=0, metavar="N", help="Show N lines before and after each match."
)
@click.option("--level", metavar="LEVEL", help="Show lines of this level or above: DEBUG, INFO, WARNING, ERROR.")
@click.option("--errors", is_flag=True, help="Show the first traceback of each rank, identical ones once.")
@click.option("--merge", "merged", is_flag=True, help="Sort the lines of all ranks by time.")
@click.option("--collapse", "collapsed", is_flag=True, help="Show lines that ranks have in common once.")
@click.option("--prefix", metavar="PREFIX", help="Text before each line.  [default: [rank] if there are several ranks]")
@click.option("--timestamps", is_flag=True, help="Show each line's time before it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.option("--env", "environment", is_flag=True, help="Show the ranks' variables (env.log) instead.")
@click.option(
    "--color/--no-color",
    default=None,
    help="Show lines, ranks and matches in colour.  [default: on a terminal, unless NO_COLOR is set]",
)
@click.option("--exit-code", is_flag=True, help="With --follow, exit with the run's exit code.")
@run_argument
@click.pass_context
def logs(context: click.Context, /, *, run: str | None, runs_dir: Path, **options: Any) -> None:
    context.exit(show(runs_dir, run, LogOptions(**options)))


LOOK_S = 0.5  # between two looks at the run's state, and at most for the rest of a run whose files are gone


def show(runs_dir: Path, run: str | None, options: LogOptions) -> int:
    """Write the chosen lines to stdout, and return the exit code. With --follow this blocks until the run ends.

    Raises:
        UsageError: the options mean nothing for this run.
        UnreadableError: there is no such run, or no record of it; or stdout takes nothing.
    """
    options.check()
    run_dir = chosen_live(runs_dir, run)
    watch = RunStatusReader(run_dir)
    state, recorded = watch.look(), read_recorded(run_dir)
    places = AttemptPlaces(recorded)
    options = replace(options, by_attempt=places.change)
    global_ranks = options.chosen_ranks(recorded, state)
    near_ns = state.started_ns or time.time_ns()
    places_of = places.of if options.by_attempt else None
    shape = Format(options.look(), sys.stdout, recorded.places, global_ranks, places_of=places_of)
    notices: list[str] = []  # to be printed as soon as nothing else is on the screen

    def note_truncation(global_rank: int, truncation: Truncation) -> None:
        notices.append(truncated(as_people_call_it(run_dir.train_log(global_rank)), truncation))

    def is_there(line: Line) -> bool:
        place = places.of_line(line)
        return place is not None and options.is_chosen(place)

    logs = RankLogs(
        run_dir, global_ranks, near_ns, environment=options.environment, on_truncation=note_truncation,
        places=places, wanted=is_there if options.by_attempt and options.server is not None else None, timed=options.timed,
    )  # fmt: skip
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
        exit_code, selector = None, options.selector()
        with suppress(BrokenPipeError):  # the reader (`| head`) has seen enough
            if options.follow:
                exit_code = _show_live(logs, shape, watch, options, selector=selector, notices=notices)
            else:
                _show_all(logs, Writer(shape), shape, selector, options)
            unreadable |= _say_what_is_unreadable(logs, unreadable)
            _say_all(notices)
    if exit_code is not None and options.exit_code:
        return exit_code
    if unreadable:
        return EXIT_USAGE
    return EXIT_FAILURE if selector.searches and not selector.matched else EXIT_OK


def _show_all(logs: RankLogs, writer: Writer, shape: Format, selector: Selector, options: LogOptions) -> None:
    for log in logs.of_rank.values():
        log.before_read = writer.flush_late
    if options.errors:
        writer.write_errors(first_tracebacks({rank: log.whole() for rank, log in logs.of_rank.items()}))
    elif options.plain:
        for global_rank, log in logs.of_rank.items():
            writer.write_blocks(global_rank, log.blocks())
    else:
        writer.write(_all_that_is(logs, shape, selector, options))
        _say_what_is_missing(selector)
        if options.merged and (undated := selector.undated - selector.dated) and len(logs.of_rank) > 1:
            say(
                f"{_of(undated)} hold no time: they are shown rank by rank, not in the order in which they were written"
            )


def _show_live(
    logs: RankLogs,
    shape: Format,
    watch: RunStatusReader,
    options: LogOptions,
    *,
    selector: Selector,
    notices: list[str],
) -> int:
    if options.plain:
        feed: Feed = PlainFeed(logs.follower(), shape)
    else:
        feed = staged = ArrangedFeed(logs, shape, selector, merged=options.merged, collapsed=options.collapsed)
        if options.lines is not None and options.selects:
            staged.begin_with_last(options.lines)
    unfinished = PartialLines(shape, sys.stdout, hidden=options.selects)
    with closing(feed), closing(unfinished):
        state = _follow(feed, Writer(shape), watch, unfinished, notices)
    _say_what_is_missing(selector)
    if state.state is State.LOST:
        say(f"{shown_name(state)}: {describe(state)}")
    return EXIT_FAILURE if state.exit_code is None else state.exit_code


def _say_what_is_unreadable(logs: RankLogs, known: Collection[int] = ()) -> set[int]:
    """Report logs that cannot be read, but for those in `known`; return their global ranks."""
    new = {rank: found for rank, found in logs.unreadable.items() if rank not in known}
    for global_rank, (path, reason) in new.items():
        say(f"rank {global_rank}: {as_people_call_it(path)} cannot be read: {reason}")
    return set(new)


def _say_what_is_missing(selector: Selector) -> None:
    """Report lines that --since or --until left out since their time is unknown, and lines not searched to their end."""
    if never := selector.without_time - selector.dated:
        say(f"{_of(never)} hold no time: left out")
    if some := selector.without_time & selector.dated:
        say(f"some {_of(some)} hold no time, and no line before them does: left out")
    if selector.searches and not selector.matched:
        say("no line matches")
    if selector.cut_short:
        lines = counted(selector.cut_short, "long line")
        say(f"the search took too long: {lines} searched in part only")


def _of(global_ranks: Collection[int]) -> str:
    return f"lines of rank{'s' if len(global_ranks) > 1 else ''} {ranges(global_ranks)}"


def _say_all(notices: list[str]) -> None:
    """Print the notices, and forget them."""
    for notice in notices:
        say(notice)
    notices.clear()


def _all_that_is(
    logs: RankLogs, shape: Format, selector: Selector, options: LogOptions
) -> Iterator[Line | Shown | None]:
    selection = Selection(selector, shape)
    of_rank = {rank: log.whole() for rank, log in logs.of_rank.items()}
    arrange = merge if options.merged or options.collapsed else lambda of_rank: chain.from_iterable(of_rank.values())
    if options.lines is not None and options.selects:
        lines = arrange({rank: _last(selection, whole, options.lines) for rank, whole in of_rank.items()})
    else:
        lines = selection.of(arrange(of_rank))
    if options.collapsed:
        return collapse(lines, of_rank)
    return selection.with_gaps(lines) if options.surroundings else lines


def _last(selection: Selection, lines: Iterator[Line], count: int) -> Iterator[Line]:
    """Read when it is asked for."""
    yield from selection.last(lines, count)


_FOLLOWED_UNTIL = {
    State.ELSEWHERE: "it says that it has ended",
    State.UNWATCHED: "all its ranks are seen to have ended",
}


def _follow(
    feed: Feed, writer: Writer, watch: RunStatusReader, unfinished: PartialLines, notices: list[str]
) -> RunState:
    """Show all that the run writes until it is over; return how it stands then.

    Raises:
        BrokenPipeError: stdout has no reader any more, whether there is something to write or not.
        UnreadableError: the run's directory has been removed, or stdout takes nothing.
    """
    looked_s, state = 0.0, watch.look()
    if state.state in _FOLLOWED_UNTIL:
        say(f"{shown_name(state)}: {describe(state)}; followed until {_FOLLOWED_UNTIL[state.state]}")
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
        # Of a run of another version at least its report shows that it is over.
        over = state.state.over or (state.state is State.UNKNOWN and state.run_dir.report.is_file())
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
                ended = state.progress.current.exits
                unfinished.show({rank: line for rank, line in feed.begun().items() if rank not in ended})
            feed.wait(LOOK_S)


def _show_rest(feed: Feed, writer: Writer) -> None:
    """Show what was written before the files were removed; ranks may still write where no reader finds it."""
    until_s = time.monotonic() + LOOK_S
    while time.monotonic() < until_s and (text := feed.next_text(ended=True)) is not None:
        writer.put(text)


def _note_ends(feed: Feed, state: RunState, noted: set[tuple[int, int]]) -> None:
    ends = {(state.progress.current.number, global_rank) for global_rank in state.progress.current.exits}
    for _, global_rank in ends - noted:
        feed.rank_ended(global_rank)
    noted |= ends


def _is_gone(directory: Path) -> bool:
    """Return whether there certainly is no such directory."""
    try:
        directory.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False
