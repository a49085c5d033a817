"""What the names of servers mean on each of them, and whether addresses are where the table has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from launcher.doctor.examine import names_of
from launcher.doctor.facts import Facts, Resolved
from launcher.doctor.finding import Evidence, Finding, Severity, Topic
from launcher.doctor.names import is_address, is_loopback

SLOW_S = 1.0  # for one name
LOCAL_NAMES = ("localhost", "localhost.localdomain")
_HINT_HOSTS = "give every server the same lines in /etc/hosts, or let all ask the same name server"


def unknown_names(evidence: Evidence) -> Iterator[Finding]:
    for owner, name in _table_names(evidence):
        without = tuple(
            index for index, facts in evidence.facts.items() if (found := facts.meaning(name)) and not found.addresses
        )
        if without and evidence.has_several_servers:
            yield Finding(
                "unknown-name", Topic.NAMES, Severity.BREAKS, tuple(sorted({owner, *without})),
                _unknown(evidence, name, without), _HINT_HOSTS,
            )  # fmt: skip


def loopback(evidence: Evidence) -> Iterator[Finding]:
    """Debian gives a machine's own name 127.0.1.1: what listens there is reached by no other server."""
    if not evidence.has_several_servers:
        return
    for owner, name in _table_names(evidence):
        if name in LOCAL_NAMES:
            continue
        found = {index: facts.meaning(name) for index, facts in evidence.facts.items()}
        wrong = {index: one for index, one in found.items() if one and one.addresses and _is_local(one.addresses)}
        if others := sorted(set(wrong) - {owner}):
            yield Finding(
                "name-is-loopback", Topic.NAMES, Severity.BREAKS, tuple(sorted({owner, *others})),
                f"{name} is {wrong[others[0]].addresses[0]} on {evidence.named(others)}, which is every server's own",
                _HINT_HOSTS,
            )  # fmt: skip


def own_names(evidence: Evidence) -> Iterator[Finding]:
    """Gloo listens at what the own hostname means, where no GLOO_SOCKET_IFNAME says another thing."""
    if not evidence.has_several_servers:
        return
    local: dict[int, Resolved] = {}
    for index, facts in sorted(evidence.facts.items()):
        table_names = [name for name in names_of(evidence.cluster.servers[index]) if not is_address(name)]
        own_names = [*table_names, *([] if _chooses_gloo(facts) else [facts.hostname])]
        for meaning in (found for name in own_names if name not in LOCAL_NAMES and (found := facts.meaning(name))):
            if meaning.addresses and _is_local(meaning.addresses):
                local.setdefault(index, meaning)
            elif not meaning.addresses and meaning.name not in table_names:
                yield Finding(
                    "own-name-unknown", Topic.NAMES, Severity.RISKY, (index,),
                    f"{evidence.named([index])} calls itself {facts.hostname}, and does not know what that means",
                    "add the name with the server's address to its /etc/hosts, or set GLOO_SOCKET_IFNAME",
                )  # fmt: skip
    if local:
        yield _own_loopback(evidence, local)


def differing_names(evidence: Evidence) -> Iterator[Finding]:
    """Loopback is told of by another rule."""
    for owner, name in _table_names(evidence):
        meanings = {
            index: frozenset(found.addresses)
            for index, facts in evidence.facts.items()
            if (found := facts.meaning(name)) and found.addresses and not _is_local(found.addresses)
        }
        first = min(meanings, default=None)
        others = [index for index in meanings if first is not None and not meanings[index] & meanings[first]]
        if first is not None and others:
            one, other = (", ".join(sorted(meanings[index])) for index in (first, min(others)))
            yield Finding(
                "name-differs", Topic.NAMES, Severity.RISKY, tuple(sorted({owner, first, *others})),
                f"{name} is {one} on {evidence.named([first])}, and {other} on {evidence.named(others)}", _HINT_HOSTS,
            )  # fmt: skip


def slow_names(evidence: Evidence) -> Iterator[Finding]:
    for index, facts in sorted(evidence.facts.items()):
        slowest = max(facts.resolved, key=lambda one: one.seconds, default=None)
        if slowest is not None and slowest.addresses and slowest.seconds > SLOW_S:
            yield Finding(
                "slow-name", Topic.NAMES, Severity.RISKY, (index,),
                f"{evidence.named([index])} takes {slowest.seconds:.1f} s to find out what {slowest.name} means",
                "the first name server of /etc/resolv.conf may be silent; /etc/hosts asks none",
            )  # fmt: skip


def foreign_address(evidence: Evidence) -> Iterator[Finding]:
    """What the table calls a server by should be an address of its interfaces: libraries listen there."""
    for index, facts in sorted(evidence.facts.items()):
        name = evidence.name(index)
        meaning = facts.meaning(name)
        own = {address for interface in facts.interfaces for address in interface.addresses}
        if not evidence.has_several_servers or meaning is None or not meaning.addresses or _is_local(meaning.addresses):
            continue
        if own and not own.intersection(meaning.addresses):
            means = "" if is_address(name) else f" ({meaning.addresses[0]})"
            yield Finding(
                "address-not-own", Topic.NAMES, Severity.RISKY, (index,),
                f"{name}{means} is no address of {facts.hostname}, which answered for it: what listens there is "
                "elsewhere, or behind a translation of addresses",
                "a table should have the address that `ip addr` shows on that server; in containers use the host's network",
            )  # fmt: skip


def _table_names(evidence: Evidence) -> Iterator[tuple[int, str]]:
    for owner, server in enumerate(evidence.cluster.servers):
        yield from ((owner, name) for name in names_of(server) if not is_address(name))


def _unknown(evidence: Evidence, name: str, without: tuple[int, ...]) -> str:
    """Of servers that have not answered nobody can say what they know."""
    if len(without) == len(evidence.cluster.servers):
        return f"{name} means something on no server"
    if len(without) == len(evidence.facts):
        return f"{name} means nothing on {evidence.named(without)}"
    return f"{name} is known, but not on {evidence.named(without)}"


def _is_local(addresses: tuple[str, ...]) -> bool:
    return all(map(is_loopback, addresses))


def _chooses_gloo(facts: Facts) -> bool:
    return bool(dict(facts.interface_variables).get("GLOO_SOCKET_IFNAME"))


def _own_loopback(evidence: Evidence, meanings: Mapping[int, Resolved]) -> Finding:
    """One for all: Debian does it to every server alike."""
    meaning = meanings[min(meanings)]
    whose = "its own name" if len(meanings) == 1 else "their own names"
    takes = "takes" if len(meanings) == 1 else "take"
    return Finding(
        "own-name-is-loopback", Topic.NAMES, Severity.RISKY, tuple(sorted(meanings)),
        f"{evidence.named(meanings)} {takes} {whose} for loopback, {meaning.name} for {meaning.addresses[0]}: what "
        "listens there (gloo does) is reached by no other server",
        "give the name the server's real address in its /etc/hosts (Debian writes 127.0.1.1 there), or set "
        "GLOO_SOCKET_IFNAME",
    )  # fmt: skip
