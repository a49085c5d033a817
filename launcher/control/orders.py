"""The orders of the run controller: one record type for each action of its driver.

The coordinator of several servers sends some of these records to agents (launcher/control/messages.py).
"""

from __future__ import annotations

from launcher.control.events import Pair
from launcher.core import events
from launcher.core.events import Cause
from launcher.core.frozen import frozen
from launcher.core.records import DeviceAssignment
from launcher.core.verdict import Verdict


@frozen
class Record:
    event: events.Event


@frozen
class BeginAttempt:
    """Start all ranks on all servers that have ranks in this attempt."""

    number: int
    master_port: int
    allotment: DeviceAssignment | None = None  # in an elastic run

    @property
    def event(self) -> events.AttemptStarted:
        return events.AttemptStarted(self.number, self.master_port, self.allotment)


@frozen
class CollectEvidence:
    server: int


@frozen
class Apart:
    pair: Pair
    ports: Pair  # the port tried on each server, in addition to ports of ranks
    why: str  # the error of the connection; empty if connections work
    loses_large: bool = False  # True if connections work but large packets are lost


@frozen
class Diagnose:
    """Judge the available evidence of all servers, and respond with `Diagnosed`."""

    apart: tuple[Apart, ...] = ()


@frozen
class ProbeTarget:
    server: int
    ports: tuple[int, ...]  # one that accepts is enough; the first one echoes: see launcher.supervise.reach_probes
    addresses: tuple[str, ...] = ()  # one that accepts is enough; added by the sender of the order


@frozen
class ProbeReach:
    """Ask a server to connect to all targets at once and to report the results."""

    server: int
    number: int
    targets: tuple[ProbeTarget, ...]
    timeout_s: float


@frozen
class EndRanks:
    """End all ranks with a grace period. If the attempt failed, the order contains the verdict."""

    cause: Cause
    verdict: Verdict | None = None  # None: no failure
    restarts: bool = False  # True if the same agents restart the ranks, possibly on other devices
    signal: int | None = None  # the signal that requested the end
    server: str | None = None  # the server that received the signal


@frozen
class CancelRestart:
    """Cancel any pending restart."""


@frozen
class ForwardSignal:
    """Forward a signal to every server.

    SIGQUIT kills the ranks at once; SIGTSTP and SIGCONT pause and continue them. Ranks receive all other signals.
    """

    number: int


@frozen
class Finish:
    """End every agent, because no process of the run is left and nothing more will be started."""

    cause: Cause
    exit_code: int
    reason: str | None = None  # why no rank was started
    hint: str | None = None  # for that reason


@frozen
class GatherServers:
    """Start new agents on every server for another attempt."""


@frozen
class Close:
    """End the driver. An earlier `Finish` order contained the outcome of the run."""


Order = (
    Record | BeginAttempt | CollectEvidence | Diagnose | ProbeReach | EndRanks | CancelRestart | ForwardSignal | Finish
    | GatherServers | Close
)  # fmt: skip
