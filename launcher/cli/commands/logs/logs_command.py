"""`tlaunch logs`: show the output of a run's ranks, even while the run is active."""

from __future__ import annotations

import sys
import time
from contextlib import closing, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import click

from launcher.cli.commands.logs.chosen import ChosenLogs, choose, lines_of
from launcher.cli.options.chosen_run import LIVE_RUN_HELP, run_argument
from launcher.cli.options.completion import one_of
from launcher.cli.options.logs import ALL, FAILED, LogOptions
from launcher.cli.options.types import IntRange
from launcher.cli.text.arranged_lines import ArrangedFeed, Selection
from launcher.cli.text.log_stream import Feed, PlainFeed, Writer
from launcher.cli.text.run_status_line import PartialLines
from launcher.cli.text.run_text import describe_run, shown_name
from launcher.cli.text.stdout import say
from launcher.core.errors import EXIT_FAILURE, EXIT_OK, EXIT_USAGE, UnreadableError
from launcher.logs.collapse import collapse
from launcher.logs.levels import LEVELS
from launcher.logs.log_merge import merge
from launcher.logs.tracebacks import MARKS, cause_first, first_tracebacks
from launcher.runs.progress import State
from launcher.runs.status import RunState

EPILOG = """\b
Examples:
  tlaunch logs -f
  tlaunch logs --rank 0,3-5 -n 20
  tlaunch logs --rank failed
  tlaunch logs -f --collapse
  tlaunch logs --merge --since 10m --grep 'loss|error'
  tlaunch logs -f -i --grep warning -v heartbeat
  tlaunch logs -f --collapse -H 'loss [0-9.]+'
  tlaunch logs --errors --attempt 0
  tlaunch logs -f --scheduler
  tlaunch logs --prefix '{server}/{device} {time} '

--collapse merges lines that differ only in the rank or in numbers: `[0-7] loss is
9.87..9.91`. A line of a single rank, or one that comes a minute later, is shown
separately: `[3] retrying`.

A line's time is the timestamp in it. A line without a timestamp gets the time of
the previous line if both were written together, or else the time when it was
written, to within a second. This time is unknown for runs without an agent
(run.sh, `tlaunch exec`) and for old runs. For them, --since and --until drop all
lines before the first timestamp. A line without a level counts as INFO. Lines of more than 64 KiB are searched,
counted and printed as JSON in pieces. Control characters of a log are escaped.
PREFIX may contain {global_rank}, {local_rank}, {server}, {device} and {time}.

An elastic run renumbers its ranks in each attempt. --rank selects by these
numbers. --server, {local_rank}, {server} and {device} refer to the attempt that
wrote the line.

Exit codes: 0; 1 no line matches --grep; with --exit-code the run's exit code;
2 wrong usage, no such run, an unreadable log (the others are shown), or stdout
cannot be written; 130 Ctrl-C.
"""


@click.command(
    epilog=EPILOG,
    help=f"Show the logs of all ranks, one after another. Use --merge or --collapse to combine them.\n\n{LIVE_RUN_HELP}",
)
@click.option("-f", "--follow", is_flag=True, help="Show new lines until the run ends.")
@click.option(
    "-n", "--lines", "--tail", type=IntRange(0), metavar="N", help="Show the last N selected lines of each rank."
)
@click.option("--rank", "rank_expression", metavar="RANKS", default=ALL, shell_complete=one_of(lambda: (ALL, FAILED)),
              help="Ranks to show, for example 0,3-5, all or failed (the rank that failed first).  [default: all]")  # fmt: skip
