"""What the names of servers mean on each of them, and whether addresses are where the table has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from launcher.core.interfaces import addresses_of, names_of
from launcher.doctor.facts import Facts, Resolved
from launcher.doctor.finding import Evidence, Finding, Severity, Topic, listed
from launcher.doctor.names import is_address, is_loopback

SLOW_S = 1.0  # for one name
NOWHERE, NOT_THERE, ONLY_OWN, ELSEWHERE = "nowhere", "not there", "only own", "elsewhere"
LOCAL_NAMES = ("localhost", "localhost.localdomain")
_HINT_HOSTS = "give every server the same lines in /etc/hosts, or let all ask the same name server"


def unknown_names(evidence: Evidence) -> Iterator[Finding]:
    """Names that the same servers do not know have one cause."""
    if not evidence.has_several_servers:
        return
    alike: dict[tuple[bool, str, frozenset[int]], dict[str, set[tuple[int, int]]]] = defaultdict(dict)
    for owner, name in _table_names(evidence):
        found = {index: meaning for index, facts in evidence.facts.items() if (meaning := facts.meaning(name))}
        for answered in (True, False):
            without = {index for index, one in found.items() if not one.addresses and one.answered is answered}
            if without:
                known = any(one.addresses for one in found.values())
                where = _where(evidence, owner, without, known=known)
                those = frozenset() if where == ONLY_OWN else frozenset(without)
                alike[answered, where, those].setdefault(name, set()).update((owner, index) for index in without)
    for (answered, where, _), names in alike.items():
        pairs = set[tuple[int, int]]().union(*names.values())
        servers = tuple(sorted({index for pair in pairs for index in pair}))
        those = frozenset(index for _, index in pairs)
        told = (
            _unknown(evidence, tuple(names), where, those) if answered else _unanswered(evidence, tuple(names), those)
        )
        yield Finding("unknown-name", Topic.NAMES, Severity.BREAKS, servers, told, _HINT_HOSTS)


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
    nameless: list[int] = []
    for index, facts in sorted(evidence.facts.items()):
        table_names = [name for name in names_of(evidence.cluster.servers[index]) if not is_address(name)]
        own_names = [*table_names, *([] if _chooses_gloo(facts) else [facts.hostname])]
        for meaning in (found for name in own_names if name not in LOCAL_NAMES and (found := facts.meaning(name))):
            if meaning.addresses and _is_local(meaning.addresses):
                local.setdefault(index, meaning)
            elif not meaning.addresses and meaning.name not in table_names:
                nameless.append(index)
    if nameless:
        yield _own_unknown(evidence, nameless)
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
        own = addresses_of(address for interface in facts.interfaces for address in interface.addresses)
        if not evidence.has_several_servers or meaning is None or not meaning.addresses or _is_local(meaning.addresses):
            continue
        if own and not own & addresses_of(meaning.addresses):
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


def _where(evidence: Evidence, owner: int, without: set[int], *, known: bool) -> str:
    """Of servers that have not answered, or that nobody has answered, nobody can say what they know.

    `known`: somebody has said what the name means.
    """
    if len(without) == len(evidence.cluster.servers):
        return NOWHERE
    if not known:
        return NOT_THERE
    others = set(evidence.facts) - {owner}
    return ONLY_OWN if without == others and len(others) > 1 else ELSEWHERE


def _unknown(evidence: Evidence, names: tuple[str, ...], where: str, without: Iterable[int]) -> str:
    words, several = listed(names), len(names) > 1
    if where == NOWHERE:
        return f"{words} mean{'' if several else 's'} something on no server"
    if where == NOT_THERE:
        return f"{words} mean{'' if several else 's'} nothing on {evidence.named(without)}"
    known = f"{words} {'are' if several else 'is'} known"
    return (
        f"{known} on {'their' if several else 'its'} own server only"
        if where == ONLY_OWN
        else (f"{known}, but not on {evidence.named(without)}")
    )


def _unanswered(evidence: Evidence, names: tuple[str, ...], servers: Iterable[int]) -> str:
    """Somebody may know them; nobody has said so."""
    waited_s = max(meaning.seconds for index in servers if (meaning := evidence.facts[index].meaning(names[0])))
    return f"what {listed(names)} mean{'' if len(names) > 1 else 's'}: no answer within {waited_s:g} s on {evidence.named(servers)}"


def _is_local(addresses: tuple[str, ...]) -> bool:
    return all(map(is_loopback, addresses))


def _chooses_gloo(facts: Facts) -> bool:
    """Whether ranks are told an interface, by the user or by tlaunch."""
    return facts.ranks_interface is not None or bool(dict(facts.interface_variables).get("GLOO_SOCKET_IFNAME"))


def _own_unknown(evidence: Evidence, servers: Sequence[int]) -> Finding:
    """One for all: a network without names of its own has the same cause on each."""
    hostnames = listed([evidence.facts[index].hostname for index in servers])
    several = len(servers) > 1
    calls = f"call themselves {hostnames}, and do" if several else f"calls itself {hostnames}, and does"
    return Finding(
        "own-name-unknown", Topic.NAMES, Severity.RISKY, tuple(servers),
        f"{evidence.named(servers)} {calls} not know what that means",
        f"add {'each name with its' if several else 'the name with the'} server's address to its /etc/hosts, or set "
        "GLOO_SOCKET_IFNAME",
    )  # fmt: skip


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
