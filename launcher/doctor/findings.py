"""Judge what servers said of themselves. Pure: the same evidence always gives the same findings, in the same order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from launcher.core.records import Cluster
from launcher.doctor.facts import Facts
from launcher.doctor.finding import Evidence, Finding, Severity, Topic
from launcher.doctor.join_failure import JoinFailure
from launcher.doctor.reach import Attempt
from launcher.doctor.rules import RULES

_SERVERS = "\0"  # stands for the servers in a message


def judge(  # noqa: PLR0917 - each is a kind of evidence
    cluster: Cluster,
    facts: Mapping[int, Facts],
    reach: Mapping[int, tuple[Attempt, ...]],
    offsets_s: Mapping[int, float],
    troubles: Mapping[int, str] | None = None,
    join_failures: Mapping[int, JoinFailure] | None = None,
) -> tuple[Finding, ...]:
    """All findings, the worst first, then by topic.

    `cluster` has just the servers and ranks that the run would use; all else is by a server's index in it. A server
    without facts has not answered. `reach` holds what each server found when it tried the others, `offsets_s` how far
    each clock is ahead of one common clock. `join_failures`: what is known of servers that did not come at all.
    """
    evidence = Evidence(cluster, facts, reach, offsets_s, troubles or {}, join_failures or {})
    found = [finding for rule in RULES for finding in rule(evidence)]
    return in_order(_together(found, evidence))


def _together(found: Iterable[Finding], evidence: Evidence) -> Iterator[Finding]:
    """What is said of several servers in the same words becomes one finding: 64 servers may be ill of one thing."""
    alike: dict[tuple[str, Severity, str | None, str], list[Finding]] = {}
    for one in found:
        words = one.message.replace(evidence.named(one.servers), _SERVERS) if len(one.servers) == 1 else one.message
        alike.setdefault((one.code, one.severity, one.hint, words), []).append(one)
    for (*_, words), those in alike.items():
        servers = tuple(sorted({server for one in those for server in one.servers}))
        yield (
            those[0]
            if len(those) == 1
            else replace(those[0], servers=servers, message=words.replace(_SERVERS, evidence.named(servers)))
        )


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The worst first, then by topic; for findings of several sources, as measured links are."""
    severities, topics = list(Severity), list(Topic)
    return tuple(
        sorted(findings, key=lambda one: (severities.index(one.severity), topics.index(one.topic), one.servers))
    )
