"""The orders of the run controller: one record for each thing that its driver is to do.

The coordinator of several servers sends some of them to agents as they are (launcher/control/messages.py).
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
    """Write an event of the run to its event log."""

    event: events.Event


@frozen
class BeginAttempt:
    """Start all ranks on every server that has some."""

    number: int
    master_port: int
    allotment: DeviceAssignment | None = None  # of an elastic run

    @property
    def event(self) -> events.AttemptStarted:
        """The event to record when this is carried out."""
        return events.AttemptStarted(self.number, self.master_port, self.allotment)


@frozen
class CollectEvidence:
    """Have a server collect evidence and report it."""

    server: int


@frozen
class Apart:
    """Two servers that do not reach each other."""

    pair: Pair
    ports: Pair  # that were tried of the one and of the other, beside those of ranks
    why: str  # what came of it; empty if connections can be made
    loses_large: bool = False  # packets, while connections can be made


@frozen
class Diagnose:
    """Merge the evidence that there is, and answer with `Diagnosed`."""

    apart: tuple[Apart, ...] = ()


@frozen
class ProbeTarget:
    server: int
    ports: tuple[int, ...]  # any of them will do; the first echoes: see launcher.supervise.reach_probes
    addresses: tuple[str, ...] = ()  # any of them will do; added by who sends the order


@frozen
class ProbeReach:
    """Have a server try to connect to all targets at once, and report the result.

    Nothing is sent to a port that may be a rank's.
    """

    server: int
    number: int
    targets: tuple[ProbeTarget, ...]
    timeout_s: float


@frozen
class EndRanks:
    """End every rank by the grace rule: of a failure with this verdict, or although none has failed."""

    cause: Cause
    verdict: Verdict | None = None  # None: nothing failed
    restarts: bool = False  # the same agents start the ranks again, perhaps on other devices
    signal: int | None = None  # that asked for the end
    server: str | None = None  # to which that signal came


@frozen
class CancelRestart:
    """Keep nothing for another attempt, although one was to follow."""


@frozen
class ForwardSignal:
    """Hand a signal on to every server: SIGQUIT kills ranks at once, SIGTSTP and SIGCONT pause and continue them.

    Others are forwarded to ranks.
    """

    number: int


@frozen
class Finish:
    """Have every agent end: nothing of the run is left, and these agents start nothing more."""

    cause: Cause
    exit_code: int
    reason: str | None = None  # why no rank was started
    hint: str | None = None  # of that reason


@frozen
class GatherServers:
    """Have agents started anew on every server, for another attempt."""


@frozen
class Close:
    """The run is over, as the last `Finish` says."""


Order = (
    Record | BeginAttempt | CollectEvidence | Diagnose | ProbeReach | EndRanks | CancelRestart | ForwardSignal | Finish
    | GatherServers | Close
)  # fmt: skip
