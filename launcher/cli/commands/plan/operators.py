"""`tlaunch plan operators`: show each operator's sharding strategy and communication."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from launcher.cli.commands.plan.graph import dot_of, svg_of
from launcher.cli.options.chosen_run import RUN_IS, chosen, json_option
from launcher.cli.options.completion import complete_runs
from launcher.cli.options.run import runs_dir_option
from launcher.cli.options.types import FILE, IntRange
from launcher.cli.text.columns import aligned, columns_of, fitted, size
from launcher.cli.text.output_file import check_replaceable, put
from launcher.cli.text.stdout import write_lines, write_out
from launcher.core.codec import encode, json_text
from launcher.core.errors import UnreadableError, UsageError
from launcher.core.text import printable, ranges
from launcher.sharding.report_set import AlikeRanks, equal_ranks, read_all, read_of_rank, reported_ranks
from launcher.sharding.strategy_report import PHASES, ReportCollective, ReportOperator, ReportPhase, StrategyReport

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

--svg and --dot print the path of the file, and replace only earlier drawings. Identical layers are drawn once:
encoder.0..5.

Exit codes: 0; 2 wrong usage, no such run, a run without a strategy report, a damaged report, a file that cannot be
written, or --svg without Graphviz.
"""
# The option: text in every drawing, and what it is.
DRAWINGS = {"--svg": ("<svg", "an SVG drawing"), "--dot": ("digraph", "a graph in DOT format")}


@click.command(
    epilog=EPILOG,
    help="Show each operator's sharding strategy and communication.\n\n"
    "Use `tlaunch run --save-strategy` to record the strategies of a bundled program. Networks partitioned with `sharded` "
    "always record their strategies. By default, the first rank is shown. "
    f"{RUN_IS} RUN can also be a directory of strategy reports.  [default: the latest run]",
)
@click.argument("run", required=False, metavar="[RUN]", shell_complete=complete_runs)
@click.option("--rank", type=IntRange(0), metavar="N", help="Show rank N.  [default: the first rank]")
@click.option("--all", "all_ranks", is_flag=True, help="Show all ranks. Ranks with identical reports are grouped.")
@click.option("--collectives", is_flag=True, help="List collectives and their groups instead of operators.")
@click.option("--svg", type=FILE, metavar="FILE", help="Draw the operators as SVG with Graphviz. Colours show layouts.")
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
) -> None:
    if rank is not None and all_ranks:
        raise UsageError("--rank cannot be combined with --all", hint="give one of them")
    files = [(option, path) for option, path in (("--svg", svg), ("--dot", dot)) if path is not None]
    if files and (as_json or collectives):
        raise UsageError(f"{files[0][0]} cannot be combined with --json or --collectives", hint="give one of them")
    for option, path in files:
        check_replaceable(str(path), *DRAWINGS[option], hint="use another file name, or remove the file first")
    reports = _reports(runs_dir, run, rank, all_ranks=all_ranks)
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
        if all_ranks:
            write_lines(lines_of_all(equal_ranks(reports), width, only_collectives=collectives))
        else:
            write_lines(lines_of(reports[0], width, only_collectives=collectives))


def _reports(runs_dir: Path, run: str | None, rank: int | None, *, all_ranks: bool) -> list[StrategyReport]:
    """Return the strategy reports of one rank or of all ranks. `run` is a run or a directory of reports.

    Raises UnreadableError if there is no such run or rank, or a report is missing or damaged.
    """
    if run is not None and reported_ranks(Path(run)):
        directory = Path(run)
    else:
        run_dir = chosen(runs_dir, run)
        directory = run_dir.strategy
        if not reported_ranks(directory):
            raise UnreadableError(
                f"{run_dir.root.name}: the run has no strategy report",
                hint="use `tlaunch run --save-strategy`, or call launcher.trainer.shard.api.sharded in your own program",
            )
    if all_ranks:
        return read_all(directory)
    known = reported_ranks(directory)
    wanted = known[0] if rank is None else rank
    if wanted not in known:
        raise UnreadableError(
            f"{directory}: rank {wanted} has no strategy report", hint=f"choose a rank from {ranges(known)}"
        )
    return [read_of_rank(directory, wanted)]


OPERATORS = ("OPERATOR", "KIND", "STRATEGY", "OUTPUT", "FORWARD", "BACKWARD")
COLLECTIVES = ("OPERATOR", "PHASE", "KIND", "GROUP", "BYTES", "COUNT", "WHAT")
SUMS = ("PHASE", "KIND", "COUNT", "BYTES")
# How a narrow terminal shrinks the tables, in this order: column and new width, 0 drops it.
OPERATORS_GIVE = (("KIND", 0), ("OUTPUT", 0), ("FORWARD", 10), ("BACKWARD", 10), ("STRATEGY", 12), ("OPERATOR", 20))
COLLECTIVES_GIVE = (("WHAT", 10), ("OPERATOR", 20), ("GROUP", 7))
RIGHT = frozenset({"BYTES", "COUNT"})


