"""Between a failure and its verdict: which servers have reported their evidence, and which reach each other."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from launcher.control.events import Diagnosed, EvidenceReport, ProbeResult
from launcher.control.orders import Apart, Order
from launcher.control.reach import ReachCheck
from launcher.control.setup import Setup


class Inquiry:
    """The inquiry into one attempt. A report may come before it is opened, and after it is closed."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._reported: set[int] = set()
        self._ports: dict[int, int] = {}  # where these servers can be reached
        self._reach: ReachCheck | None = None
        self.due_s: float | None = None  # when to step at the latest, monotonic

    def open(self, now_s: float) -> None:
        """Begin to wait for reports."""
        self.due_s = now_s + self._setup.evidence_limit_s if self._setup.evidence_limit_s else None

    def take(self, event: EvidenceReport | ProbeResult) -> None:
        """Take what a server has reported."""
        if isinstance(event, ProbeResult):
            if self._reach is not None:
                self._reach.take(event)
            return
        if event.port is not None:
            self._ports[event.server] = event.port
        if event.understood:
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

    def asks_reach(self, found: Diagnosed) -> bool:
        """Return whether the verdict has to wait until it is known which servers reach each other."""
        return found.asks_reach and self._reach is None

    def check_reach(self, found: Diagnosed, there: Collection[int], master_port: int, now_s: float) -> Sequence[Order]:
        """Return what to order first to find that out."""
        ports = {server: port for server, port in self._ports.items() if server in there}
        self._reach = ReachCheck(
            ports, first_server=self._setup.first_server, master_port=master_port, named=found.named
        )
        orders = self._reach.begin(now_s)
        self.due_s = self._reach.due_s
        return orders

    @property
    def apart(self) -> tuple[Apart, ...]:
        """The servers that are known not to reach each other."""
        return () if self._reach is None else self._reach.apart
