"""The record of a run: its events as they happen, its report at the end."""

from __future__ import annotations

import time

from launcher.core import atomic
from launcher.core.events import Cause, Event, TimestampedEvent, Trouble
from launcher.core.report import Attempt, Report
from launcher.core.run_dir import RunDir
from launcher.supervise.event_log import EventLog


class RunRecorder:
    """Writes for an agent, for the coordinator of several, or for one that was killed."""

    def __init__(
        self, run: str, server_index: int, run_dir: RunDir, event_log: EventLog, started_ns: int | None = None
    ) -> None:
        """`started_ns`: since when there is something to report, in nanoseconds since 1970; now, if left out."""
        self._run = run
        self._server_index = server_index
        self._started_ns = time.time_ns() if started_ns is None else started_ns
        self.run_dir = run_dir
        self.event_log = event_log

    def record(self, event: Event) -> int:
        """Keep `event` with the present time, which is returned, in nanoseconds since 1970."""
        stamped = TimestampedEvent(time.time_ns(), self._server_index, event)
        self.keep(stamped)
        return stamped.time_ns

    def keep(self, stamped: TimestampedEvent) -> None:
        """Keep an event that was noticed before, or elsewhere."""
        self.event_log.keep(stamped)

    def write_report(
        self,
        cause: Cause,
        exit_code: int,
        attempts: tuple[Attempt, ...],
        *,
        not_restarting: str | None = None,
        unkillable: tuple[int, ...] = (),
        events_lost: int = 0,
    ) -> None:
        """Write report.json; a report that cannot be written is an event. `events_lost`: on other servers."""
        report = Report(
            run=self._run,
            server_index=self._server_index,
            cause=cause,
            exit_code=exit_code,
            started_ns=self._started_ns,
            ended_ns=time.time_ns(),
            attempts=attempts,
            not_restarting=not_restarting,
            unkillable=unkillable,
            events_lost=self.event_log.lost + events_lost,
        )
        try:
            atomic.write_text(self.run_dir.report, report.to_json())
        except OSError as error:
            self.record(Trouble(f"cannot write {self.run_dir.report}: {error.strerror}"))
