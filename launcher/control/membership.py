"""The devices of an elastic run: which are excluded, and which each attempt uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from launcher.control.events import ServerLost
from launcher.core.events import DevicesChanged
from launcher.core.records import DeviceAssignment, Elastic
from launcher.core.verdict import Role, Verdict

FAILURES = 2  # a device is excluded after this number of failures of its ranks
LOSSES = 3  # a server's devices are excluded after this number of losses within `LOSSES_COUNT_S`
LOSSES_COUNT_S = 3600.0
PAUSE_S = 5.0  # delay of the restart after a server's return; doubled with each further loss of the server
MAX_PAUSE_S = 300.0


class Membership:
    """The devices available to an elastic run. A device is identified by its rank in the full rank table."""

    def __init__(self, elastic: Elastic) -> None:
        self._elastic = elastic
        self._excluded = set(elastic.excluded)
        self._failures: Counter[int] = Counter()
        self._losses: dict[int, list[float]] = {}  # by server: times of recent losses
        self._returned: dict[int, float] = {}  # by returned server: time of the restart to include it
        self.present: DeviceAssignment | None = None  # of the running attempt
        self.ports: dict[int, int] = {}  # by server: port reserved for the next rendezvous, if rank 0 will be on it

    def next(self, servers: Collection[int]) -> DeviceAssignment | None:
        """Assign the available devices of `servers` to the next attempt. Return None if no layout fits."""
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
        return self.present is not None and all(self.server_of(device) in servers for device in self.present.devices)

    def has_ranks(self, server: int) -> bool:
        return self.present is not None and any(self.server_of(device) == server for device in self.present.devices)

    def server_of(self, device: int) -> int:
        return self._elastic.servers[device]

    def note_failure(self, verdict: Verdict, servers: Collection[int]) -> DevicesChanged | None:
        """Record the failed ranks of an attempt. If their devices are now excluded, return the change.

        Devices are not excluded if no layout would fit the others, or if all ranks failed in the same way.
        `servers` are the connected servers.
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
        """Record the loss of a server. If its devices are now excluded, return the change."""
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
        """Record that a server is back. Return the seconds until ranks are restarted to use the server."""
        losses = len(self._losses.get(server, ()))
        pause_s = min(MAX_PAUSE_S, PAUSE_S * 2.0 ** max(0, losses - 1))
        self._returned[server] = now_s + pause_s
        return pause_s

    def forget_returns(self) -> None:
        """Cancel the scheduled restarts for returned servers, because a new attempt includes them anyway."""
        self._returned.clear()

    @property
    def restart_for_returned_s(self) -> float | None:
        """The monotonic time of the next restart for returned servers, or None if no restart is scheduled."""
        return min(self._returned.values(), default=None)

    def failed_devices(self, verdict: Verdict) -> frozenset[int]:
        """Return the devices of the culprit rank and of all ranks that failed in the same way."""
        if verdict.culprit is None or self.present is None:
            return frozenset()
        alike = {failure.global_rank for failure in verdict.failures if failure.role is Role.CAUSE}
        return frozenset(self.present.devices[rank] for rank in {verdict.culprit, *alike})

    def exclude(self, wanted: frozenset[int]) -> DevicesChanged | None:
        """Exclude exactly these devices, as requested by the user. Return the change, or None if nothing changes."""
        left_out, taken_back = wanted - self._excluded, self._excluded - wanted
        self._excluded = set(wanted)
        for device in taken_back:
            del self._failures[device]
            self._losses.pop(self.server_of(device), None)
        if not left_out and not taken_back:
            return None
        return DevicesChanged(tuple(sorted(left_out)), tuple(sorted(taken_back)), "asked for", asked_for=True)
