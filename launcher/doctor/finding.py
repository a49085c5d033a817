"""Findings: problems for a run, one per cause, each with all servers that it affects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from enum import Enum
from typing import Any, TypeVar

from launcher.core.frozen import frozen
from launcher.core.records import Cluster
from launcher.core.text import some_of
from launcher.doctor.facts import Facts
from launcher.doctor.join_failure import JoinFailure
from launcher.doctor.reach import Attempt

T = TypeVar("T")
MAX_SHOWN = 4  # servers named in a message; the others are counted


class Severity(str, Enum):
    """The severities of findings, worst first."""

    BREAKS = "breaks"  # the run would fail
    RISKY = "risky"  # it may fail, be slow, or be hard to understand
    NOTE = "note"  # not a problem, but useful to know


class Topic(str, Enum):
    """The subjects of findings, in the order of the report."""

    ANSWER = "answer"
    REACH = "reach"
    NAMES = "names"
    NETWORK = "network"
    CLOCK = "clock"
    SOFTWARE = "software"
    TABLE = "table"
    FILES = "files"
    LIMITS = "limits"
    DEVICES = "devices"
    LINKS = "links"


@frozen
class Finding:
    code: str  # stable, for programs: "clock-skew"
    topic: Topic
    severity: Severity
    servers: tuple[int, ...]  # indices in the table, ascending
    message: str  # a sentence without its full stop
    hint: str | None = None


@frozen
class Evidence:
    """The input of all rules. Mappings are keyed by a server's index in `cluster`."""

    cluster: Cluster  # only the servers and ranks of the run
    facts: Mapping[int, Facts]  # of the servers that answered
    reach: Mapping[int, tuple[Attempt, ...]]  # each server's attempts to reach the others
    offsets_s: Mapping[int, float]  # clock offsets relative to the launcher
    troubles: Mapping[int, str] = field(default_factory=dict)  # errors of servers that failed to answer a request
    join_failures: Mapping[int, JoinFailure] = field(default_factory=dict)  # of servers that did not join or answer

    @property
    def has_several_servers(self) -> bool:
        return len(self.cluster.servers) > 1

    @property
    def world_size(self) -> int:
        return self.cluster.device_count

    def answers(self) -> list[tuple[int, Facts]]:
        """Return the facts of each server that answered, in table order."""
        return sorted(self.facts.items(), key=lambda one: one[0])

    def rank_count(self, server: int) -> int:
        return len(self.cluster.servers[server].devices)

    def name(self, server: int) -> str:
        return self.cluster.servers[server].server_id

    def named(self, servers: Iterable[int]) -> str:
        """Return a phrase for these servers, such as "server 10.0.0.1" or "servers h1, h2, h3, h4 and 12 more"."""
        names = [self.name(server) for server in sorted(servers)]
        return f"server{'s' * (len(names) > 1)} {some_of(names, MAX_SHOWN)}"

    def each(self, values: Mapping[T, tuple[int, ...]]) -> str:
        """Return a phrase that lists servers by value, such as "1500 on servers h1, h3; 9000 on server h2"."""
        return "; ".join(f"{value} on {self.named(servers)}" for value, servers in values.items())


Rule = Callable[[Evidence], Iterator[Finding]]


@frozen
class Answer:
    """The facts of one server, as the input of a rule that checks servers one at a time."""

    index: int
    facts: Facts
    evidence: Evidence

    @property
    def ranks(self) -> int:
        return len(self.evidence.cluster.servers[self.index].devices)

    @property
    def name(self) -> str:
        return self.evidence.name(self.index)


@frozen
class PerServer:
    """A rule that is applied to each server separately."""

    code: str
    topic: Topic
    severity: Severity
    find: Callable[[Answer], Mapping[str, Any] | None]  # values for message and hint; None if nothing is wrong
    message: str  # may contain {server} ("server h1"), {ranks} (its number), and keys that `find` returns
    hint: str | None = None  # may contain the same

    def __call__(self, evidence: Evidence) -> Iterator[Finding]:
        """Yield a finding for each server with a problem. `find` may override the severity of the finding."""
        for index, facts in evidence.answers():
            answer = Answer(index, facts, evidence)
            if (values := self.find(answer)) is not None:
                values = {"severity": self.severity, "server": evidence.named([index]), "ranks": answer.ranks, **values}
                hint = self.hint and self.hint.format_map(values)
                message = self.message.format_map(values)
                yield Finding(self.code, self.topic, values["severity"], (index,), message, hint)


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings sorted by severity (worst first), then by topic and server."""
    order = [*Severity, *Topic]
    return tuple(sorted(findings, key=lambda one: (order.index(one.severity), order.index(one.topic), one.servers)))


def groups(values: Mapping[int, T]) -> dict[T, tuple[int, ...]]:
    """Return the servers grouped by value, starting with the most frequent value."""
    found: dict[T, list[int]] = {}
    for server in sorted(values):
        found.setdefault(values[server], []).append(server)
    return {value: tuple(servers) for value, servers in sorted(found.items(), key=lambda one: -len(one[1]))}


def minority(said: Mapping[T, tuple[int, ...]]) -> tuple[int, ...]:
    """Return the servers that lack the most frequent value. In `said` (servers by value), this value comes first."""
    return tuple(sorted(server for servers in list(said.values())[1:] for server in servers))
