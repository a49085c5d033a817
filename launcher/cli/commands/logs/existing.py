"""Show what the logs of a run hold now."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from launcher.cli.commands.logs.chosen import ChosenLogs, lines_of
from launcher.cli.text.arranged_lines import Selection
from launcher.cli.text.log_stream import Writer
from launcher.cli.text.stdout import say
from launcher.logs.collapse import Shown, collapse
from launcher.logs.lines import Line
from launcher.logs.merge import merge
from launcher.logs.tracebacks import MARKS, first_tracebacks


def show_all(chosen: ChosenLogs) -> None:
    """Write what the chosen logs hold to stdout.

    Raises:
        BrokenPipeError: stdout has no reader any more.
    """
    logs, options, selector = chosen.logs, chosen.options, chosen.selector
    writer = Writer(chosen.shape)
    for log in logs.of_rank.values():
        log.before_read = writer.flush_late
    if options.errors:
        writer.write_errors(first_tracebacks({rank: log.whole_from(MARKS) for rank, log in logs.of_rank.items()}))
    elif options.plain:
        for global_rank, log in logs.of_rank.items():
            writer.write_blocks(global_rank, log.blocks())
    else:
        writer.write(_all_that_is(chosen))
        chosen.say_what_is_missing()
        if options.merged and (undated := selector.undated - selector.dated) and len(logs.of_rank) > 1:
            say(
                f"{lines_of(undated)} hold no time: they are shown rank by rank, not in the order in which they were written"
            )


def _all_that_is(chosen: ChosenLogs) -> Iterator[Line | Shown]:
    logs, options = chosen.logs, chosen.options
    selection = Selection(chosen.selector, chosen.shape)
    of_rank = {rank: log.whole() for rank, log in logs.of_rank.items()}
    arrange = merge if options.merged or options.collapsed else lambda of_rank: chain.from_iterable(of_rank.values())
    if options.lines is not None and options.selects:
        lines = arrange({rank: _last(selection, whole, options.lines) for rank, whole in of_rank.items()})
    else:
        lines = selection.of(arrange(of_rank))
    if options.collapsed:
        return collapse(lines, of_rank)
    return lines


def _last(selection: Selection, lines: Iterator[Line], count: int) -> Iterator[Line]:
    """Yield the last `count` lines of a log that are to be shown; the log is read when the first is asked for."""
    yield from selection.last(lines, count)
