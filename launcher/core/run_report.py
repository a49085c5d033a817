"""report.json: the outcome of a run on one server. Times are in nanoseconds since 1970."""

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
    order_known: bool = True  # False: ranks noticed with it may have ended before it, though they are listed after it
    late_s: float = 0.0  # by how much it may have ended sooner: the time since the look before

    @property
    def failed(self) -> bool:
        return self.status != 0

    @property
    def event(self) -> RankEnded:
        return RankEnded(self.global_rank, self.pid, self.status, self.reason)


@frozen
class Attempt:
    """An attempt, from the start of all ranks to their end. Times are in nanoseconds since 1970."""

    number: int
    master_port: int
    started_ns: int
    ended_ns: int
    cause: Cause
    exits: tuple[RankExit, ...]  # in the order in which they ended; ranks never started are missing
    verdict: Verdict | None = None  # where it failed or hung
    killed: int = 0  # processes that had to be killed after the grace period
    allotment: DeviceAssignment | None = None  # None: all devices of the run


@frozen
class Report:
    """The report of a run on one server. Times are in nanoseconds since 1970."""

    run: str
    server_index: int
    cause: Cause
    exit_code: int
    started_ns: int
    ended_ns: int
    attempts: tuple[Attempt, ...]  # the last one last; empty when the run ended before ranks were started
    not_restarting: str | None = None  # why restarts that were left were not used
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
        """Return the report that `to_json` wrote.

        Raises:
            ValueError: the text is no report that this version knows.
        """
        fields = parse_json(text)
        if isinstance(fields, dict) and fields.get("schema") != SCHEMA:
            raise ValueError(f"schema {fields.get('schema')}, but this version reads {SCHEMA}")
        return decode(cls, fields)
