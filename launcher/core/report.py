"""report.json: what an agent says of its server when all is over. Times in nanoseconds since 1970."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from launcher.core.events import SCHEMA, Cause, typed
from launcher.core.frozen import frozen, known
from launcher.core.json_text import json_text
from launcher.core.verdict import Verdict


@frozen
class RankExit:
    """How one rank ended, as the report keeps it."""

    global_rank: int
    pid: int | None
    status: int  # as in subprocess
    started_ns: int | None
    ended_ns: int
    reason: str | None = None
    order_known: bool = True  # False: ranks noticed with it may have ended before it, though they are told after it
    late_s: float = 0.0  # it may have ended so much sooner: nobody looked for so long

    @property
    def failed(self) -> bool:
        return self.status != 0


@frozen
class Attempt:
    """From one start of all ranks to their end. Times in nanoseconds since 1970."""

    number: int
    master_port: int
    started_ns: int
    ended_ns: int
    cause: Cause
    exits: tuple[RankExit, ...]  # in the order in which they ended; ranks never started are missing
    verdict: Verdict | None = None  # where it failed or hung
    killed: int = 0  # processes that had to be killed after the grace period

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Attempt:
        exits = tuple(RankExit(**known(RankExit, ended)) for ended in fields["exits"])
        return cls(**{**typed(known(cls, fields)), "exits": exits})


@frozen
class Report:
    """report.json: how the run ended on one server. Times in nanoseconds since 1970."""

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
    def exits(self) -> tuple[RankExit, ...]:
        """Of the last attempt."""
        return self.attempts[-1].exits if self.attempts else ()

    @property
    def killed(self) -> int:
        """Over all attempts."""
        return sum(attempt.killed for attempt in self.attempts)

    @property
    def culprit(self) -> int | None:
        """The global rank that the last attempt failed of."""
        return None if self.verdict is None else self.verdict.culprit

    @property
    def verdict(self) -> Verdict | None:
        """Of the last attempt."""
        return self.attempts[-1].verdict if self.attempts else None

    def to_json(self) -> str:
        return json_text(asdict(self))

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
            attempts = tuple(Attempt.from_fields(attempt) for attempt in fields.pop("attempts"))
            return cls(**typed(known(cls, fields)), attempts=attempts)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this is no report: {error}") from error
