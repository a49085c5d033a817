"""`tlaunch logs`: what the ranks of a run have written, and go on writing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from launcher.cli.options.chosen_run import LIVE_RUN_HELP, run_argument
from launcher.cli.options.types import Whole

EPILOG = """\b
Examples:
  tlaunch logs -f
  tlaunch logs --rank 0,3-5 -n 20
  tlaunch logs --rank first-failed
  tlaunch logs -f --collapse
  tlaunch logs --merge --since 10m --grep 'loss|error' -C 2
  tlaunch logs --errors
  tlaunch logs --prefix '{server}/{device} {time} '

Collapsed, what ranks say alike is one line: `[0-7] loss is 9.87..9.91`; what a
rank says alone, or a minute later, stands by itself: `[3] retrying`.

Times are those that lines carry; a line without one has that of the line
before, and lines before any time are left out by --since and --until. A line
without a level counts as INFO. Lines of more than 64 KiB are searched, counted
and given as JSON in pieces. Whatever a log holds, it cannot act on the
terminal. In PREFIX stand {global_rank}, {local_rank}, {server}, {device} and
{time}.

Exit codes: 0, also where no line matches; with --exit-code that of the run; 2
wrong usage, no such run (or no longer one), a log that cannot be read (others
are shown), or a stdout that takes nothing; 130 by Ctrl-C.
"""


@click.command(epilog=EPILOG, help=f"Show what ranks have written, merged or collapsed.\n\n{LIVE_RUN_HELP}")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run ends.")
@click.option(
    "-n", "--lines", type=Whole(0), metavar="N", help="Only the last N lines of each rank, of those selected."
)
@click.option("--rank", "rank_expression", metavar="RANKS", default="all",
              help="0,3-5, all, or first-failed.  [default: all]")  # fmt: skip
@click.option("--server", metavar="SERVER", help="Ranks of one server: its id, or its number from 0.")
@click.option("--since", metavar="TIME", help="Lines from then on: 2026-11-21T12:00, 12:00, or 10m ago.")
@click.option("--until", metavar="TIME", help="Lines up to then; 21:30 is today's.")
@click.option("--grep", metavar="REGEX", help="Lines that match.")
@click.option("-A", "after", type=Whole(0), default=0, metavar="N", help="And N lines after each.")
@click.option("-B", "before", type=Whole(0), default=0, metavar="N", help="And N lines before each.")
@click.option("-C", "around", type=Whole(0), default=0, metavar="N", help="And N lines around each.")
@click.option("--level", metavar="LEVEL", help="Lines of this level or above: DEBUG, INFO, WARNING, ERROR.")
@click.option("--errors", is_flag=True, help="The first traceback of each rank, identical ones once.")
@click.option("--merge", "merged", is_flag=True, help="By time, over all ranks.")
@click.option("--collapse", "collapsed", is_flag=True, help="What ranks say alike as one line.")
@click.option("--prefix", metavar="PREFIX", help="Before each line.  [default: [rank] if there are several]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.option("--env", "environment", is_flag=True, help="The ranks' variables (env.log) instead.")
@click.option("--color/--no-color", default=None, help="Keep colours of lines.  [default: on a terminal]")
@click.option("--exit-code", is_flag=True, help="With --follow: exit with the run's own code.")
@run_argument
@click.pass_context
def logs(context: click.Context, /, *, run: str | None, runs_dir: Path, **options: Any) -> None:
    from launcher.cli.commands.show_logs import show
    from launcher.cli.options.logs import LogOptions

    context.exit(show(runs_dir, run, LogOptions(**options)))