@click.option("--server", metavar="SERVER", help="Show the ranks of one server, selected by ID or by index (from 0).")
@click.option(
    "--attempt", type=IntRange(0), metavar="N",
    help="Show only the lines of attempt N. Attempt 0 is the first; attempt 1 follows the first restart.",
)  # fmt: skip
@click.option("--since", metavar="TIME", help="Show lines since TIME, for example 12:00, or 10m for 10 minutes ago.")
@click.option("--until", metavar="TIME", help="Show lines up to TIME, for example 2026-11-21T12:00 or 21:30 (today).")
@click.option("--grep", multiple=True, metavar="REGEX", help="Show lines that match at least one REGEX. Repeatable.")
@click.option("-v", "--exclude", multiple=True, metavar="REGEX", help="Drop lines that match. Repeatable.")
@click.option(
    "-H", "--highlight", multiple=True, metavar="REGEX", help="Highlight matches, and keep all other lines. Repeatable."
)
@click.option("-i", "--ignore-case", is_flag=True, help="Match letters regardless of case.")
@click.option(
    "--level",
    metavar="LEVEL",
    shell_complete=one_of(lambda: LEVELS),
    help="Show lines of this level or higher: DEBUG, INFO, WARNING, ERROR.",
)
@click.option(
    "--errors",
    is_flag=True,
    help="Show the traceback of the rank that failed first, and then each rank's first traceback. Identical tracebacks are shown once.",
)
@click.option("--merge", "merged", is_flag=True, help="Sort the lines of all ranks by time.")
@click.option("--collapse", "collapsed", is_flag=True, help="Show a line only once if several ranks wrote it.")
@click.option("--prefix", metavar="PREFIX", help="Prefix of each line.  [default: rank, if several ranks are shown]")
@click.option("--timestamps", is_flag=True, help="Start each line with its timestamp.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.option("--env", "environment", is_flag=True, help="Show the environment variables of ranks, not their logs.")
@click.option("--scheduler", is_flag=True, help="Show only the log of MindSpore's scheduler.")
@click.option(
    "--color/--no-color",
    default=None,
    help="Show lines, ranks and matches in colour.  [default: on a terminal, unless NO_COLOR is set]",
)
@click.option("--exit-code", is_flag=True, help="With --follow, exit with the run's exit code.")
@run_argument
def logs(*, run: str | None, runs_dir: Path, **settings: Any) -> int:
    options = LogOptions(**settings)
    chosen = choose(runs_dir, run, options)
    exit_code = None
    with closing(chosen.logs):
        unreadable = chosen.say_what_is_unreadable()
        if not chosen.logs.of_rank:
            return EXIT_USAGE
        chosen.skip_to_last_lines()
        with suppress(BrokenPipeError):  # the reader (`| head`) has seen enough
            if options.follow:
                exit_code = show_live(chosen)
            else:
                _show_all(chosen)
            unreadable |= chosen.say_what_is_unreadable(unreadable)
            chosen.say_notices()
    if exit_code is not None and options.exit_code:
        return exit_code
    if unreadable:
        return EXIT_USAGE
    selector = chosen.selector
    return EXIT_FAILURE if selector.searches and not selector.matched else EXIT_OK


def _show_all(chosen: ChosenLogs) -> None:
    """Write the selected logs to stdout. Raises BrokenPipeError if stdout's reader has exited."""
    logs, options, selector = chosen.logs, chosen.options, chosen.selector
    writer = Writer(chosen.shape)
    for log in logs.of_rank.values():
        log.before_read = writer.flush_late
    if options.errors:
        errors = first_tracebacks({rank: log.with_partial_from(MARKS) for rank, log in logs.of_rank.items()})
        writer.write_errors(cause_first(errors, chosen.cause()))
    elif options.plain:
        for global_rank, log in logs.of_rank.items():
            writer.write_blocks(global_rank, log.blocks())
    else:
        selection = Selection(selector, chosen.shape)
        of_rank = {rank: log.with_partial() for rank, log in logs.of_rank.items()}
        arrange = (
            merge if options.merged or options.collapsed else lambda of_rank: chain.from_iterable(of_rank.values())
        )
        if options.lines is not None and options.selects:
            lines = arrange({rank: selection.last(whole, options.lines) for rank, whole in of_rank.items()})
        else:
            lines = selection.of(arrange(of_rank))
        writer.write(collapse(lines, of_rank) if options.collapsed else lines)
        chosen.say_what_is_missing()
        if options.merged and (undated := selector.undated - selector.dated) and len(logs.of_rank) > 1:
            say(f"{lines_of(undated)} have no time: they are shown rank by rank, not in the order of writing")


LOOK_S = 0.5  # between two checks of the run's state; also the time to read on after the files are removed


def show_live(chosen: ChosenLogs) -> int:
    """Print the selected logs, follow them until the run ends, and return the run's exit code.

    Raises BrokenPipeError if stdout's reader has exited, UnreadableError if stdout is unwritable or the run was
    removed.
    """
    logs, options, shape = chosen.logs, chosen.options, chosen.shape
    if options.plain:
        feed: Feed = PlainFeed(logs.follower(), shape)
    else:
        feed = staged = ArrangedFeed(logs, shape, chosen.selector, merged=options.merged, collapsed=options.collapsed)
        if options.lines is not None and options.selects:
            staged.begin_with_last(options.lines)
    unfinished = PartialLines(shape, sys.stdout, hidden=options.selects)
    with closing(feed), closing(unfinished):
        state = _follow(chosen, feed, Writer(shape), unfinished)
    chosen.say_what_is_missing()
    if state.state is State.LOST:
        say(f"{shown_name(state)}: {describe_run(state)}")
    return EXIT_FAILURE if state.exit_code is None else state.exit_code


_FOLLOWED_UNTIL = {State.ELSEWHERE: "its files show that it has ended", State.UNWATCHED: "all its ranks have ended"}


def _follow(chosen: ChosenLogs, feed: Feed, writer: Writer, unfinished: PartialLines) -> RunState:
    """Print the run's output until the run ends, and return its final state."""
    watch = chosen.watch
    looked_s, state = 0.0, watch.look()
    if state.state in _FOLLOWED_UNTIL:
        say(f"{shown_name(state)}: {describe_run(state)}; followed until {_FOLLOWED_UNTIL[state.state]}")
    noted: set[tuple[int, int]] = set()  # (attempt, rank) pairs that have ended
    while True:
        if time.monotonic() - looked_s >= LOOK_S:
            writer.check_reader()
            looked_s, state = time.monotonic(), watch.look()
            _note_ends(feed, state, noted)
            if _is_missing(watch.run_dir.root):
                unfinished.close()
                _show_rest(feed, writer)
                raise UnreadableError(f"{shown_name(state)}: the run directory was removed while its logs were read")
        # For a run of another tlaunch version, only the report shows that it is over.
        over = state.state.over or (state.state is State.UNKNOWN and state.run_dir.report.is_file())
        text = feed.next_text(ended=over)
        if chosen.notices:
            writer.put(unfinished.erase().encode())
            chosen.say_notices()
        if text:
            writer.put(unfinished.erase().encode() + text)
        elif text is None and over:
            return state
        elif text is None:
            if unfinished.wanted:
                ended = state.progress.current.exits
                unfinished.show({rank: line for rank, line in feed.partial().items() if rank not in ended})
            feed.wait(LOOK_S)


def _show_rest(feed: Feed, writer: Writer) -> None:
    """Print the unread text of removed log files. Stop after LOOK_S seconds, because ranks may keep writing."""
    until_s = time.monotonic() + LOOK_S
    while time.monotonic() < until_s and (text := feed.next_text(ended=True)) is not None:
        writer.put(text)


def _note_ends(feed: Feed, state: RunState, noted: set[tuple[int, int]]) -> None:
    ends = {(state.progress.current.number, global_rank) for global_rank in state.progress.current.exits}
    for _, global_rank in ends - noted:
        feed.rank_ended(global_rank)
    noted |= ends


def _is_missing(directory: Path) -> bool:
    """Return True if the directory does not exist. If this cannot be determined, return False."""
    try:
        directory.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False
