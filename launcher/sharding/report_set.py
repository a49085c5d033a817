"""Read the strategy reports of all ranks of a run, and group ranks whose strategies are equal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from launcher.core.errors import UnreadableError
from launcher.core.frozen import frozen
from launcher.core.run_dir import strategy_name
from launcher.core.text import ranges
from launcher.sharding.strategy_report import HINT, ReportTensor, StrategyReport, read_report

_NAME = re.compile(r"rank(?P<rank>\d{1,9})\.json")


def reported_ranks(directory: Path) -> list[int]:
    """Return the sorted ranks that have a report, or [] if the directory is missing."""
    try:
        names = [_NAME.fullmatch(path.name) for path in directory.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(name["rank"]) for name in names if name is not None)


def read_of_rank(directory: Path, rank: int) -> StrategyReport:
    """Read the report of a rank. Raises UnreadableError if it is missing, damaged, or from another rank."""
    path = directory / strategy_name(rank)
    report = read_report(path)
    if report.rank != rank:
        raise UnreadableError(f"{path}: expected rank {rank}, but found the report of rank {report.rank}", hint=HINT)
    return report


def read_all(directory: Path) -> list[StrategyReport]:
    """Return the reports of a run's newest attempt, in rank order.

    Raises:
        UnreadableError: a report is damaged, belongs to another rank, or is missing for a rank of that attempt.
    """
    reports = [read_of_rank(directory, rank) for rank in reported_ranks(directory)]
    newest = max((report.attempt for report in reports), default=0)
    # An attempt on fewer devices leaves other ranks' files.
    found = [report for report in reports if report.attempt == newest]
    missing = set(range(found[0].ranks)) - {report.rank for report in found} if found else set()
    if missing:
        raise UnreadableError(
            f"{directory}: expected reports of {found[0].ranks} ranks, but these ranks have no report: {ranges(missing)}",
            hint="the run ended too early or is still running; use `--rank N` to show the report of one rank",
        )
    return found


@frozen
class AlikeRanks:
    """Ranks that compute the same operators with the same strategies."""

    reports: tuple[StrategyReport, ...]  # in rank order
    but_for: tuple[str, ...]  # the remaining differences

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(report.rank for report in self.reports)


def equal_ranks(reports: Sequence[StrategyReport]) -> list[AlikeRanks]:
    """Group ranks with the same operators, strategies and collectives. Groups are ordered by their first rank."""
    groups: dict[Any, list[StrategyReport]] = {}
    for report in reports:
        operators = tuple(
            (each.name, each.kind, each.stage, each.calls, each.strategy, each.output.cuts) for each in report.operators
        )
        collectives = frozenset((each.operator, each.phase, each.kind, each.what) for each in report.collectives)
        groups.setdefault((report.ranks, operators, collectives), []).append(report)
    return [AlikeRanks(tuple(members), tuple(_differences(members))) for members in groups.values()]


def _differences(members: Sequence[StrategyReport]) -> Iterator[str]:
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
    for operator in report.operators:
        yield from operator.inputs
        yield operator.output
