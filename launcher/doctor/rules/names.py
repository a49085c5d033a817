"""Rules about server names: how servers resolve them, and whether servers have their addresses from the table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from launcher.core.machine.interfaces import addresses_of, names_of
from launcher.core.text import some_of
from launcher.doctor.facts import Resolved
from launcher.doctor.finding import MAX_SHOWN, Answer, Evidence, Finding, PerServer, Rule, Severity, Topic, groups
from launcher.doctor.network_facts import is_address, is_loopback

MAX_RESOLVE_S = 1.0  # per name
LOCAL_NAMES = ("localhost", "localhost.localdomain")
_HINT_HOSTS = "use the same lines in /etc/hosts, or the same name server, on all servers"
# Messages about unknown names; {names}, {are}, {their} and {servers} are filled in.
_NOWHERE = "no server can resolve {names}"
_NOT_THERE = "{servers} cannot resolve {names}"
_ONLY_OWN = "{names} {are} resolved only on {their} own server"
_ELSEWHERE = "{servers} cannot resolve {names}, although other servers can"
_UNANSWERED = "{servers}: the lookup of {names} has no answer after {seconds:g} s"


def unknown_names(evidence: Evidence) -> Iterator[Finding]:
    """Check that all servers can resolve all names. Report names together if the same servers cannot resolve them."""
    if not evidence.has_several_servers:
        return
    alike: dict[tuple[str, frozenset[int]], dict[str, set[tuple[int, int]]]] = defaultdict(dict)
    for owner, name in _table_names(evidence):
        found = {index: one for index, facts in evidence.facts.items() if (one := facts.resolution(name))}
        is_known = any(one.addresses for one in found.values())
        for answered in (True, False):
            without = frozenset(index for index, one in found.items() if not one.addresses and one.answered is answered)
            if without:
                words = _who_knows(evidence, owner, without, is_known=is_known) if answered else _UNANSWERED
                key = words, frozenset() if words == _ONLY_OWN else without
                alike[key].setdefault(name, set()).update((owner, index) for index in without)
    for (words, _), names in alike.items():
        pairs = set[tuple[int, int]]().union(*names.values())
        without = frozenset(index for _, index in pairs)
        first = next(iter(names))
        resolutions = (evidence.facts[index].resolution(first) for index in without)
        message = words.format(
            names=some_of(list(names), MAX_SHOWN), are="are" if len(names) > 1 else "is", their="their" if len(names) > 1 else "its",
            servers=evidence.named(without), seconds=max((one.seconds for one in resolutions if one), default=0.0),
        )  # fmt: skip
        servers = tuple(sorted({index for pair in pairs for index in pair}))
        yield Finding("unknown-name", Topic.NAMES, Severity.BREAKS, servers, message, _HINT_HOSTS)


def _who_knows(evidence: Evidence, owner: int, without: frozenset[int], *, is_known: bool) -> str:
    """Return a message template that says which servers do not know the name of server `owner`.

    `is_known` is True if another server has resolved the name. Servers that did not answer may know it.
    """
    if len(without) == len(evidence.cluster.servers):
        return _NOWHERE
    if not is_known:
        return _NOT_THERE
    others = set(evidence.facts) - {owner}
    return _ONLY_OWN if without == others and len(others) > 1 else _ELSEWHERE


def loopback(evidence: Evidence) -> Iterator[Finding]:
    """Check that no server's name resolves to loopback on another server, which would then connect to itself."""
    for owner, name in _table_names(evidence) if evidence.has_several_servers else ():
        found = {index: one for index, facts in evidence.facts.items() if (one := facts.resolution(name))}
        others = sorted(index for index, one in found.items() if index != owner and _is_local(one))
        if others and name not in LOCAL_NAMES:
            yield Finding(
                "name-is-loopback", Topic.NAMES, Severity.BREAKS, tuple(sorted({owner, *others})),
                f"{name} resolves to loopback ({found[others[0]].addresses[0]}) on {evidence.named(others)}: ranks there "
                "could not connect to it", _HINT_HOSTS,
            )  # fmt: skip


