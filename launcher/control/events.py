"""The inputs of the run controller: the setup of a run, and one record type for each kind of event.

The agents of several servers send some of these records to the coordinator (launcher/control/messages.py).
"""

from __future__ import annotations

import signal
from collections.abc import Collection
from dataclasses import field
from typing import Any

from launcher.core.errors import TlaunchError
from launcher.core.events import Cause, RankEnded
from launcher.core.frozen import frozen
from launcher.core.records import Supervision
from launcher.core.verdict import Verdict

ASKS_TO_STOP = frozenset((signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2))
KILLS_AT_ONCE = signal.SIGQUIT
PAUSES, CONTINUES = signal.SIGTSTP, signal.SIGCONT


def ends_run(number: int, supervision: Supervision) -> bool:
    """Return True if a signal ends the run. SIGQUIT always does. Other forwarded signals do not."""
    return number == KILLS_AT_ONCE or number in ASKS_TO_STOP.difference(supervision.forward_signals)


Pair = tuple[int, int]  # the server indices of a connection: from, to


@frozen
class Setup:
    server_ids: tuple[str, ...]
    supervision: Supervision = field(default_factory=Supervision)
    first_server: int = 0  # index of the server with rank 0
    brings_all: bool = True  # True: an engine starts and restarts every agent; False: a person starts each one
    engine_anew: bool = False  # True: the engine must be restarted for another attempt
    evidence_limit_s: float = 0.0  # time limit for all servers to report, after the first report; 0: no limit
    look_again_s: float = 0.0  # extra waiting time for a server that may be lost


@frozen
class ServersReady:
    master_port: int
    ports: tuple[tuple[int, int], ...] = ()  # in an elastic run: server and its rendezvous port, if rank 0 runs there


@frozen
class CannotBegin:
    error: TlaunchError


@frozen
class RankFailed:
    """A rank has failed or hangs. Its server has not sent the evidence yet."""

    server: int


@frozen
class EvidenceReport:
    server: int
    attempt: int
    evidence: Any = None  # see launcher.supervise.diagnosis.servers; None: the driver has it already
    port: int | None = None  # listens for reachability checks for a short time


@frozen
class ProbeResult:
    """The response of a server to `ProbeReach`."""

    server: int
    number: int
    unreached: tuple[tuple[int, str], ...]  # servers with the reason
    ports: tuple[int, ...] = ()  # ports on which the server's ranks listen
    lossy: tuple[int, ...] = ()  # reachable servers to which large packets are lost


@frozen
class Diagnosed:
    """The response to `Diagnose`. The driver sends it before any other event."""

    verdict: Verdict
    cause: Cause = Cause.FAILED
    highest_step: int | None = None  # the highest step reported by any rank
    asks_reach: bool = False  # True if the verdict depends on which servers can reach each other
    named: tuple[Pair, ...] = ()  # pairs of servers where a failure message on the first names the second


@frozen
class EndingLeftovers:
    server: int


@frozen
class AttemptEnded:
    """All processes of the attempt on a server have ended. Processes that cannot be killed are ignored."""

    server: int
    attempt: int
    left: bool = False  # True if some processes cannot be killed
    master_port: int | None = None  # reserved for the next attempt's rank 0, on its server


@frozen
class ServerLost:
    """A server was lost because its connection failed, or because its agent ends the ranks without an order."""

    server: int
    why: str
    finished: bool = False  # True if all ranks on it had succeeded, so its loss is not a failure
    is_own_fault: bool = False  # True if this machine was suspended, so the server had to give up the connection


@frozen
class ServerGone:
    """The connection to a server has closed, so no more events come from this server."""

    server: int


@frozen
class SignalReceived:
    """A launcher or an agent has received a signal that concerns the whole run."""

    number: int
    server: int | None = None  # None: received by the controller's process


@frozen
class EndWanted:
    """The run must end because its launcher is lost."""

    cause: Cause


@frozen
class ExclusionsChanged:
    excluded: frozenset[int]  # their ranks in the full rank table


@frozen
class ServerJoined:
    """A server has joined an elastic run whose current attempt runs without it."""

    server: int
    master_port: int | None = None  # as in ServersReady.ports


@frozen
class EngineExited:
    """An engine has exited. Possible reasons were derived from the engine's exit status and output."""

    cancelled: str | None = None  # how a user, a time limit or another job ended it
    killed: Verdict | None = None
    gave_up: Verdict | None = None


@frozen
class ServersLeft:
    """After `Finish`, every agent and the engine that started them have exited."""

    engine: EngineExited | None = None  # None: there is no engine, or it did not end by itself


@frozen
class Tick:
    """All pending events have been reported, so the controller can take its next step."""

    quiet: Collection[int] = ()  # servers that have been silent for long enough to be possibly lost


Event = (
    ServersReady | CannotBegin | RankEnded | RankFailed | EvidenceReport | ProbeResult | Diagnosed | EndingLeftovers
    | AttemptEnded | ServerLost | ServerGone | SignalReceived | EndWanted | ExclusionsChanged
    | ServerJoined | ServersLeft | Tick
)  # fmt: skip
