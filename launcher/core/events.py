"""What an agent tells: one event a line in events.jsonl and on its way to the head, and the report at the end.

Every line is one JSON object: {"schema": 1, "time_ns": ..., "server_index": ..., "event": "RankEnded", ...fields}.
`time_ns` is the server's wall clock (nanoseconds since 1970), read as soon as the agent knew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from dataclasses import fields as dataclass_fields
from enum import Enum
from typing import Any

SCHEMA = 1


class Cause(str, Enum):
    """Why an agent ended its ranks, or that it did not have to."""

    FINISHED = "finished"  # every rank ended well
    FAILED = "failed"  # a rank failed
    STOPPED = "stopped"  # someone asked, by a signal
    HEAD_LOST = "head lost"  # the launcher that the agent reports to is gone
    AGENT_LOST = "agent lost"  # written by the head: the agent went away without a last word


@dataclass(frozen=True)
class AgentStarted:
    agent_pid: int
    rank_count: int  # ranks on this server


@dataclass(frozen=True)
class RankStarted:
    global_rank: int
    pid: int


@dataclass(frozen=True)
class RankEnded:
    global_rank: int
    pid: int | None  # None when there was no process at all
    status: int  # as in subprocess: the exit code, or minus the signal
    reason: str | None = None  # why it could not be started


@dataclass(frozen=True)
class Stopping:
    """SIGTERM goes to everything that still runs; what is left after `grace_s` seconds is killed."""

    cause: Cause
    grace_s: float
    signal: int | None = None  # the one that asked


@dataclass(frozen=True)
class Leftovers:
    """Every rank ended well, but processes that they had started run on and are ended now."""

    count: int


@dataclass(frozen=True)
class Killing:
    """SIGKILL goes to everything that is left."""

    count: int


@dataclass(frozen=True)
class Unkillable:
    """Processes that outlived SIGKILL (they wait inside the kernel, state D)."""

    pids: tuple[int, ...]


@dataclass(frozen=True)
class Trouble:
    """Something that supervision can live with, but a person should know."""

    message: str


@dataclass(frozen=True)
class AgentEnded:
    cause: Cause
    exit_code: int  # what the launcher exits with


Event = AgentStarted | RankStarted | RankEnded | Stopping | Leftovers | Killing | Unkillable | Trouble | AgentEnded
_KINDS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (AgentStarted, RankStarted, RankEnded, Stopping, Leftovers, Killing, Unkillable, Trouble, AgentEnded)
}


@dataclass(frozen=True)
class Stamped:
    """An event with its time and place."""

    time_ns: int
    server_index: int
    event: Event


def to_line(stamped: Stamped) -> str:
    """The JSON line of an event, its newline included."""
    head = {"schema": SCHEMA, "time_ns": stamped.time_ns, "server_index": stamped.server_index}
    return json.dumps({**head, "event": type(stamped.event).__name__, **asdict(stamped.event)}) + "\n"


def from_line(line: str | bytes) -> Stamped | None:
    """The inverse of `to_line`. Fields that a later version added are left out; None for an event that it added.

    Raises:
        ValueError: the line is no event, or one of another schema.
    """
    try:
        fields: dict[str, Any] = json.loads(line)
        schema, time_ns, server_index, name = (
            fields.pop(key) for key in ("schema", "time_ns", "server_index", "event")
        )
        if schema != SCHEMA:
            raise ValueError(f"schema {schema}, but this version reads {SCHEMA}")
        kind = _KINDS.get(name)
        return Stamped(time_ns, server_index, kind(**_typed(_known(kind, fields)))) if kind else None
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no event: {line!r}") from error


def _known(kind: type[Event], fields: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: fields[field.name] for field in dataclass_fields(kind) if field.name in fields}


def _typed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """JSON knows neither enumerations nor tuples."""
    typed = dict(fields)
    if "cause" in typed:
        typed["cause"] = Cause(typed["cause"])
    if "pids" in typed:
        typed["pids"] = tuple(typed["pids"])
    return typed


@dataclass(frozen=True)
class RankExit:
    """How one rank ended, as the report keeps it."""

    global_rank: int
    pid: int | None
    status: int  # as in subprocess
    started_ns: int | None
    ended_ns: int
    reason: str | None = None
    order_known: bool = True  # False: ranks noticed with it may have ended before it, though they are told after it

    @property
    def failed(self) -> bool:
        return self.status != 0


@dataclass(frozen=True)
class Report:
    """report.json: how the run ended on one server. Times in nanoseconds since 1970."""

    run: str
    server_index: int
    cause: Cause
    exit_code: int
    started_ns: int
    ended_ns: int
    first_failure: int | None  # the global rank that failed before any other
    exits: tuple[RankExit, ...]  # in the order in which they ended; ranks never started are missing
    killed: int = 0  # processes that had to be killed after the grace period
    unkillable: tuple[int, ...] = ()
    events_lost: int = 0  # events that could not be written to events.jsonl (disk full, ...)
    schema: int = SCHEMA

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Report:
        """The inverse of `to_json`.

        Raises:
            ValueError: the text is no report that this version knows.
        """
        try:
            fields: dict[str, Any] = json.loads(text)
            if fields.get("schema") != SCHEMA:
                raise ValueError(f"schema {fields.get('schema')}, but this version reads {SCHEMA}")
            exits = tuple(RankExit(**exit_fields) for exit_fields in fields.pop("exits"))
            typed = _typed(fields)
            typed["unkillable"] = tuple(typed.get("unkillable", ()))
            return cls(**typed, exits=exits)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this is no report: {error}") from error