def own_names(evidence: Evidence) -> Iterator[Finding]:
    """Check that no server resolves its own name to loopback. gloo listens on the address of this name."""
    if not evidence.has_several_servers:
        return
    local: dict[int, Resolved] = {}
    nameless: list[int] = []
    for index, facts in evidence.answers():
        table_names = [name for name in names_of(evidence.cluster.servers[index]) if not is_address(name)]
        has_interface = facts.ranks_interface or dict(facts.interface_variables).get("GLOO_SOCKET_IFNAME")
        for name in [*table_names, *([] if has_interface else [facts.hostname])]:
            resolution = None if name in LOCAL_NAMES else facts.resolution(name)
            if resolution is not None and _is_local(resolution):
                local.setdefault(index, resolution)
            elif resolution is not None and not resolution.addresses and name not in table_names:
                nameless.append(index)
    several = len(nameless) > 1
    if nameless:  # one finding for all, since they probably have the same cause
        hostnames = some_of([evidence.facts[index].hostname for index in nameless], MAX_SHOWN)
        calls = f"have the hostnames {hostnames}, but" if several else f"has the hostname {hostnames}, but"
        yield Finding(
            "own-name-unknown", Topic.NAMES, Severity.RISKY, tuple(nameless),
            f"{evidence.named(nameless)} {calls} cannot resolve {'them' if several else 'it'}",
            f"add {'each name with its' if several else 'the name with the'} server's address to its /etc/hosts, or set "
            "GLOO_SOCKET_IFNAME",
        )  # fmt: skip
    if local:  # on Debian, a machine's own name is 127.0.1.1
        first = local[min(local)]
        own = "resolve their own names" if len(local) > 1 else "resolves its own name"
        yield Finding(
            "own-name-is-loopback", Topic.NAMES, Severity.RISKY, tuple(sorted(local)),
            f"{evidence.named(local)} {own} to loopback, {first.name} to {first.addresses[0]}: gloo listens at this "
            "address, and other servers cannot reach it",
            "write the server's real address for its name into its /etc/hosts (Debian writes 127.0.1.1), or set "
            "GLOO_SOCKET_IFNAME",
        )  # fmt: skip


def differing_names(evidence: Evidence) -> Iterator[Finding]:
    """Check that each name resolves to a common address on all servers that can resolve it."""
    for owner, name in _table_names(evidence):
        addresses = {
            index: frozenset(one.addresses)
            for index, facts in evidence.facts.items()
            if (one := facts.resolution(name)) and one.addresses and not _is_local(one)
        }
        first = min(addresses, default=0)
        if others := [index for index in addresses if not addresses[index] & addresses[first]]:
            here, there = (", ".join(sorted(addresses[index])) for index in (first, min(others)))
            yield Finding(
                "name-differs", Topic.NAMES, Severity.RISKY, tuple(sorted({owner, first, *others})),
                f"{name} is {here} on {evidence.named([first])}, but {there} on {evidence.named(others)}", _HINT_HOSTS,
            )  # fmt: skip


def slow_name(answer: Answer) -> Mapping[str, Any] | None:
    slowest = max(answer.facts.resolved, key=lambda one: one.seconds, default=None)
    if slowest is None or not slowest.addresses or slowest.seconds <= MAX_RESOLVE_S:
        return None
    return {"seconds": slowest.seconds, "name": slowest.name}


def same_hostname(evidence: Evidence) -> Iterator[Finding]:
    """Check that no two machines have the same hostname: MPI would treat their ranks as ranks of a single machine."""
    for servers in groups({index: facts.hostname for index, facts in evidence.facts.items()}).values():
        if len({evidence.facts[index].machine or index for index in servers}) > 1:
            yield Finding(
                "same-hostname", Topic.NAMES, Severity.NOTE, servers,
                f"{evidence.named(servers)} share a hostname, {evidence.facts[servers[0]].hostname}: MPI takes them for one",
                "give each machine a unique hostname: `hostnamectl hostname NAME`",
            )  # fmt: skip


def foreign_address(answer: Answer) -> Mapping[str, Any] | None:
    """Check that the address of each server in the table belongs to one of the server's network interfaces."""
    resolution = answer.facts.resolution(answer.name)
    own = addresses_of(address for interface in answer.facts.interfaces for address in interface.addresses)
    if not answer.evidence.has_several_servers or resolution is None or not resolution.addresses or not own:
        return None
    if _is_local(resolution) or own & addresses_of(resolution.addresses):
        return None
    address = "" if is_address(answer.name) else f" ({resolution.addresses[0]})"
    return {"name": answer.name, "address": address, "host": answer.facts.hostname}


RULES: tuple[Rule, ...] = (
    unknown_names,
    loopback,
    own_names,
    differing_names,
    same_hostname,
    PerServer(
        "slow-name", Topic.NAMES, Severity.RISKY, slow_name, "{server} takes {seconds:.1f} s to resolve {name}",
        "check the first name server in /etc/resolv.conf, or add the names to /etc/hosts",
    ),
    PerServer(
        "address-not-own", Topic.NAMES, Severity.RISKY, foreign_address,
        "{name}{address} is not an address of {host}, although {host} answered: the address is translated (NAT), or "
        "belongs to another machine",
        "use an address that `ip addr` shows on that server; in containers, use the host's network",
    ),
)  # fmt: skip


def _table_names(evidence: Evidence) -> Iterator[tuple[int, str]]:
    for owner, server in enumerate(evidence.cluster.servers):
        yield from ((owner, name) for name in names_of(server) if not is_address(name))


def _is_local(resolution: Resolved) -> bool:
    return bool(resolution.addresses) and all(map(is_loopback, resolution.addresses))
