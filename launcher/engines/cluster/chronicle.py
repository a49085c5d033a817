"""What is told of a run over several servers: events.jsonl, report.json, and the head's pipe."""

from __future__ import annotations

import time

from launcher.core import atomic
from launcher.core.events import COORDINATOR, AgentEnded, Event, TimestampedEvent, Trouble
from launcher.core.messages import Done, Finish
from launcher.core.records import RunSpec, Server
from launcher.core.report import Report
from launcher.core.run_dir import RunDir
from launcher.engines.cluster.tidings import passed_on
from launcher.runs.progress import Progress
from launcher.supervise.agent import LauncherLink
from launcher.supervise.event_log import EventLog


class Chronicle:
    """Keeps what happens, whoever noticed it, and knows how the run stands: `progress`."""

    def __init__(self, spec: RunSpec, run_dir: RunDir, head: LauncherLink) -> None:
        self._spec = spec
        self._run_dir = run_dir
        self._head = head
        self._started_ns = time.time_ns()
        self._unkillable: set[int] = set()
        self._events_lost = 0  # on servers
        self.event_log = EventLog(run_dir.events, COORDINATOR, head.events_fd)
        self.progress = Progress(len(spec.ranks))

    def record(self, event: Event) -> None:
        """What concerns all servers."""
        self._keep(TimestampedEvent(time.time_ns(), COORDINATOR, event))

    def take(self, line: str, ahead_ns: int, server: Server, server_index: int) -> None:
        """What an agent has told, with our time instead of its own."""
        for stamped in passed_on(line, ahead_ns, server, server_index):
            self._keep(stamped)

    def note_end(self, done: Done) -> None:
        """An agent's last word."""
        self._unkillable.update(done.unkillable)
        self._events_lost += done.events_lost

    def close(self, finish: Finish) -> None:
        """Write the report, say the last word, and wait until the head has taken everything."""
        try:
            atomic.write_text(self._run_dir.report, self._report(finish).to_json())
        except OSError as error:
            self.record(Trouble(f"cannot write {self._run_dir.report}: {error.strerror}"))
        self.record(AgentEnded(finish.cause, finish.exit_code))
        self.event_log.close(self._head.death_fd)

    def _report(self, finish: Finish) -> Report:
        return Report(
            run=self._spec.name,
            server_index=COORDINATOR,
            cause=finish.cause,
            exit_code=finish.exit_code,
            started_ns=self._started_ns,
            ended_ns=time.time_ns(),
            attempts=self.progress.attempts,
            not_restarting=self.progress.not_restarting,
            unkillable=tuple(sorted(self._unkillable)),
            events_lost=self.event_log.lost + self._events_lost,
        )

    def _keep(self, stamped: TimestampedEvent) -> None:
        self.progress.take(stamped)
        self.event_log.keep(stamped)