def lines_of(report: StrategyReport, width: int, *, only_collectives: bool = False) -> Iterator[str]:
    """Yield the lines of one rank's report, at most `width` columns wide if possible."""
    yield f"recipe:     {printable(report.recipe)}, {printable(report.layout)}"
    yield f"rank:       {report.rank} of {report.ranks}, {_origin(report)}"
    yield from _body(report, width, only_collectives=only_collectives)


def lines_of_all(groups: Sequence[AlikeRanks], width: int, *, only_collectives: bool = False) -> Iterator[str]:
    """Yield the reports of all ranks as lines. Ranks that do the same work share one report."""
    first = groups[0].reports[0]
    yield f"recipe:     {printable(first.recipe)}, {printable(first.layout)}"
    yield f"ranks:      {first.ranks}, {_origin(first)}"
    for group in groups:
        yield ""
        if len(group.ranks) == 1:
            yield f"rank {group.ranks[0]}:"
        else:
            words = " and ".join(filter(None, (", ".join(group.but_for[:-1]), *group.but_for[-1:])))
            but = f", except for {words}" if words else ""
            yield f"ranks {ranges(group.ranks)} do the same{but}; rank {group.ranks[0]}:"
        yield from _body(group.reports[0], width, only_collectives=only_collectives)


def _origin(report: StrategyReport) -> str:
    return "as planned" if report.step is None else f"recorded in step {report.step}"


def _body(report: StrategyReport, width: int, *, only_collectives: bool) -> Iterator[str]:
    named = {operator.name for operator in report.operators}
    shown = report.collectives if only_collectives else [one for one in report.collectives if one.operator not in named]
    if not only_collectives:
        yield f"operators:  {len(report.operators)}"
        yield ""
        whole = aligned(OPERATORS, [_operator(report, each) for each in report.operators])
        if max(map(columns_of, whole)) > width:
            rows = [_operator(report, each, kinds_only=True) for each in report.operators]
            whole = fitted(OPERATORS, rows, width, giving_way=OPERATORS_GIVE)
        yield from whole
    if shown:
        yield ""
        rows = [
            (
                printable(one.operator) or "-",
                one.phase,
                one.kind,
                " > ".join(map(str, one.group)) if one.kind in {"send", "receive"} else ranges(one.group),
                size(one.bytes),
                str(one.count),
                printable(one.what),
            )
            for one in shown
        ]
        yield from fitted(COLLECTIVES, rows, width, giving_way=COLLECTIVES_GIVE, right=RIGHT)
    yield ""
    yield from _sums(report)


def _operator(report: StrategyReport, operator: ReportOperator, *, kinds_only: bool = False) -> tuple[str, ...]:
    def of(phase: ReportPhase) -> str:
        found = [one for one in report.collectives if one.operator == operator.name and one.phase == phase]
        return ", ".join(dict.fromkeys(one.kind for one in found) if kinds_only else _in_short(found)) or "-"

    return (
        printable(operator.name),
        printable(operator.kind),
        str(operator.strategy),
        str(operator.output.cuts),
        of("forward"),
        of("backward"),
    )


def _in_short(collectives: Sequence[ReportCollective]) -> Iterator[str]:
    """Yield one summary per kind of collective and group of ranks, such as "3 all_gather 2.8 KiB over 0-1"."""
    alike: dict[tuple[str, tuple[int, ...]], list[ReportCollective]] = {}
    for one in collectives:
        alike.setdefault((one.kind, one.group), []).append(one)
    for (kind, group), members in alike.items():
        count = sum(one.count for one in members)
        total = size(sum(one.bytes * one.count for one in members))
        yield f"{f'{count} ' * (count > 1)}{kind} {total} over {ranges(group)}"


def _sums(report: StrategyReport) -> Iterator[str]:
    rows = []
    for phase in PHASES:
        of_phase = [one for one in report.collectives if one.phase == phase]
        for kind in dict.fromkeys(one.kind for one in of_phase):
            members = [one for one in of_phase if one.kind == kind]
            total = sum(one.bytes * one.count for one in members)
            rows.append((phase, kind, str(sum(one.count for one in members)), size(total)))
    if rows:
        yield from aligned(SUMS, rows, right=RIGHT)
    else:
        yield f"rank {report.rank} communicates nothing"
