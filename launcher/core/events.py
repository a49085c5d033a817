"""The events of a run: one a line in events.jsonl and on the way from an agent to its launcher.

Every line is one JSON object: {"schema": 2, "time_ns": ..., "server_index": ..., "event": "RankEnded", ...fields}.
`time_ns` is the server's wall clock (nanoseconds since 1970), read as soon as the agent knew. The classes below are the
events; their fields are the keys.
"""

from __future__ import annotations

import json
import signal
from enum import Enum
from typing import Any, get_args

from launcher.core.codec import MAX_ERROR_CHARS, decode, encode, finite, integer, parse_json
from launcher.core.frozen import frozen
from launcher.core.machine.proc import ProcessId
from launcher.core.records import DeviceAssignment
from launcher.core.verdict import Verdict

SCHEMA = 2
MAX_RANKS = 1 << 16
COORDINATOR = -1  # the server_index of events that concern all servers of several


class Cause(str, Enum):
    """The reason why an agent ended its ranks, or FINISHED if it did not have to."""

    FINISHED = "finished"  # every rank ended well
    FAILED = "failed"  # a rank failed
    HUNG = "hung"  # a rank made no progress for too long
    STOPPED = "stopped"  # a signal asked for it
    RESIZED = "resized"  # an elastic run goes on with other devices
    HEAD_LOST = "head lost"  # the launcher that the agent reports to is gone
    COORDINATOR_LOST = "coordinator lost"  # of a run over several servers: the others are silent
    AGENT_LOST = "agent lost"  # written by the head: the agent went away without a last event


@frozen
class AgentStarted:
    """The first event of a server."""

    agent: ProcessId
    head: ProcessId | None  # the launcher that started the agent
    rank_count: int  # ranks on this server

    def __post_init__(self) -> None:
        if not 0 <= self.rank_count <= MAX_RANKS:  # of a file that somebody else wrote; readers look at every rank
            raise ValueError(f"{self.rank_count} ranks")


@frozen
class Awaiting:
    """The coordinator waits for these servers: no rank starts before all have come."""

    server_ids: tuple[str, ...]  # empty: all have come
    seconds: float  # of waiting so far
    limit_s: float | None = None  # of waiting in all


@frozen
class NotBegun:
    """No rank was started, since not every server could take part. After an attempt: for none of the next one."""

    message: str
    hint: str | None = None


@frozen
class Preloading:
    """A process imports modules once, and will be forked for every rank."""

    pid: int
    modules: tuple[str, ...]


@frozen
class Preloaded:
    seconds: float  # from the start of that process


@frozen
class AttemptStarted:
    """All ranks are started, for the first time (number 0) or again."""

    number: int
    master_port: int
    allotment: DeviceAssignment | None = None  # None: all devices of the run


@frozen
class Joined:
    """A server has come to an elastic run that went on without it."""

    server: str
    pause_s: float = 0.0  # before ranks are started again for it


@frozen
class DevicesChanged:
    """An elastic run leaves devices out from its next attempt on, or takes them back."""

    left_out: tuple[int, ...]  # the ranks that the whole rank table gives them
    taken_back: tuple[int, ...]
    reason: str
    asked_for: bool = False  # by a person, in the file of them


@frozen
class RankStarted:
    global_rank: int
    pid: int
    started: int = 0  # clock ticks since boot, as in launcher.core.machine.proc; 0 where the system does not tell
    log_offset: int = 0  # bytes that train.log held before: this attempt's part begins there


@frozen
class RankEnded:
    global_rank: int
    pid: int | None  # None when there was no process at all
    status: int  # as in subprocess: the exit code, or minus the signal
    reason: str | None = None  # why it could not be started


@frozen
class SchedulerStarted:
    """MindSpore's scheduler, where the ranks of an attempt meet."""

    pid: int
    started: int = 0  # as `launcher.core.machine.proc.ProcessId.started`
    log_offset: int = 0  # bytes that scheduler.log held before: this attempt's part begins there


@frozen
class SchedulerEnded:
    """MindSpore's scheduler ended by itself: with 0 once all ranks have left it, else it has failed."""

    pid: int | None  # None when there was no process at all
    status: int  # as in subprocess
    reason: str | None = None  # why it could not be started


