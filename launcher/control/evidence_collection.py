"""Collects the evidence for a verdict after a failure: reports from servers, and checks of their connections.

Before a rank is blamed only because others wait for it, servers check their connections in two rounds:

    1. With few servers: every pair, in one direction. With many: each with the next one and with the first one, and
       pairs that failure messages name.
    2. Failed pairs again, in both directions, also on the ranks' own ports.

Two servers are apart if all these connections failed. A firewall does not separate servers if it allows
ranks' ports or connections in one direction, since established connections work both ways. Two servers are also apart
if they can connect but lose large packets, and both report this in the second round.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

from launcher.control.events import Diagnosed, EvidenceReport, Pair, ProbeResult, Setup
from launcher.control.orders import Apart, Order, ProbeReach, ProbeTarget

ALL_PAIRS = 16  # up to this number of servers, every pair is tried
MAX_TWICE = 64  # maximum number of pairs in the second round
TRY_S = 2.0  # long enough to retransmit a lost first packet
ANSWER_S = 4.0  # extra time for busy agents, and for the check of large packets


class EvidenceCollection:
    """Collects the evidence of all servers for one attempt. Reports may arrive before `open` is called."""

    def __init__(self, setup: Setup, first_server: int) -> None:
        """Start without any reports. `first_server` is the server of rank 0."""
        self._setup = setup
        self._first_server = first_server
        self._reported: set[int] = set()
        self._ports: dict[int, int] = {}  # by server: its port for reachability checks
        self._reach: ReachCheck | None = None
        self.due_s: float | None = None  # latest time of the next step, monotonic

    def open(self, now_s: float) -> None:
        self.due_s = now_s + self._setup.evidence_limit_s if self._setup.evidence_limit_s else None

    def take(self, event: EvidenceReport | ProbeResult) -> None:
        if isinstance(event, ProbeResult):
            if self._reach is not None:
                self._reach.take(event)
            return
        if event.port is not None:
            self._ports[event.server] = event.port
        self._reported.add(event.server)

    def awaited(self, able: Collection[int]) -> set[int]:
        """Return the servers in `able` that have not reported yet."""
        return set(able) - self._reported

    def step(
        self, there: Collection[int], able: Collection[int], quiet: Collection[int], now_s: float
    ) -> Sequence[Order] | None:
        """Return the next orders, or None once the evidence is as complete as possible.

        A silent server may be lost, which would explain the failure, so it is waited for until that is known. `there`
        are connected servers, `able` are servers that can still report, and `quiet` are silent servers.
        """
        if self._reach is not None:
            orders = self._reach.step(there, now_s)
            self.due_s = self._reach.due_s
            return None if self._reach.over else orders
        awaited = self.awaited(able)
        if awaited and (self.due_s is None or now_s < self.due_s):
            return ()
        if awaited.intersection(quiet):
            self.due_s = now_s + self._setup.look_again_s
            return ()
        return None

    @property
    def checks_reach(self) -> bool:
        """True once servers have been asked to check their connections."""
        return self._reach is not None

    def check_reach(self, found: Diagnosed, there: Collection[int], master_port: int, now_s: float) -> Sequence[Order]:
        """Start to check which servers can reach each other, and return the first orders."""
        ports = {server: port for server, port in self._ports.items() if server in there}
        self._reach = ReachCheck(ports, first_server=self._first_server, master_port=master_port, named=found.named)
        orders = self._reach.begin(now_s)
        self.due_s = self._reach.due_s
        return orders

    @property
    def apart(self) -> tuple[Apart, ...]:
        """The pairs of servers that are known to be unable to reach each other."""
        return () if self._reach is None else self._reach.apart


class ReachCheck:
    """Checks which servers can connect to each other. Call `begin`, `take` for each answer, and `step` until `over`."""

    def __init__(
        self, ports: Mapping[int, int], *, first_server: int, master_port: int, named: Iterable[Pair] = ()
    ) -> None:
        """Prepare a check of the servers in `ports`, which maps each server to the port to connect to.

        `named` are pairs that failure messages name. `first_server` has rank 0, which listens on `master_port`.
        """
        self._ports = dict(ports)
        self._first, self._master_port = first_server, master_port
        self._pairs = pairs_of(sorted(ports), first_server, named)
        self._failed: dict[Pair, str] = {}  # in this round
        self._lossy: set[Pair] = set()  # in this round
        self._suspects: dict[Pair, str] = {}  # failures of the first round
        self._rank_ports: dict[int, tuple[int, ...]] = {}  # by server: ports on which its ranks listen
        self._number = 0
        self._asked: set[int] = set()  # in this round
        self._awaited: set[int] = set()  # asked, but have not answered
        self._tried: dict[int, set[int]] = {}  # by asked server: its targets in this round
        self.due_s = 0.0  # latest time of the next step
        self.over = False
        self.apart: tuple[Apart, ...] = ()

    def begin(self, now_s: float) -> list[ProbeReach]:
        asked = {
            index: [ProbeTarget(to, (self._ports[to],)) for one, to in self._pairs if one == index]
            for index in self._ports
        }
        return self._ask(asked, now_s)

    def take(self, answer: ProbeResult) -> None:
        """Record the answer of a server. Results that were not requested are ignored."""
        if answer.number != self._number or answer.server not in self._awaited:
            return
        self._awaited.discard(answer.server)
        self._rank_ports[answer.server] = answer.ports
        tried = self._tried[answer.server]
        self._failed |= {(answer.server, to): why for to, why in answer.unreached if to in tried}
        self._lossy |= {(answer.server, to) for to in answer.lossy if to in tried}

    def step(self, there: Collection[int], now_s: float) -> list[ProbeReach]:
        """Return the next orders, if any. `there` holds the servers that are still connected."""
        if any(index in there for index in self._awaited) and now_s < self.due_s:
            return []
        if self._number == 1 and (self._failed or self._lossy):
            suspects = dict.fromkeys(sorted(self._lossy), "") | self._failed
            self._suspects = dict(itertools.islice(suspects.items(), MAX_TWICE))
            asked: dict[int, list[ProbeTarget]] = {}
            for one, other in self._suspects:
                for source, to in ((one, other), (other, one)):
                    own = (self._master_port,) if to == self._first else ()
                    ports = (self._ports[to], *own, *self._rank_ports.get(to, ()))
                    asked.setdefault(source, []).append(ProbeTarget(to, ports))
            self._failed, self._lossy = {}, set()
            return self._ask({source: targets for source, targets in asked.items() if source in there}, now_s)
        if self._number > 1:
            unreached = [pair for pair in self._suspects if {pair, pair[::-1]} <= self._failed.keys()]
            # If large packets are lost on the way to a server, requests to it may be lost too.
            answered = self._asked - self._awaited
            lossy = [
                pair
                for pair in self._suspects
                if (heard := {each for each in (pair, pair[::-1]) if each[0] in answered}) and heard <= self._lossy
            ]
            self.apart = tuple(
                Apart(
                    (one, other),
                    (self._ports[one], self._ports[other]),
                    self._suspects[one, other],
                    loses_large=not unreached,
                )
                for one, other in unreached or lossy
            )
        self.over = True
        return []

    def _ask(self, asked: Mapping[int, Iterable[ProbeTarget]], now_s: float) -> list[ProbeReach]:
        self._number += 1
        self._asked, self._awaited = set(asked), set(asked)
        self.due_s = now_s + TRY_S + ANSWER_S
        orders = [ProbeReach(index, self._number, tuple(targets), TRY_S) for index, targets in asked.items()]
        self._tried |= {order.server: {target.server for target in order.targets} for order in orders}
        return orders


def pairs_of(indices: Sequence[int], first: int, named: Iterable[Pair]) -> list[Pair]:
    """Return the pairs of servers to check. For many servers, the number of pairs grows only linearly."""
    if len(indices) <= ALL_PAIRS:
        return list(itertools.combinations(indices, 2))
    known = set(indices)
    ring = zip(indices, (*indices[1:], indices[0]), strict=True)
    star = ((index, first) for index in indices if index != first and first in known)
    also = (pair for pair in itertools.islice(named, len(indices)) if pair[0] != pair[1] and known.issuperset(pair))
    return list(dict.fromkeys((*ring, *star, *also)))


def cut_off(pairs: Sequence[Pair], count: int) -> int | None:
    """Return the one server that could not reach any other, or None if no server or several servers are cut off.

    `pairs` are the servers that could not reach each other, `count` is the number of servers.
    """
    shared = set(pairs[0]).intersection(*pairs[1:]) if pairs else set()
    enough = count - 1 if count <= ALL_PAIRS else 2
    return shared.pop() if len(shared) == 1 and len(pairs) >= max(2, enough) else None
