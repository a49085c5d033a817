"""Strategy reports as text: operators with their strategies, collectives and totals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from launcher.cli.text.columns import aligned, columns_of, fitted, size
from launcher.core.text import printable, ranges
from launcher.sharding.report_set import AlikeRanks
from launcher.sharding.strategy import written
from launcher.sharding.strategy_report import PHASES, ReportCollective, ReportOperator, ReportPhase, StrategyReport

OPERATORS = ("OPERATOR", "KIND", "STRATEGY", "OUTPUT", "FORWARD", "BACKWARD")
COLLECTIVES = ("OPERATOR", "PHASE", "KIND", "GROUP", "BYTES", "COUNT", "WHAT")
SUMS = ("PHASE", "KIND", "COUNT", "BYTES")
# How a narrow terminal shrinks the tables, in this order: column and new width, 0 drops it.
OPERATORS_GIVE = (("KIND", 0), ("OUTPUT", 0), ("FORWARD", 10), ("BACKWARD", 10), ("STRATEGY", 12), ("OPERATOR", 20))
COLLECTIVES_GIVE = (("WHAT", 10), ("OPERATOR", 20), ("GROUP", 7))
RIGHT = frozenset({"BYTES", "COUNT"})


def lines_of(report: StrategyReport, width: int, *, only_collectives: bool = False) -> Iterator[str]:
    """Yield one rank's report, in lines of at most `width` columns if possible."""
    yield f"recipe:     {printable(report.recipe)}, {printable(report.layout)}"
    yield f"rank:       {report.rank} of {report.ranks}, {_origin(report)}"
    yield from _body(report, width, only_collectives=only_collectives)


def lines_of_all(groups: Sequence[AlikeRanks], width: int, *, only_collectives: bool = False) -> Iterator[str]:
    """Yield the reports of all ranks. Ranks that do the same are shown once, with the first rank's numbers."""
    first = groups[0].reports[0]
    yield f"recipe:     {printable(first.recipe)}, {printable(first.layout)}"
    yield f"ranks:      {first.ranks}, {_origin(first)}"
    for group in groups:
        yield ""
        if len(group.ranks) == 1:
            yield f"rank {group.ranks[0]}:"
        else:
            but = f", except for {_joined(group.but_for)}" if group.but_for else ""
            yield f"ranks {ranges(group.ranks)} do the same{but}; rank {group.ranks[0]}:"
        yield from _body(group.reports[0], width, only_collectives=only_collectives)


def _origin(report: StrategyReport) -> str:
    return "as planned" if report.step is None else f"recorded in step {report.step}"


def _joined(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


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
        rows = list(map(_collective, shown))
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
        written(operator.strategy),
        str(operator.output.cuts),
        of("forward"),
        of("backward"),
    )


def _in_short(collectives: Sequence[ReportCollective]) -> Iterator[str]:
    """Yield a summary per kind and group of collectives: "3 all_gather 2.8 KiB over 0-1"."""
    alike: dict[tuple[str, tuple[int, ...]], list[ReportCollective]] = {}
    for one in collectives:
        alike.setdefault((one.kind, one.group), []).append(one)
    for (kind, group), members in alike.items():
        count = sum(one.count for one in members)
        total = size(sum(one.bytes * one.count for one in members))
        yield f"{f'{count} ' * (count > 1)}{kind} {total} over {ranges(group)}"


def _collective(one: ReportCollective) -> tuple[str, ...]:
    group = " > ".join(map(str, one.group)) if one.kind in {"send", "receive"} else ranges(one.group)
    return (
        printable(one.operator) or "-",
        one.phase,
        one.kind,
        group,
        size(one.bytes),
        str(one.count),
        printable(one.what),
    )


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
