"""report.json: the outcome of a run, or of the part of a run on one server. Times are in nanoseconds since 1970."""

from __future__ import annotations

from launcher.core.codec import decode, encode, json_text, parse_json
from launcher.core.events import SCHEMA, Cause, RankEnded
from launcher.core.frozen import frozen
from launcher.core.records import DeviceAssignment
from launcher.core.verdict import Verdict


@frozen
class RankExit:
    global_rank: int
    pid: int | None
    status: int  # as in subprocess
    started_ns: int | None
    ended_ns: int
    reason: str | None = None
    order_known: bool = True  # False: ranks later in the list may have ended earlier, since all were found at once
    late_s: float = 0.0  # the rank may have ended up to this much earlier: the time since the previous check

    @property
    def failed(self) -> bool:
        return self.status != 0

    @property
    def event(self) -> RankEnded:
        return RankEnded(self.global_rank, self.pid, self.status, self.reason)


@frozen
class Attempt:
    number: int
    master_port: int
    started_ns: int
    ended_ns: int
    cause: Cause
    exits: tuple[RankExit, ...]  # in the order in which they ended; without ranks that were never started
    verdict: Verdict | None = None  # if the attempt failed or hung
    killed: int = 0  # number of processes killed after the grace period
    allotment: DeviceAssignment | None = None  # None: all devices of the run


@frozen
class Report:
    run: str
    server_index: int
    cause: Cause
    exit_code: int
    started_ns: int
    ended_ns: int
    attempts: tuple[Attempt, ...]  # in order; empty if the run ended before any rank started
    not_restarting: str | None = None  # why the remaining restarts were not used
    unkillable: tuple[int, ...] = ()
    events_lost: int = 0  # events that could not be written to events.jsonl (disk full, ...)
    schema: int = SCHEMA

    @property
    def verdict(self) -> Verdict | None:
        return self.attempts[-1].verdict if self.attempts else None

    def to_json(self) -> str:
        return json_text(encode(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Report:
        """Parse the output of `to_json`. Raises ValueError if it is damaged or from another version."""
        fields = parse_json(text)
        if isinstance(fields, dict) and fields.get("schema") != SCHEMA:
            raise ValueError(f"schema {fields.get('schema')}, but this version reads {SCHEMA}")
        return decode(cls, fields)
