"""The events of the run controller: one record for each thing that may happen to a run."""

from __future__ import annotations

from collections.abc import Collection

from launcher.core.errors import TlaunchError
from launcher.core.events import Cause
from launcher.core.frozen import frozen
from launcher.core.verdict import Verdict

Pair = tuple[int, int]  # the servers of a connection, by index: from, to


@frozen
class ServersReady:
    """Every server can begin an attempt."""

    master_port: int


@frozen
class CannotBegin:
    """The next attempt can not begin, on any server."""

    error: TlaunchError


@frozen
class RankEnded:
    """A rank's process ended, well or not."""

    global_rank: int
    status: int  # as in subprocess


@frozen
class RankFailed:
    """A rank failed or hangs, and its agent has begun to collect evidence by itself."""

    server: int


@frozen
class EvidenceReport:
    """A server's evidence is complete."""

    server: int
    port: int | None = None  # where the server can be reached for now
    understood: bool = True  # False: it was no evidence, which counts as silence


@frozen
class ProbeResult:
    """The answer of a server to `ProbeReach`."""

    server: int
    number: int
    unreached: tuple[tuple[int, str], ...]  # servers, and why
    ports: tuple[int, ...] = ()  # on which ranks of the server listen


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
    left: bool = False  # something cannot be killed
    master_port: int | None = None  # held there for the next attempt


@frozen
class ServerLost:
    """A server is given up: its connection was lost, or its agent ends its ranks by itself."""

    server: int
    why: str


@frozen
class ServerGone:
    """A server's connection has ended, as expected or not: nothing more is heard of it."""

    server: int


@frozen
class SignalReceived:
    """A signal came to the launcher, or to that of a server."""

    number: int
    server: int | None = None  # None: to the process that drives the controller


@frozen
class EndWanted:
    """The run cannot go on: its launcher is lost."""

    cause: Cause


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
    | AttemptEnded | ServerLost | ServerGone | SignalReceived | EndWanted | ServersLeft | Tick
)  # fmt: skip
