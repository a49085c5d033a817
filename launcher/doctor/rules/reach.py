"""Who answers, and who reaches whom: every ordered pair counts, since connections are opened both ways."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from launcher.doctor.finding import Evidence, Finding, Severity, Topic
from launcher.doctor.join_failure import SERVER, JoinFailure
from launcher.doctor.reach import Attempt, Outcome

PAIRS_SHOWN = 8
_HINTS = {
    Outcome.REFUSED: "something on the way refuses connections: look at the firewall (`iptables -L`, `nft list ruleset`), "
    "which must let servers open any port of each other",
    Outcome.TIMED_OUT: "a firewall that drops connections looks like that: servers must be let open any port of each "
    "other; else look at the cable, the VLAN and the routes",
    Outcome.NO_ROUTE: "`ip route get` on the first server tells the way that it would take",
    Outcome.WRONG_ANSWER: "an address that two servers have, a proxy, or a port that is forwarded: `ip addr` on both tells",
}
Pair = tuple[int, int]  # who tried, whom


def absent(evidence: Evidence) -> Iterator[Finding]:
    """One finding for a cause that several servers share: its hint names the first of them."""
    alike: dict[JoinFailure, list[int]] = defaultdict(list)
    for server, failure in sorted(evidence.join_failures.items()):
        alike[failure].append(server)
    for failure, servers in alike.items():
        hint = failure.hint and failure.hint.replace(SERVER, evidence.name(servers[0]))
        yield Finding(
            failure.code,
            Topic.ANSWER,
            Severity.BREAKS,
            tuple(servers),
            f"{evidence.named(servers)}: {failure.why}",
            hint,
        )


def no_answer(evidence: Evidence) -> Iterator[Finding]:
    """Of servers about which nothing better is known."""
    silent = tuple(
        index
        for index in range(len(evidence.cluster.servers))
        if index not in evidence.facts and index not in evidence.join_failures
    )
    unexplained = tuple(server for server in silent if server not in evidence.troubles)
    if unexplained:
        yield Finding(
            "no-answer", Topic.ANSWER, Severity.BREAKS, unexplained,
            f"{evidence.named(unexplained)}: no answer",
            "the engine could not start tlaunch there, or nothing comes back: try `ssh` or `srun` with `tlaunch --version`",
        )  # fmt: skip
    for server, trouble in sorted(evidence.troubles.items()):
        if server in evidence.join_failures:
            continue
        yield Finding(
            "no-answer", Topic.ANSWER, Severity.BREAKS, (server,), f"{evidence.named([server])}: {trouble}",
            "is the same tlaunch installed there, and room left on its disks?",
        )  # fmt: skip


def unreachable(evidence: Evidence) -> Iterator[Finding]:
    """A server that nobody reaches, or that reaches nobody, is one cause and not as many as there are pairs."""
    tried, failed = _attempts(evidence)
    if len(evidence.cluster.servers) > 2:
        yield from _isolated(evidence, tried, failed)
    yield from _pairs(evidence, failed)


def _isolated(evidence: Evidence, tried: set[Pair], failed: dict[Pair, Attempt]) -> Iterator[Finding]:
    """What is told leaves `failed`. Each end is counted once: of 500 servers there are 250,000 pairs."""
    tried_from, tried_to = (Counter(pair[end] for pair in tried) for end in (0, 1))
    failed_from, failed_to = (defaultdict[int, list[Pair]](list) for _ in range(2))
    for pair in failed:
        failed_from[pair[0]].append(pair)
        failed_to[pair[1]].append(pair)
    for index in range(len(evidence.cluster.servers)):
        name = evidence.name(index)
        for pairs, of_all, words in (
            (failed_to[index], tried_to[index], f"no other server reaches {name}"),
            (failed_from[index], tried_from[index], f"{name} reaches no other server"),
        ):
            left = [pair for pair in pairs if pair in failed]
            if len(left) > 1 and len(left) == of_all:
                yield _finding(evidence, index, words, failed[left[0]])
                for pair in left:
                    del failed[pair]


def _attempts(evidence: Evidence) -> tuple[set[Pair], dict[Pair, Attempt]]:
    """Which pairs were tried, and those that failed.

    Other rules tell of lost packets, of a server that does not reach itself, and of a name that has no resolution there.
    """
    tried, failed = set(), {}
    for server, attempts in evidence.reach.items():
        for attempt in attempts:
            if attempt.server == server:
                continue
            tried.add((server, attempt.server))
            if not (attempt.reached or attempt.loses) and not _is_told_as_a_name(evidence, server, attempt):
                failed[server, attempt.server] = attempt
    return tried, failed


def _is_told_as_a_name(evidence: Evidence, server: int, attempt: Attempt) -> bool:
    resolution = evidence.facts[server].resolution(attempt.host) if server in evidence.facts else None
    return attempt.outcome is Outcome.UNKNOWN_NAME and resolution is not None and not resolution.addresses


def _pairs(evidence: Evidence, failed: dict[Pair, Attempt]) -> Iterator[Finding]:
    seen: dict[frozenset[int], list[Pair]] = defaultdict(list)
    for pair in sorted(failed):
        seen[frozenset(pair)].append(pair)
    for pairs in list(seen.values())[:PAIRS_SHOWN]:
        (first, second), attempt = pairs[0], failed[pairs[0]]
        one_way = f"{evidence.name(first)} does not reach {evidence.name(second)}"
        both = f"{evidence.name(first)} and {evidence.name(second)} do not reach each other"
        message = both if len(pairs) == 2 else f"{one_way}, only the other way round"
        yield _finding(evidence, first, message, attempt, second)
    if rest := list(seen)[PAIRS_SHOWN:]:
        servers = sorted({server for pair in rest for server in pair})
        yield Finding(
            "unreachable", Topic.REACH, Severity.BREAKS, tuple(servers),
            f"{len(rest)} more pairs of servers do not reach each other, of {evidence.named(servers)}",
        )  # fmt: skip


def _finding(evidence: Evidence, server: int, message: str, attempt: Attempt, *others: int) -> Finding:
    how = attempt.trouble or attempt.outcome.value
    where = f" at {attempt.address}" if attempt.address and attempt.address != attempt.host else ""
    code = "wrong-answer" if attempt.outcome is Outcome.WRONG_ANSWER else "unreachable"
    servers = tuple(sorted({server, *others}))
    name = evidence.name(attempt.server)
    return Finding(
        code, Topic.REACH, Severity.BREAKS, servers,
        f"{message}: {name}{where}: {attempt.outcome.value}{f' ({how})' if how != attempt.outcome.value else ''}",
        _HINTS.get(attempt.outcome),
    )  # fmt: skip
