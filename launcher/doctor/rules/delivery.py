"""What is not delivered though servers reach each other: large packets, and those of a server to itself."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from launcher.core.interfaces import addresses_of
from launcher.doctor.facts import Facts
from launcher.doctor.finding import Evidence, Finding, Severity, Topic
from launcher.doctor.names import is_loopback
from launcher.doctor.reach import Attempt, Outcome

PAIRS_SHOWN = 8
Way = tuple[int, int]  # from whom, to whom


def not_itself(evidence: Evidence) -> Iterator[Finding]:
    """Its ranks open connections to each other, and rank 0 to itself, by the address that others know it by."""
    for index, attempts in sorted(evidence.reach.items()):
        facts = evidence.facts.get(index)
        for attempt in attempts:
            if attempt.server != index or attempt.reached or facts is None or not _is_own(attempt, facts):
                continue
            down = [one.name for one in facts.interfaces if not one.up and _is_loopback(one.name, one.addresses)]
            why = f"its interface {down[0]} is down" if down else attempt.trouble or attempt.outcome.value
            is_needed = evidence.rank_count(index) > 1 or index == evidence.cluster.first_server
            yield Finding(
                "not-itself", Topic.REACH, Severity.BREAKS if is_needed else Severity.RISKY, (index,),
                f"server {evidence.name(index)} does not reach itself at {attempt.address}: {why}",
                f"`ip link set {down[0]} up` there" if down
                else "its ranks must reach each other: look at its firewall, and at the interface lo",
            )  # fmt: skip


def large_packets(evidence: Evidence) -> Iterator[Finding]:
    """A server that loses them to or from all others is one cause; only some pairs are tried, each by both ends."""
    lost, tried = _ways(evidence)
    for end, words in ((0, "from {} to all others"), (1, "from all others to {}")):
        of_all = Counter(way[end] for way in tried)
        for index, count in sorted(Counter(way[end] for way in lost).items()):
            if 1 < count == of_all[index]:
                own = sorted(way for way in lost if way[end] == index)
                yield _lost(evidence, own, words.format(evidence.name(index)), (index,))
                lost -= set(own)
    pairs: dict[frozenset[int], list[Way]] = defaultdict(list)
    for way in sorted(lost):
        pairs[frozenset(way)].append(way)
    for ways in list(pairs.values())[:PAIRS_SHOWN]:
        yield _lost(evidence, ways, _between(evidence, ways), ways[0])
    if rest := [way for ways in list(pairs.values())[PAIRS_SHOWN:] for way in ways]:
        servers = {server for way in rest for server in way}
        yield _lost(evidence, rest, f"between {len(pairs) - PAIRS_SHOWN} more pairs of servers", tuple(servers))


def _ways(evidence: Evidence) -> tuple[set[Way], set[Way]]:
    """Which lose large packets, and all that are known to have been tried with some."""
    lost, tried = set(), set()
    for server, attempts in evidence.reach.items():
        for attempt in attempts:
            there, back = (server, attempt.server), (attempt.server, server)
            if attempt.loses:
                lost.add(there if attempt.outcome is Outcome.LOSES_THERE else back)
            if attempt.got_large:
                tried |= {there, back}
    return lost, tried


def _between(evidence: Evidence, ways: list[Way]) -> str:
    first, second = (evidence.name(server) for server in ways[0])
    return f"between {first} and {second}, both ways" if len(ways) == 2 else f"from {first} to {second}"


def _lost(evidence: Evidence, ways: list[Way], where: str, servers: tuple[int, ...]) -> Finding:
    first, second = (evidence.name(server) for server in ways[0])
    return Finding(
        "large-packets-lost", Topic.REACH, Severity.BREAKS, tuple(sorted(servers)),
        f"{where}, small packets arrive and large ones do not",
        f"is the MTU the same on the whole way? On {first}, `ping -M do -s 1472 {second}` tells whether 1500 bytes pass",
    )  # fmt: skip


def _is_own(attempt: Attempt, facts: Facts) -> bool:
    """An address that is elsewhere, or has no meaning, is told of by other rules."""
    own = addresses_of(address for interface in facts.interfaces for address in interface.addresses)
    return attempt.address is not None and bool(own & addresses_of([attempt.address]))


def _is_loopback(name: str, addresses: tuple[str, ...]) -> bool:
    return name == "lo" or any(map(is_loopback, addresses))
