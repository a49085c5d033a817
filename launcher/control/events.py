"""The inputs of the run controller: the setup of a run, and one record for each event that may happen to it.

Agents of several servers send some of them to the coordinator as they are (launcher/control/messages.py).
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
    """Return whether a signal ends the run: SIGQUIT, and those that are not forwarded to its ranks."""
    return number == KILLS_AT_ONCE or number in ASKS_TO_STOP.difference(supervision.forward_signals)


Pair = tuple[int, int]  # the servers of a connection, by index: from, to


@frozen
class Setup:
    server_ids: tuple[str, ...]
    supervision: Supervision = field(default_factory=Supervision)
    first_server: int = 0  # the index of that of rank 0
    brings_all: bool = True  # an engine starts every agent, and can start them anew; else a person starts each
    engine_anew: bool = False  # another attempt needs the engine's processes anew
    evidence_limit_s: float = 0.0  # for all servers to report, from the first report on; 0: no limit
    look_again_s: float = 0.0  # how much longer a server is waited for that may be lost


@frozen
class ServersReady:
    """Every server can begin an attempt."""

    master_port: int
    ports: tuple[tuple[int, int], ...] = ()  # of an elastic run: by server, where ranks would meet if rank 0 were there


@frozen
class CannotBegin:
    """The next attempt cannot begin, on any server."""

    error: TlaunchError


@frozen
class RankFailed:
    """A rank failed or hangs, and its server has not sent valid evidence yet."""

    server: int


@frozen
class EvidenceReport:
    """A server's evidence of a failed attempt is complete."""

    server: int
    attempt: int
    evidence: Any = None  # see launcher.supervise.diagnosis.servers; None: who drives the controller has it
    port: int | None = None  # on which this server can be reached for a moment, for a check of whether it can


@frozen
class ProbeResult:
    """The answer of a server to `ProbeReach`."""

    server: int
    number: int
    unreached: tuple[tuple[int, str], ...]  # servers, and why
    ports: tuple[int, ...] = ()  # on which ranks of the server listen
    lossy: tuple[int, ...] = ()  # servers that are reached, and with whom large packets are lost


@frozen
class Diagnosed:
    """The answer to `Diagnose`, which is to come before any other event."""

    verdict: Verdict
    cause: Cause = Cause.FAILED
    highest_step: int | None = None  # that any rank reported
    asks_reach: bool = False  # the verdict depends on which servers reach each other
    named: tuple[Pair, ...] = ()  # servers of which a failure's own words name another one


@frozen
class EndingLeftovers:
    """Every rank of a server has ended well, and the processes that they left are being ended."""

    server: int


@frozen
class AttemptEnded:
    """Nothing of the attempt is left on a server, or nothing that can be killed."""

    server: int
    attempt: int
    left: bool = False  # something cannot be killed
    master_port: int | None = None  # held for the next attempt's rank 0, on its server


@frozen
class ServerLost:
    """A server is given up: its connection was lost, or its agent ends its ranks by itself."""

    server: int
    why: str
    finished: bool = False  # every rank there had ended well: no failure follows
    is_own_fault: bool = False  # this machine stood still, so that the server had to give it up


@frozen
class ServerGone:
    """A server's connection has ended, as expected or not: nothing more is heard of it."""

    server: int


@frozen
class SignalReceived:
    """A signal that concerns the whole run came to the launcher, or to the launcher or agent of a server."""

    number: int
    server: int | None = None  # None: to the process that drives the controller


@frozen
class EndWanted:
    """The run has to end: its launcher is lost."""

    cause: Cause


@frozen
class ExclusionsChanged:
    """A person has changed which devices an elastic run is to leave out."""

    excluded: frozenset[int]  # the ranks that the whole rank table gives them


@frozen
class ServerJoined:
    """A server has come to an elastic run that goes on without it."""

    server: int
    master_port: int | None = None  # as in ServersReady.ports


@frozen
class EngineExited:
    """The reasons that the end of an engine gives, by its exit status and its own words."""

    cancelled: str | None = None  # the words of a person, a limit or another job that ended it
    killed: Verdict | None = None
    gave_up: Verdict | None = None


@frozen
class ServersLeft:
    """After `Finish` every agent has gone, and so has what started them."""

    engine: EngineExited | None = None  # None: there is none, or it did not end by itself


@frozen
class Tick:
    """All that had happened has been reported: the controller takes its next step."""

    quiet: Collection[int] = ()  # servers of which nothing was heard for so long that they may be lost


Event = (
    ServersReady | CannotBegin | RankEnded | RankFailed | EvidenceReport | ProbeResult | Diagnosed | EndingLeftovers
    | AttemptEnded | ServerLost | ServerGone | SignalReceived | EndWanted | ExclusionsChanged
    | ServerJoined | ServersLeft | Tick
)  # fmt: skip