@frozen
class Slow:
    """A rank took longer than those that it is held against for several steps in a row."""

    global_rank: int
    busy_s: float  # per step, median of those steps
    median_s: float  # of what it was held against: its peers, or the other ranks (launcher/supervise/slowness.py)
    steps: int


@frozen
class Hung:
    """These ranks make no progress, at least one of them for `seconds`."""

    global_ranks: tuple[int, ...]
    seconds: float


@frozen
class NotExiting:
    """A rank has recorded a failure, and its process has not ended."""

    global_rank: int
    what: str  # "ValueError: bad batch 17, at train.py:88 in step"
    grace_s: float  # the rank counts as failed once this has passed


@frozen
class Judged:
    """The verdict on a failed attempt; its evidence was collected before any rank was ended."""

    verdict: Verdict


@frozen
class Stopping:
    """SIGTERM goes to everything that still runs; what is left after `grace_s` seconds is killed."""

    cause: Cause
    grace_s: float
    signal: int | None = None  # the one that asked
    restarts: bool = False  # the ranks are started again afterwards
    server: str | None = None  # the id of the one of several to whose launcher or agent that signal came

    @property
    def asked_by(self) -> str | None:
        """The signal in words: "SIGTERM", "SIGTERM at server 10.0.0.2" (unescaped, from the table); None without a signal."""
        if self.signal is None:
            return None
        try:
            name = signal.Signals(self.signal).name
        except ValueError:
            name = f"signal {self.signal}"
        return name if self.server is None else f"{name} at server {self.server}"


@frozen
class Leftovers:
    """Every rank ended well, but processes that they had started run on and are ended now."""

    count: int


@frozen
class Killing:
    """SIGKILL goes to everything that is left."""

    count: int


@frozen
class Unkillable:
    """Processes that outlived SIGKILL (they wait inside the kernel, state D)."""

    pids: tuple[int, ...]


@frozen
class NotRestarting:
    """Restarts are left, but another one would be in vain."""

    reason: str


@frozen
class Paused:
    """Every rank was stopped (Ctrl-Z), until `Continued`."""


@frozen
class Continued:
    """Stopped ranks continue."""


@frozen
class Forwarded:
    """A signal was handed to every rank."""

    signal: int


@frozen
class Trouble:
    """Something that supervision can live with, but a person should know."""

    message: str


@frozen
class AgentEnded:
    cause: Cause
    exit_code: int  # what the launcher exits with


Event = (
    AgentStarted | Awaiting | NotBegun | Preloading | Preloaded | AttemptStarted | DevicesChanged | Joined | RankStarted
    | RankEnded | SchedulerStarted | SchedulerEnded | Slow | Hung | NotExiting | Judged | Stopping
    | Leftovers | Killing | Unkillable | NotRestarting | Paused | Continued | Forwarded | Trouble | AgentEnded
)  # fmt: skip
_KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}


@frozen
class TimestampedEvent:
    time_ns: int
    server_index: int
    event: Event


def to_line(stamped: TimestampedEvent) -> str:
    """Return the JSON line of an event, its newline included; null for NaN and infinities, which JSON does not have."""
    head = {"schema": SCHEMA, "time_ns": stamped.time_ns, "server_index": stamped.server_index}
    record = {**head, "event": type(stamped.event).__name__, **encode(stamped.event)}
    return json.dumps(finite(record), allow_nan=False) + "\n"


def from_line(line: str | bytes) -> TimestampedEvent | None:
    """Return the event of a line that `to_line` wrote, or None if only a later version knows such an event.

    Raises:
        ValueError: the line is no event, or one of another schema.
    """
    try:
        fields: dict[str, Any] = parse_json(line)
        schema, name = fields.pop("schema"), fields.pop("event")
        time_ns, server_index = (integer(fields.pop(key)) for key in ("time_ns", "server_index"))
        kind = _KINDS.get(name)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a valid event: {line[:MAX_ERROR_CHARS]!r}") from error
    if schema != SCHEMA:
        raise ValueError(f"schema {schema}, but this version reads {SCHEMA}")
    if time_ns is None or server_index is None:
        raise ValueError(f"not a valid event: {line[:MAX_ERROR_CHARS]!r}")
    return TimestampedEvent(time_ns, server_index, decode(kind, fields)) if kind else None
