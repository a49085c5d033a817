"""What would break a run, or may: one finding per cause, with all servers that it is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from enum import Enum

from launcher.core.frozen import frozen
from launcher.core.records import Cluster
from launcher.doctor.facts import Facts
from launcher.doctor.join_failure import JoinFailure
from launcher.doctor.reach import Attempt

SHOWN = 4  # servers in a sentence; the others are counted


class Severity(str, Enum):
    """The worst first."""

    BREAKS = "breaks"  # the run would fail
    RISKY = "risky"  # it may fail, be slow, or be hard to understand
    NOTE = "note"  # nothing is wrong, but a person may want to know


class Topic(str, Enum):
    """What a finding is about, in the order in which a report shows them."""

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
    message: str  # a sentence without its dot, the numbers put in
    hint: str | None = None


@frozen
class Evidence:
    """All that rules look at."""

    cluster: Cluster
    facts: Mapping[int, Facts]  # of the servers that answered
    reach: Mapping[int, tuple[Attempt, ...]]
    offsets_s: Mapping[int, float]  # of clocks, against the head's
    troubles: Mapping[int, str]  # of servers that did not do what they were asked to
    join_failures: Mapping[int, JoinFailure] = field(
        default_factory=dict
    )  # why servers did not come, or did not answer in time

    @property
    def has_several_servers(self) -> bool:
        return len(self.cluster.servers) > 1

    @property
    def world_size(self) -> int:
        return self.cluster.device_count

    def rank_count(self, server: int) -> int:
        return len(self.cluster.servers[server].devices)

    def name(self, server: int) -> str:
        return self.cluster.servers[server].server_id

    def named(self, servers: Iterable[int]) -> str:
        """In words: "server 10.0.0.1", "servers h1, h2, h3, h4 and 12 more"."""
        names = [self.name(server) for server in sorted(servers)]
        return f"server{'s' * (len(names) > 1)} {listed(names)}"


def listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more}"


def all_but_most(said: Mapping[str | None, tuple[int, ...]]) -> tuple[int, ...]:
    """Of `groups`: the servers that do not say what most say."""
    return tuple(sorted(server for servers in list(said.values())[1:] for server in servers))


def groups(values: Mapping[int, str | None]) -> dict[str | None, tuple[int, ...]]:
    """The servers that say the same; what most of them say comes first."""
    found: dict[str | None, list[int]] = {}
    for server in sorted(values):
        found.setdefault(values[server], []).append(server)
    return {value: tuple(servers) for value, servers in sorted(found.items(), key=lambda one: -len(one[1]))}
