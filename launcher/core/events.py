"""The events of a run, as written to events.jsonl and sent from an agent to its launcher.

Every line is one JSON object: {"schema": 2, "time_ns": ..., "server_index": ..., "event": "RankEnded", ...fields}.
`time_ns` is the server's wall clock (nanoseconds since 1970) when the agent noticed the event. The classes below are
the events; their fields are the keys.
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
COORDINATOR = -1  # the server_index of events that concern all servers


class Cause(str, Enum):
    """The reason why an agent terminated its ranks, or FINISHED if all ranks succeeded."""

    FINISHED = "finished"  # every rank succeeded
    FAILED = "failed"  # a rank failed
    HUNG = "hung"  # a rank made no progress for too long
    STOPPED = "stopped"  # a signal requested it
    TIMED_OUT = "timed out"  # the run reached its time limit
    RESIZED = "resized"  # an elastic run continues on other devices
    HEAD_LOST = "head lost"  # the launcher of this agent is gone
    COORDINATOR_LOST = "coordinator lost"  # the coordinator of a run on several servers does not respond
    AGENT_LOST = "agent lost"  # written by the launcher: the agent disappeared without a final event


@frozen
class AgentStarted:
    agent: ProcessId
    head: ProcessId | None  # the launcher that started the agent
    rank_count: int  # ranks on this server

    def __post_init__(self) -> None:
        if not 0 <= self.rank_count <= MAX_RANKS:  # the file may be untrusted, and readers loop over all ranks
            raise ValueError(f"{self.rank_count} ranks")


@frozen
class Awaiting:
    """The coordinator is waiting for these servers to join. Ranks start when all servers have joined."""

    server_ids: tuple[str, ...]  # empty: all have joined
    seconds: float  # waited until now
    limit_s: float | None = None  # total waiting time allowed


@frozen
class NotBegun:
    """The run, or its next attempt, could not be started. `message` describes the problem."""

    message: str
    hint: str | None = None


@frozen
class Preloading:
    pid: int
    modules: tuple[str, ...]


@frozen
class Preloaded:
    seconds: float  # since the start of the fork server


@frozen
class AttemptStarted:
    """All ranks are being started. `number` is 0 for the first attempt, and larger after restarts."""

    number: int
    master_port: int
    allotment: DeviceAssignment | None = None  # None: all devices of the run


@frozen
class Joined:
    server: str
    pause_s: float = 0.0  # delay until ranks are restarted to include it


@frozen
class DevicesChanged:
    """The next attempt of an elastic run excludes devices, or includes excluded devices again."""

    left_out: tuple[int, ...]  # their ranks in the full rank table
    taken_back: tuple[int, ...]
    reason: str
    asked_for: bool = False  # by the user, in the file `excluded`


@frozen
class RankStarted:
    global_rank: int
    pid: int
    started: int = 0  # clock ticks since boot, as in launcher.core.machine.proc; 0 if unknown
    log_offset: int = 0  # size of train.log in bytes when this attempt started


@frozen
class RankEnded:
    global_rank: int
    pid: int | None  # None if no process was started
    status: int  # as in subprocess: the exit code, or minus the signal
    reason: str | None = None  # why it could not be started


@frozen
class SchedulerStarted:
    """MindSpore's scheduler process has started. The ranks of an attempt connect to it to find each other."""

    pid: int
    started: int = 0  # as `launcher.core.machine.proc.ProcessId.started`
    log_offset: int = 0  # size of scheduler.log in bytes when this attempt started


@frozen
class SchedulerEnded:
    """MindSpore's scheduler exited by itself. Status 0 means that all ranks had disconnected. Otherwise, it failed."""

    pid: int | None  # None if no process was started
    status: int  # as in subprocess
    reason: str | None = None  # why it could not be started


@frozen
class Slow:
    """A rank was slower than comparable ranks for several steps in a row."""

    global_rank: int
    busy_s: float  # per step, median of these steps
    median_s: float  # of the reference: its peers, or the other ranks (launcher/supervise/slowness.py)
    steps: int


@frozen
class Hung:
    """These ranks made no progress. At least one of them made no progress for `seconds` seconds."""

    global_ranks: tuple[int, ...]
    seconds: float


@frozen
class NotExiting:
    """A rank has recorded a failure, but its process is still running."""

    global_rank: int
    what: str  # "ValueError: bad batch 17, at train.py:88 in step"
    grace_s: float  # the rank counts as failed after this time


@frozen
class Judged:
    """The verdict on a failed attempt, from evidence that was collected before any rank was terminated."""

    verdict: Verdict


@frozen
class Stopping:
    """SIGTERM is sent to all running ranks. Processes still running after `grace_s` seconds are killed."""

    cause: Cause
    grace_s: float
    signal: int | None = None  # the signal that requested it
    restarts: bool = False  # True if the ranks are restarted afterwards
    server: str | None = None  # id of the server that received the signal, if there are several

    @property
    def asked_by(self) -> str | None:
        """The signal that requested the stop, such as "SIGTERM at server 10.0.0.2", or None. Nothing is escaped."""
        if self.signal is None:
            return None
        try:
            name = signal.Signals(self.signal).name
        except ValueError:
            name = f"signal {self.signal}"
        return name if self.server is None else f"{name} at server {self.server}"


@frozen
class Leftovers:
    """Every rank succeeded, but processes started by ranks are still running and are now terminated."""

    count: int


@frozen
class Killing:
    """SIGKILL is sent to all remaining processes."""

    count: int


@frozen
class Unkillable:
    """Some processes survived SIGKILL, because they wait inside the kernel (state D)."""

    pids: tuple[int, ...]


@frozen
class NotRestarting:
    """The run is not restarted, although it has restarts left. `reason` explains why."""

    reason: str


@frozen
class Paused:
    """Every rank was suspended (Ctrl-Z). The event `Continued` follows when the ranks resume."""


@frozen
class Continued:
    """Stopped ranks were continued."""


@frozen
class Forwarded:
    """A signal was forwarded to every rank."""

    signal: int


@frozen
class Trouble:
    """A problem that the user should know about. Supervision continues."""

    message: str


@frozen
class AgentEnded:
    cause: Cause
    exit_code: int  # the launcher's exit code


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
    """Return an event as a line of JSON, including the newline. NaN and infinities become null."""
    head = {"schema": SCHEMA, "time_ns": stamped.time_ns, "server_index": stamped.server_index}
    record = {**head, "event": type(stamped.event).__name__, **encode(stamped.event)}
    return json.dumps(finite(record), allow_nan=False) + "\n"


def from_line(line: str | bytes) -> TimestampedEvent | None:
    """Parse the output of `to_line`, or return None for an unknown event. Raises ValueError for any other text."""
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
