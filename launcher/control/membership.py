"""The devices of an elastic run: which are left out, and which each attempt has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from launcher.control.events import ServerLost
from launcher.core.events import DevicesChanged
from launcher.core.records import DeviceAssignment, Elastic
from launcher.core.verdict import Role, Verdict

FAILURES = 2  # of a device's ranks, after which the device is left out
LOSSES = 3  # of a server within `LOSSES_COUNT_S`, after which its devices are
LOSSES_COUNT_S = 3600.0
PAUSE_S = 5.0  # between a server's return and the restart for it, after its first loss; each further one doubles it
MAX_PAUSE_S = 300.0


class Membership:
    """Devices are called by the rank that the whole rank table gives them."""

    def __init__(self, elastic: Elastic) -> None:
        self._elastic = elastic
        self._excluded = set(elastic.excluded)
        self._failures: Counter[int] = Counter()
        self._losses: dict[int, list[float]] = {}  # when each server was lost lately
        self._returned: dict[int, float] = {}  # by server that has come back: when ranks are restarted for it
        self.present: DeviceAssignment | None = None  # of the attempt that runs
        self._ports: dict[int, int] = {}  # by server: held there for ranks to meet, where the next rank 0 is on it

    def next(self, servers: Collection[int]) -> DeviceAssignment | None:
        """Return what the next attempt gets of the devices of these servers; None where no layout fits so few."""
        free = [
            device
            for device, server in enumerate(self._elastic.servers)
            if server in servers and device not in self._excluded
        ]
        layout = self._elastic.layouts[len(free)]
        if layout is None:
            return None
        return DeviceAssignment(tuple(free[: layout.world_size]), layout, spare=tuple(free[layout.world_size :]))

    def keeps_present(self, servers: Collection[int]) -> bool:
        """Return whether these servers have all devices of the present attempt."""
        return self.present is not None and all(self.server_of(device) in servers for device in self.present.devices)

    def has_ranks(self, server: int) -> bool:
        """Return whether the present attempt has ranks there."""
        return self.present is not None and any(self.server_of(device) == server for device in self.present.devices)

    def server_of(self, device: int) -> int:
        """Return the index of the server that has the device."""
        return self._elastic.servers[device]

    @property
    def ports(self) -> Mapping[int, int]:
        """The port that each server holds for ranks to meet there, by server; one that holds none is missing."""
        return self._ports

    def note_ports(self, ports: Iterable[tuple[int, int]]) -> None:
        """Note which ports servers hold for the next attempt."""
        self._ports.update(ports)

    def note_failure(self, verdict: Verdict, servers: Collection[int]) -> DevicesChanged | None:
        """Note whose ranks have failed; return the change if devices are left out for it.

        They stay where no layout fits the others. All ranks that fail alike say nothing of single devices. `servers`: those
        that are there.
        """
        failed = self.failed_devices(verdict)
        if self.present is None or len(failed) == len(self.present.devices) > 1:
            return None
        self._failures.update(failed)
        left_out = {device for device in failed if self._failures[device] >= FAILURES}
        self._excluded |= left_out
        if self.next(servers) is None:
            self._excluded -= left_out
            return None
        its = "its rank" if len(left_out) == 1 else "their ranks"
        return DevicesChanged(tuple(sorted(left_out)), (), f"{its} failed {FAILURES} times") if left_out else None

    def note_loss(self, loss: ServerLost, name: str, servers: Collection[int], now_s: float) -> DevicesChanged | None:
        """Record the loss of a server, called `name`; return the change if its devices are left out for that.

        They are not left out if no layout fits the other devices. `servers`: those that are connected.
        """
        server = loss.server
        self._returned.pop(server, None)
        if loss.finished or loss.is_own_fault:
            return None
        recent = [moment for moment in self._losses.get(server, ()) if now_s - moment < LOSSES_COUNT_S]
        count = len(recent) + 1
        self._losses[server] = [*recent, now_s]
        left_out = {device for device, its in enumerate(self._elastic.servers) if its == server} - self._excluded
        if count < LOSSES or not left_out or self.next(servers) is None:
            return None
        self._excluded |= left_out
        return DevicesChanged(tuple(sorted(left_out)), (), f"server {name} was lost {count} times")

    def note_return(self, server: int, now_s: float) -> float:
        """Record that a server has come back; return the seconds until ranks are restarted for it."""
        losses = len(self._losses.get(server, ()))
        pause_s = min(MAX_PAUSE_S, PAUSE_S * 2.0 ** max(0, losses - 1))
        self._returned[server] = now_s + pause_s
        return pause_s

    def forget_returns(self) -> None:
        """Plan no restart for returned servers: an attempt begins with all servers that are connected."""
        self._returned.clear()

    @property
    def restart_for_returned_s(self) -> float | None:
        """When ranks are restarted for all servers that have come back by then (monotonic); None: not."""
        return min(self._returned.values(), default=None)

    def failed_devices(self, verdict: Verdict) -> frozenset[int]:
        """Return the devices of the culprit, and of the ranks that failed like it; none where no rank is to blame."""
        if verdict.culprit is None or self.present is None:
            return frozenset()
        alike = {failure.global_rank for failure in verdict.failures if failure.role is Role.CAUSE}
        return frozenset(self.present.devices[rank] for rank in {verdict.culprit, *alike})

    def exclude(self, wanted: frozenset[int]) -> DevicesChanged | None:
        """Leave out these devices and no others, as a person has asked; return the change, if it is one."""
        left_out, taken_back = wanted - self._excluded, self._excluded - wanted
        self._excluded = set(wanted)
        for device in taken_back:
            del self._failures[device]
            self._losses.pop(self.server_of(device), None)
        if not left_out and not taken_back:
            return None
        return DevicesChanged(tuple(sorted(left_out)), tuple(sorted(taken_back)), "asked for", asked_for=True)
