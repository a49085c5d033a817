"""Rules about servers that do not answer or cannot reach each other. Both directions of each pair are checked."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator

from launcher.core.machine.interfaces import addresses_of
from launcher.doctor.finding import Evidence, Finding, Rule, Severity, Topic, groups
from launcher.doctor.join_failure import SERVER
from launcher.doctor.network_facts import is_loopback
from launcher.doctor.reach import Attempt, Outcome

MAX_PAIRS = 8  # pairs with separate findings
_HINTS = {
    Outcome.REFUSED: "check the firewalls (`iptables -L`, `nft list ruleset`): servers must be able to "
    "connect to any port of each other",
    Outcome.TIMED_OUT: "check the firewalls, since servers must be able to connect to any port of each other; then check the "
    "cable, the VLAN and the routes",
    Outcome.NO_ROUTE: "check the route with `ip route get` on the first server",
    Outcome.WRONG_ANSWER: "check `ip addr` on both for a duplicate address, and look for a proxy or a forwarded port",
}
Way = tuple[int, int]  # sender, receiver


class _Ways:
    """The failed connections between servers for which no finding has been reported yet."""

    def __init__(self, tried: Collection[Way], failed: Collection[Way]) -> None:
        self._left = dict.fromkeys(failed)
        # Counted in advance by server, since 500 servers have 250,000 pairs.
        self._tried = [Counter(way[end] for way in tried) for end in (0, 1)]
        self._failed: list[dict[int, list[Way]]] = [defaultdict(list), defaultdict(list)]
        for way in failed:
            for end in (0, 1):
                self._failed[end][way[end]].append(way)

    def take_all(self, server: int, end: int) -> list[Way]:
        """Pop the connections from (`end` 0) or to (`end` 1) a server if there are two or more and all failed."""
        ways = [way for way in self._failed[end].get(server, ()) if way in self._left]
        if len(ways) < 2 or len(ways) != self._tried[end][server]:
            return []
        for way in ways:
            del self._left[way]
        return ways

    def pairs(self) -> list[list[Way]]:
        """Return the remaining connections, grouped by pair of servers."""
        pairs: dict[frozenset[int], list[Way]] = defaultdict(list)
        for way in sorted(self._left):
            pairs[frozenset(way)].append(way)
        return list(pairs.values())


def join_failed(evidence: Evidence) -> Iterator[Finding]:
    """Yield one finding for each reason why servers failed to join, with all affected servers."""
    for failure, servers in groups(evidence.join_failures).items():
        hint = failure.hint and failure.hint.replace(SERVER, evidence.name(servers[0]))
        message = f"{evidence.named(servers)}: {failure.why}"
        yield Finding(failure.code, Topic.ANSWER, Severity.BREAKS, servers, message, hint)


def no_answer(evidence: Evidence) -> Iterator[Finding]:
    """Report servers that did not answer, or answered with an error, unless they failed to join."""
    unknown = set(range(len(evidence.cluster.servers))) - set(evidence.facts) - set(evidence.join_failures)
    if silent := tuple(sorted(unknown - set(evidence.troubles))):
        yield Finding(
            "no-answer", Topic.ANSWER, Severity.BREAKS, silent, f"no answer from {evidence.named(silent)}",
            "run `tlaunch --version` there by `ssh` or `srun`: tlaunch may not start, or its connection may fail",
        )  # fmt: skip
    for server, trouble in sorted(evidence.troubles.items()):
        if server not in evidence.join_failures:
            yield Finding(
                "no-answer", Topic.ANSWER, Severity.BREAKS, (server,), f"{evidence.named([server])}: {trouble}",
                "check that the same tlaunch is installed there, and that its disks are not full",
            )  # fmt: skip


def unreachable(evidence: Evidence) -> Iterator[Finding]:
    """Check that all servers reach each other. A server whose connections all fail is reported only once.

    Other rules report lost packets, a server that does not reach itself, and unknown names.
    """
    tried = {
        (server, attempt.server): attempt
        for server, attempts in evidence.reach.items()
        for attempt in attempts
        if attempt.server != server
    }
    failed = {}
    for way, attempt in tried.items():
        facts = evidence.facts.get(way[0])
        resolution = None if facts is None else facts.resolution(attempt.host)
        is_unknown = attempt.outcome is Outcome.UNKNOWN_NAME and resolution is not None and not resolution.addresses
        if not (attempt.reached or attempt.loses or is_unknown):
            failed[way] = attempt
    ways = _Ways(tried, failed)
    for index in range(len(evidence.cluster.servers)):
        for end, words in ((1, "no other server can reach {}"), (0, "{} cannot reach any other server")):
            if own := ways.take_all(index, end):
                yield _unreachable(evidence, (index,), words.format(evidence.name(index)), failed[own[0]])
    pairs = ways.pairs()
    for pair in pairs[:MAX_PAIRS]:
        first, second = map(evidence.name, pair[0])
        one_way = f"{first} cannot reach {second}, but {second} can reach {first}"
        message = f"{first} and {second} cannot reach each other" if len(pair) == 2 else one_way
        yield _unreachable(evidence, pair[0], message, failed[pair[0]])
    if rest := pairs[MAX_PAIRS:]:
        servers = tuple(sorted({server for pair in rest for way in pair for server in way}))
        message = f"{len(rest)} more pairs of servers cannot reach each other: {evidence.named(servers)}"
        yield Finding("unreachable", Topic.REACH, Severity.BREAKS, servers, message)


def _unreachable(evidence: Evidence, servers: tuple[int, ...], message: str, attempt: Attempt) -> Finding:
    outcome = attempt.outcome.value
    why = f"{outcome} ({attempt.trouble})" if attempt.trouble and attempt.trouble != outcome else outcome
    where = f" at {attempt.address}" if attempt.address and attempt.address != attempt.host else ""
    return Finding(
        "wrong-answer" if attempt.outcome is Outcome.WRONG_ANSWER else "unreachable",
        Topic.REACH, Severity.BREAKS, tuple(sorted(servers)),
        f"{message}: {evidence.name(attempt.server)}{where}: {why}", _HINTS.get(attempt.outcome),
    )  # fmt: skip


def not_itself(evidence: Evidence) -> Iterator[Finding]:
    """Check that each server can connect to its own address in the table, because its ranks connect to it.

    Other rules report wrong addresses and unknown names.
    """
    for index, attempts in sorted(evidence.reach.items()):
        facts = evidence.facts.get(index)
        for attempt in attempts:
            if attempt.server != index or attempt.reached or facts is None or attempt.address is None:
                continue
            if not addresses_of([attempt.address]) & addresses_of(a for one in facts.interfaces for a in one.addresses):
                continue
            loopbacks = (one for one in facts.interfaces if one.name == "lo" or any(map(is_loopback, one.addresses)))
            down = [one.name for one in loopbacks if not one.up]
            why = f"its interface {down[0]} is down" if down else attempt.trouble or attempt.outcome.value
            is_needed = evidence.rank_count(index) > 1 or index == evidence.cluster.first_server
            yield Finding(
                "not-itself", Topic.REACH, Severity.BREAKS if is_needed else Severity.RISKY, (index,),
                f"server {evidence.name(index)} cannot reach itself at {attempt.address}: {why}",
                f"run `ip link set {down[0]} up` there" if down
                else "check its firewall and the interface lo, since its ranks must reach each other",
            )  # fmt: skip


def large_packets(evidence: Evidence) -> Iterator[Finding]:
    """Check that large packets arrive. A server whose connections all lose them is reported only once.

    Only some pairs are tested with large packets, each pair from both ends.
    """
    lost, tried = set(), set()
    for server, attempts in evidence.reach.items():
        for attempt in attempts:
            there, back = (server, attempt.server), (attempt.server, server)
            if attempt.loses:
                lost.add(there if attempt.outcome is Outcome.LOSES_THERE else back)
            if attempt.got_large:
                tried |= {there, back}
    ways = _Ways(tried, sorted(lost))
    for end, words in ((0, "from {} to all others"), (1, "from all others to {}")):
        for index in range(len(evidence.cluster.servers)):
            if own := ways.take_all(index, end):
                yield _lost(evidence, own[0], words.format(evidence.name(index)), (index,))
    pairs = ways.pairs()
    for pair in pairs[:MAX_PAIRS]:
        first, second = map(evidence.name, pair[0])
        both = f"between {first} and {second}, in both directions"
        yield _lost(evidence, pair[0], both if len(pair) == 2 else f"from {first} to {second}", pair[0])
    if rest := [way for pair in pairs[MAX_PAIRS:] for way in pair]:
        servers = tuple({server for way in rest for server in way})
        yield _lost(evidence, rest[0], f"between {len(pairs) - MAX_PAIRS} more pairs of servers", servers)


def _lost(evidence: Evidence, way: Way, where: str, servers: tuple[int, ...]) -> Finding:
    first, second = map(evidence.name, way)
    return Finding(
        "large-packets-lost", Topic.REACH, Severity.BREAKS, tuple(sorted(servers)),
        f"{where}, small packets arrive but large ones do not",
        f"check the MTU on the path: on {first}, test packets of 1500 bytes with `ping -M do -s 1472 {second}`",
    )  # fmt: skip


RULES: tuple[Rule, ...] = (join_failed, no_answer, unreachable, not_itself, large_packets)
