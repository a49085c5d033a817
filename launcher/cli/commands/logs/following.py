"""Show new lines of a run's logs until the run ends."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from pathlib import Path

from launcher.cli.commands.logs.chosen import ChosenLogs
from launcher.cli.text.arranged_lines import ArrangedFeed
from launcher.cli.text.log_stream import Feed, PlainFeed, Writer
from launcher.cli.text.run_status_line import PartialLines
from launcher.cli.text.run_text import describe_run, shown_name
from launcher.cli.text.stdout import say
from launcher.core.errors import EXIT_FAILURE, UnreadableError
from launcher.runs.progress import State
from launcher.runs.status import RunState

LOOK_S = 0.5  # between two checks of the run's state; also the time to read on after the files are removed


def show_live(chosen: ChosenLogs) -> int:
    """Write the chosen logs to stdout, with new lines until the run ends; return the run's exit code.

    Raises:
        BrokenPipeError: stdout has no reader.
        UnreadableError: the run's directory was removed, or stdout cannot be written.
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


_FOLLOWED_UNTIL = {
    State.ELSEWHERE: "its files show that it has ended",
    State.UNWATCHED: "all its ranks have ended",
}


def _follow(chosen: ChosenLogs, feed: Feed, writer: Writer, unfinished: PartialLines) -> RunState:
    """Show the run's output until the run is over; return its final state.

    Raises:
        BrokenPipeError: stdout has no reader, even if there is nothing to write.
        UnreadableError: the run's directory was removed, or stdout cannot be written.
    """
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
                raise UnreadableError(f"{shown_name(state)}: the run's directory was removed while it was followed")
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
    """Show the rest of removed files. Ranks may write to them forever, so this stops after LOOK_S."""
    until_s = time.monotonic() + LOOK_S
    while time.monotonic() < until_s and (text := feed.next_text(ended=True)) is not None:
        writer.put(text)


def _note_ends(feed: Feed, state: RunState, noted: set[tuple[int, int]]) -> None:
    ends = {(state.progress.current.number, global_rank) for global_rank in state.progress.current.exits}
    for _, global_rank in ends - noted:
        feed.rank_ended(global_rank)
    noted |= ends


def _is_missing(directory: Path) -> bool:
    """Return whether the directory certainly does not exist."""
    try:
        directory.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False
