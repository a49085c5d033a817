"""`tlaunch plan operators`: show each operator's sharding strategy and communication."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import click

from launcher.cli.commands.plan.graph import dot_of, svg_of
from launcher.cli.commands.plan.table import lines_of, lines_of_all
from launcher.cli.options.chosen_run import RUN_IS, chosen, json_option
from launcher.cli.options.completion import complete_runs
from launcher.cli.options.run import runs_dir_option
from launcher.cli.options.types import FILE, IntRange
from launcher.cli.text.output_file import put
from launcher.cli.text.stdout import write_out
from launcher.core.codec import encode, json_text
from launcher.core.errors import EXIT_OK, UnreadableError, UsageError
from launcher.core.text import printable, ranges
from launcher.sharding.report_set import equal_ranks, read_all, read_of_rank, reported_ranks
from launcher.sharding.strategy_report import StrategyReport

EPILOG = """\b
Examples:
  tlaunch run --devices 4 --mp 2 --save-strategy
  tlaunch plan operators
  tlaunch plan operators latest --all --collectives
  tlaunch plan operators --rank 3 --json | jq '.operators[] | {name, kind}'
  tlaunch plan operators --svg operators.svg

STRATEGY has the number of shards per dim of each input, as in MindSpore's tutorials: ((2, 4), (4, 1)). OUTPUT has the
same for the result. FORWARD and BACKWARD list the rank's collectives for the operator in one step, with their bytes
and ranks. Bytes are the size of the tensor that is reduced, exchanged or sent. For a gather they are the size of its
result; so they are for a slice, which sends nothing.

--svg and --dot print the path of the file. Identical layers are drawn once: encoder.0..5.

Exit codes: 0; 2 wrong usage, no such run, a run without a strategy report, a damaged report, a file that cannot be
written, or --svg without Graphviz.
"""


@click.command(
    epilog=EPILOG,
    help="Show each operator's sharding strategy and communication.\n\n"
    "A run with --save-strategy records them in one training step. By default the first rank is shown. "
    f"{RUN_IS} It may also be a directory of reports.  [default: the latest run]",
)
@click.argument("run", required=False, metavar="[RUN]", shell_complete=complete_runs)
@click.option("--rank", type=IntRange(0), metavar="N", help="Show rank N.  [default: the first]")
@click.option("--all", "all_ranks", is_flag=True, help="Show all ranks. Ranks that do the same are shown once.")
@click.option("--collectives", is_flag=True, help="List each collective with its group, instead of operators.")
@click.option("--svg", type=FILE, metavar="FILE", help="Draw the operators with Graphviz, coloured by layout.")
@click.option("--dot", type=FILE, metavar="FILE", help="Write the graph in Graphviz's DOT format.")
@json_option
@runs_dir_option
def operators(
    *,
    run: str | None,
    rank: int | None,
    all_ranks: bool,
    collectives: bool,
    svg: Path | None,
    dot: Path | None,
    as_json: bool,
    runs_dir: Path,
) -> int:
    if rank is not None and all_ranks:
        raise UsageError("--rank shows one rank, --all shows all", hint="give one of them")
    files = [(option, path) for option, path in (("--svg", svg), ("--dot", dot)) if path is not None]
    if files and (as_json or collectives):
        raise UsageError(f"{files[0][0]} writes a file, --json and --collectives print", hint="give one of them")
    reports = _reports(_directory(runs_dir, run), rank, all_ranks=all_ranks)
    if files:
        text = dot_of(reports)
        contents = [svg_of(text) if path is svg else text.encode() for _, path in files]
        for (option, path), content in zip(files, contents, strict=True):
            put(str(path), content, hint=f"{option} operators.{option[2:]}")
            write_out(f"{printable(str(path))}\n")
    elif as_json:
        write_out(json_text(encode(reports if all_ranks else reports[0])))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
        lines = (
            lines_of_all(equal_ranks(reports), width, only_collectives=collectives)
            if all_ranks
            else lines_of(reports[0], width, only_collectives=collectives)
        )
        write_out("".join(f"{line}\n" for line in lines))
    return EXIT_OK


def _directory(runs_dir: Path, run: str | None) -> Path:
    """Return the directory of a run's strategy reports. `run` may also name that directory.

    Raises:
        UnreadableError: there is no such run, or it has no report.
        UsageError: several run names begin with `run`.
    """
    if run is not None and reported_ranks(Path(run)):
        return Path(run)
    run_dir = chosen(runs_dir, run)
    if not reported_ranks(run_dir.strategy):
        raise UnreadableError(
            f"{run_dir.root.name}: this run has no strategy report",
            hint="use `tlaunch run --save-strategy`; the bundled trainer writes a report after its second step",
        )
    return run_dir.strategy


def _reports(directory: Path, rank: int | None, *, all_ranks: bool) -> list[StrategyReport]:
    """Return the report of one rank, or the reports of all ranks; raise UnreadableError if one is missing or damaged."""
    if all_ranks:
        return read_all(directory)
    known = reported_ranks(directory)
    wanted = known[0] if rank is None else rank
    if wanted not in known:
        raise UnreadableError(
            f"{directory}: there is no strategy report of rank {wanted}", hint=f"choose a rank from {ranges(known)}"
        )
    return [read_of_rank(directory, wanted)]
