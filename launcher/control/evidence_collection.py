"""Between a failure and its verdict: which servers have reported their evidence, and which reach each other.

Before a rank is blamed only because others miss it, servers check their connections:

    first   every pair of few servers, one way; of many each with the next one, with the first, and as failures name them
    then    of a pair that failed the other way too, and both ways by ports on which the ranks themselves listen

Two servers are apart if none of these connections stood. So a firewall that lets ranks through parts no servers, nor
does one that refuses new connections in one direction only: packets of those that stand pass both ways. Two servers are
also apart if connections stand and large packets are lost on them, as both find that answer in the second round.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

from launcher.control.events import Diagnosed, EvidenceReport, Pair, ProbeResult, Setup
from launcher.control.orders import Apart, Order, ProbeReach, ProbeTarget

ALL_PAIRS = 16  # servers of which every pair is tried
MAX_TWICE = 64  # pairs that are looked at again
TRY_S = 2.0  # enough for a first packet that was lost to be sent again
ANSWER_S = 1.5  # beyond that, for agents that are busy


class EvidenceCollection:
    """The inquiry into one attempt. A report may come before it is opened, and after it is closed."""

    def __init__(self, setup: Setup, first_server: int) -> None:
        """`first_server`: that of the attempt's rank 0."""
        self._setup = setup
        self._first_server = first_server
        self._reported: set[int] = set()
        self._ports: dict[int, int] = {}  # where these servers can be reached
        self._reach: ReachCheck | None = None
        self.due_s: float | None = None  # when to step at the latest, monotonic

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
        """Return those of the servers that are `able` to report which have not."""
        return set(able) - self._reported

    def step(
        self, there: Collection[int], able: Collection[int], quiet: Collection[int], now_s: float
    ) -> Sequence[Order] | None:
        """Return what to order meanwhile; None once the evidence is as complete as it gets.

        A server that is silent may be lost, and then that is the cause: it is waited for until that is seen.
        `there`: the servers that are heard; `able`: those of them that can still report; `quiet`: those that are silent.
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
        """True once it has been asked which servers reach each other."""
        return self._reach is not None

    def check_reach(self, found: Diagnosed, there: Collection[int], master_port: int, now_s: float) -> Sequence[Order]:
        """Return what to order first to find out which servers reach each other."""
        ports = {server: port for server, port in self._ports.items() if server in there}
        self._reach = ReachCheck(ports, first_server=self._first_server, master_port=master_port, named=found.named)
        orders = self._reach.begin(now_s)
        self.due_s = self._reach.due_s
        return orders

    @property
    def apart(self) -> tuple[Apart, ...]:
        """The servers that are known not to reach each other."""
        return () if self._reach is None else self._reach.apart


class ReachCheck:
    """One check: `begin` it, `take` answers, `step` until it is `over`, which takes a few seconds at most."""

    def __init__(
        self, ports: Mapping[int, int], *, first_server: int, master_port: int, named: Iterable[Pair] = ()
    ) -> None:
        """Check the servers in `ports`, each of which can be reached at its port. `named`: pairs that failures name.

        `first_server`: that of rank 0, where ranks meet at `master_port`.
        """
        self._ports = dict(ports)
        self._first, self._master_port = first_server, master_port
        self._pairs = pairs_of(sorted(ports), first_server, named)
        self._failed: dict[Pair, str] = {}  # of this round
        self._lossy: set[Pair] = set()  # of this round
        self._suspects: dict[Pair, str] = {}  # of the first round
        self._rank_ports: dict[int, tuple[int, ...]] = {}  # on which ranks listen, by server
        self._number = 0
        self._asked: set[int] = set()  # in this round
        self._awaited: set[int] = set()  # those of them that have not answered
        self._tried: dict[int, set[int]] = {}  # the servers that each of those that are asked is to try, in this round
        self.due_s = 0.0  # when to step at the latest
        self.over = False
        self.apart: tuple[Apart, ...] = ()

    def begin(self, now_s: float) -> list[ProbeReach]:
        asked = {
            index: [ProbeTarget(to, (self._ports[to],)) for one, to in self._pairs if one == index]
            for index in self._ports
        }
        return self._ask(asked, now_s)

    def take(self, answer: ProbeResult) -> None:
        """Take what a server has found; of servers that it was not to try, nothing counts."""
        if answer.number != self._number or answer.server not in self._awaited:
            return
        self._awaited.discard(answer.server)
        self._rank_ports[answer.server] = answer.ports
        tried = self._tried[answer.server]
        self._failed |= {(answer.server, to): why for to, why in answer.unreached if to in tried}
        self._lossy |= {(answer.server, to) for to in answer.lossy if to in tried}

    def step(self, there: Collection[int], now_s: float) -> list[ProbeReach]:
        """Return what to ask next, if anything. `there`: the servers that can still answer."""
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
            # Its requests may be lost on the way to a server that large packets do not reach.
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
    """Return the pairs to try: as many as there are servers, or a few times that."""
    if len(indices) <= ALL_PAIRS:
        return list(itertools.combinations(indices, 2))
    known = set(indices)
    ring = zip(indices, (*indices[1:], indices[0]), strict=True)
    star = ((index, first) for index in indices if index != first and first in known)
    also = (pair for pair in itertools.islice(named, len(indices)) if pair[0] != pair[1] and known.issuperset(pair))
    return list(dict.fromkeys((*ring, *star, *also)))


def cut_off(pairs: Sequence[Pair], count: int) -> int | None:
    """Return the one server that reaches none of the others that it was to try; None where it is not one alone.

    `count`: how many servers there are.
    """
    shared = set(pairs[0]).intersection(*pairs[1:]) if pairs else set()
    enough = count - 1 if count <= ALL_PAIRS else 2
    return shared.pop() if len(shared) == 1 and len(pairs) >= max(2, enough) else None
