"""Which servers reach each other, asked of their agents before a rank is blamed for no more than that others miss it.

    first   every pair of few servers, one way; of many each with the next one, with the first, and as failures name them
    then    of a pair that failed the other way too, and both ways by ports on which the ranks themselves listen

Two servers are apart where nothing of all that came to stand. A firewall that lets ranks through thus parts nobody, and
one that refuses new connections in one direction only does not either: packets of those that stand pass both ways.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence

from launcher.core.frozen import frozen
from launcher.core.interfaces import address_of, names_of
from launcher.core.messages import ProbeRequest, ProbeResult, ProbeTarget
from launcher.core.records import Server
from launcher.engines.cluster.agent_connection import AgentConnection

Pair = tuple[int, int]  # from, to: by server_index
ALL_PAIRS = 16  # servers of which every pair is tried
MAX_TWICE = 64  # pairs that are looked at again
TRY_S = 2.0  # enough for a first packet that was lost to be sent again
ANSWER_S = 1.5  # beyond that, for agents that are busy
MAX_ADDRESSES = 4


@frozen
class Apart:
    """Two servers that do not reach each other."""

    pair: Pair
    ports: Pair  # that were tried of the one and of the other, beside those of ranks
    why: str  # what came of it


class ReachCheck:
    """One check. `take` answers, `step` until it says that all is known: a few seconds at most."""

    def __init__(
        self,
        peers: Mapping[int, AgentConnection],
        servers: Sequence[Server],
        doors: Mapping[int, int],
        *,
        master: tuple[int, int],
        resolved: Mapping[str, Iterable[object]],
        named: Iterable[Pair] = (),
    ) -> None:
        """Begin it, among those of `peers` that have a port in `doors`. `named`: pairs that failures speak of.

        `master`: the server of rank 0, and the port where ranks meet there. `resolved`: what names of servers mean.
        """
        self._peers, self._servers, self._doors = peers, servers, doors
        self._resolved, (self._first, self._master_port) = resolved, master
        self._failed: dict[Pair, str] = {}  # of this round
        self._suspects: dict[Pair, str] = {}  # of the first round
        self._ports: dict[int, tuple[int, ...]] = {}  # on which ranks listen, by server
        self._number = 0
        self._awaited: set[int] = set()
        self._tried: dict[int, set[int]] = {}  # whom each of those that are asked is to try, in this round
        self._deadline = 0.0
        self.apart: tuple[Apart, ...] = ()
        involved = sorted(index for index in doors if index in peers)
        pairs = pairs_of(involved, self._first, named)
        self._ask({index: [(to, (doors[to],)) for one, to in pairs if one == index] for index in involved})

    @property
    def due(self) -> float:
        """When to step at the latest, monotonic."""
        return self._deadline

    def take(self, server_index: int, answer: ProbeResult) -> None:
        """What a server has found. Of servers that it was not to try, nobody wants to hear."""
        if answer.number != self._number or server_index not in self._awaited:
            return
        self._awaited.discard(server_index)
        self._ports[server_index] = answer.ports
        tried = self._tried[server_index]
        self._failed |= {(server_index, to): why for to, why in answer.unreached if to in tried}

    def step(self) -> bool:
        """Whether it is over; then `apart` tells what was found."""
        if any(index in self._peers for index in self._awaited) and time.monotonic() < self._deadline:
            return False
        if self._number == 1 and self._failed:
            self._look_again()
            return False
        if self._number > 1:
            self.apart = tuple(
                Apart((one, other), (self._doors[one], self._doors[other]), why)
                for (one, other), why in self._suspects.items()
                if {(one, other), (other, one)} <= self._failed.keys()
            )
        return True

    def _look_again(self) -> None:
        self._suspects = dict(itertools.islice(self._failed.items(), MAX_TWICE))
        asked: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        for one, other in self._suspects:
            for source, to in ((one, other), (other, one)):
                own = (self._master_port,) if to == self._first else ()
                asked.setdefault(source, []).append((to, (self._doors[to], *own, *self._ports.get(to, ()))))
        self._failed = {}
        self._ask(asked)

    def _ask(self, asked: Mapping[int, Iterable[tuple[int, tuple[int, ...]]]]) -> None:
        self._number += 1
        self._awaited = {index for index in asked if index in self._peers}
        self._deadline = time.monotonic() + TRY_S + ANSWER_S
        for index in self._awaited:
            targets = tuple(ProbeTarget(to, self._addresses(to), ports) for to, ports in asked[index])
            self._tried[index] = {target.server_index for target in targets}
            self._peers[index].send(ProbeRequest(self._number, targets, TRY_S))

    def _addresses(self, server_index: int) -> tuple[str, ...]:
        """Those of the table, since ranks use them; else what its names mean, else where it comes from and what it says."""
        names = names_of(self._servers[server_index])
        peer = self._peers.get(server_index)
        # A machine may have many addresses, in no order, of which most lead nowhere from outside: bridges of containers.
        own = (peer.address, *(peer.hello.addresses if peer.hello else ())) if peer is not None else ()
        meant = [str(address) for name in names for address in self._resolved.get(name, ())]
        for found in ([name for name in names if address_of(name)], _of_others(meant), _of_others(own)):
            if found:
                return tuple(dict.fromkeys(found))[:MAX_ADDRESSES]
        return ()


def pairs_of(indices: Sequence[int], first: int, named: Iterable[Pair]) -> list[Pair]:
    """Whom to try: as many as there are servers, or few times that."""
    if len(indices) <= ALL_PAIRS:
        return list(itertools.combinations(indices, 2))
    known = set(indices)
    ring = zip(indices, (*indices[1:], indices[0]), strict=True)
    star = ((index, first) for index in indices if index != first and first in known)
    also = (pair for pair in itertools.islice(named, len(indices)) if pair[0] != pair[1] and known.issuperset(pair))
    return list(dict.fromkeys((*ring, *star, *also)))


def cut_off(pairs: Sequence[Pair], count: int) -> int | None:
    """The one server that reaches none of the others that it was to try; None where it is not one alone.

    `count`: how many servers there are.
    """
    shared = set(pairs[0]).intersection(*pairs[1:]) if pairs else set()
    enough = count - 1 if count <= ALL_PAIRS else 2
    return shared.pop() if len(shared) == 1 and len(pairs) >= max(2, enough) else None


def _of_others(addresses: Iterable[str]) -> list[str]:
    """Those of them by which another machine can be meant."""
    known = ((text, address_of(text)) for text in addresses)
    return [text for text, address in known if address and not (address.is_loopback or address.is_link_local)]
