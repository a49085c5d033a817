"""The strategy reports of all ranks of a run: read together, and which of them say the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from launcher.core.errors import UnreadableError
from launcher.core.frozen import frozen
from launcher.core.run_dir import strategy_name
from launcher.core.text import ranges
from launcher.sharding.report import HINT, ReportOperator, ReportTensor, StrategyReport, read_report

_NAME = re.compile(r"rank(?P<rank>\d{1,9})\.json")


def reported_ranks(directory: Path) -> list[int]:
    """Return the ranks whose report is there, in their order; none where there is no such directory."""
    try:
        names = [_NAME.fullmatch(path.name) for path in directory.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(name["rank"]) for name in names if name is not None)


def read_of_rank(directory: Path, rank: int) -> StrategyReport:
    """Return the report of a rank.

    Raises:
        UnreadableError: there is none, it is damaged, or it is another rank's.
    """
    path = directory / strategy_name(rank)
    report = read_report(path)
    if report.rank != rank:
        raise UnreadableError(f"{path}: this is the report of rank {report.rank}", hint=HINT)
    return report


def read_all(directory: Path) -> list[StrategyReport]:
    """Return the reports of the newest attempt of a run, in the order of the ranks.

    Raises:
        UnreadableError: one of them is damaged or another rank's, or ranks of that attempt are missing.
    """
    reports = [read_of_rank(directory, rank) for rank in reported_ranks(directory)]
    newest = max((report.attempt for report in reports), default=0)
    found = [
        report for report in reports if report.attempt == newest
    ]  # an attempt on fewer devices leaves others' files
    missing = set(range(found[0].ranks)) - {report.rank for report in found} if found else set()
    if missing:
        raise UnreadableError(
            f"{directory}: of {found[0].ranks} ranks, there is no report of {ranges(missing)}",
            hint="the run has ended before all had written theirs, or goes on; --rank N shows one of the others",
        )
    return found


@frozen
class AlikeRanks:
    """Ranks that compute the same operators by the same strategies."""

    reports: tuple[StrategyReport, ...]  # in the order of their ranks
    but_for: tuple[str, ...]  # in what they differ all the same

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(report.rank for report in self.reports)


def alike(reports: Sequence[StrategyReport]) -> list[AlikeRanks]:
    """Return the ranks in groups of those that do the same but for numbers, in the order of their first ranks."""
    groups: dict[Any, list[StrategyReport]] = {}
    for report in reports:
        groups.setdefault(_structure(report), []).append(report)
    return [AlikeRanks(tuple(members), tuple(_differences(members))) for members in groups.values()]


def _structure(report: StrategyReport) -> Any:
    """Return what ranks that do the same have in common."""
    operators = tuple(
        (each.name, each.kind, each.stage, each.calls, each.strategy, each.output.cuts) for each in report.operators
    )
    collectives = frozenset((each.operator, each.phase, each.kind, each.what) for each in report.collectives)
    return report.ranks, operators, collectives


def _differences(members: Sequence[StrategyReport]) -> Iterator[str]:
    """Yield in what ranks differ that do the same."""
    views: dict[str, Callable[[StrategyReport], object]] = {
        "groups": lambda report: [each.group for each in report.collectives],
        "parts of tensors": lambda report: [each.start for each in _tensors(report)],
        "sizes of parts": lambda report: [each.size for each in _tensors(report)],
        "bytes": lambda report: [each.bytes for each in report.collectives],
        "numbers of collectives": lambda report: [
            (each.operator, each.phase, each.kind, each.count) for each in report.collectives
        ],
    }
    for name, view in views.items():
        first = view(members[0])
        if any(view(other) != first for other in members[1:]):
            yield name


def _tensors(report: StrategyReport) -> Iterator[ReportTensor]:
    operators: tuple[ReportOperator, ...] = report.operators
    for operator in operators:
        yield from operator.inputs
        yield operator.output
