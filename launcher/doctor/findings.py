"""Judge what servers said of themselves. Pure: the same evidence always gives the same findings, in the same order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from launcher.core.records import Cluster
from launcher.doctor.facts import Facts
from launcher.doctor.finding import Evidence, Finding, Severity, Topic
from launcher.doctor.reach import Attempt
from launcher.doctor.rules import RULES


def judge(
    cluster: Cluster,
    facts: Mapping[int, Facts],
    reach: Mapping[int, tuple[Attempt, ...]],
    offsets_s: Mapping[int, float],
    troubles: Mapping[int, str] | None = None,
) -> tuple[Finding, ...]:
    """All findings, the worst first, then by topic.

    `cluster` has just the servers and ranks that the run would use; all else is by a server's index in it. A server
    without facts has not answered. `reach` holds what each server found when it tried the others, `offsets_s` how far
    each clock is ahead of one common clock.
    """
    evidence = Evidence(cluster, facts, reach, offsets_s, troubles or {})
    found = [finding for rule in RULES for finding in rule(evidence)]
    return in_order(found)


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The worst first, then by topic; for findings of several sources, as measured links are."""
    severities, topics = list(Severity), list(Topic)
    return tuple(
        sorted(findings, key=lambda one: (severities.index(one.severity), topics.index(one.topic), one.servers))
    )
