"""The record of a run over several servers: what its coordinator decides, and what its agents report of their ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from launcher.core.events import (
    COORDINATOR,
    AgentEnded,
    AgentStarted,
    Cause,
    Event,
    Hung,
    Killing,
    Leftovers,
    Preloaded,
    Preloading,
    RankEnded,
    RankStarted,
    Slow,
    TimestampedEvent,
    Trouble,
    Unkillable,
    from_line,
)
from launcher.core.messages import Done
from launcher.core.records import RunSpec, Server
from launcher.core.run_dir import RunDir
from launcher.runs.progress import Progress
from launcher.supervise.agent import LauncherLink
from launcher.supervise.event_log import EventLog, RunRecorder

# What an agent says of attempts, verdicts and ends is the coordinator's own word, come back.
_PASSED_ON = (
    AgentStarted, Preloading, Preloaded, RankStarted, RankEnded, Slow, Hung, Leftovers, Killing, Unkillable,
)  # fmt: skip


class ServersRecorder(RunRecorder):
    """Keeps what happens, on whichever server, and knows how the run stands: `progress`."""

    def __init__(self, spec: RunSpec, head: LauncherLink) -> None:
        run_dir = RunDir(spec.run_dir)
        super().__init__(spec.name, COORDINATOR, run_dir, EventLog(run_dir.events, COORDINATOR, head.events_fd))
        self._head = head
        self._unkillable: set[int] = set()
        self._events_lost = 0  # on servers
        self.progress = Progress(len(spec.ranks))

    def keep(self, stamped: TimestampedEvent) -> None:
        """Keep an event, also of a server."""
        self.progress.take(stamped)
        super().keep(stamped)

    def take(self, line: str, ahead_ns: int, server: Server, server_index: int) -> list[RankEnded]:
        """Keep what an agent has reported, with our time instead of its own; return the ends of ranks among that."""
        kept = list(passed_on(line, ahead_ns, server, server_index))
        for stamped in kept:
            self.keep(stamped)
        return [stamped.event for stamped in kept if isinstance(stamped.event, RankEnded)]

    def note_end(self, done: Done) -> None:
        """Take note of an agent's last word."""
        self._unkillable.update(done.unkillable)
        self._events_lost += done.events_lost

    def close(self, cause: Cause, exit_code: int) -> None:
        """Write the report, say the last word, and wait until the head has taken everything."""
        self.write_report(
            cause,
            exit_code,
            self.progress.attempts,
            not_restarting=self.progress.not_restarting,
            unkillable=tuple(sorted(self._unkillable)),
            events_lost=self._events_lost,
        )
        self.record(AgentEnded(cause, exit_code))
        self.event_log.close(self._head.death_fd)


def passed_on(line: str, ahead_ns: int, server: Server, server_index: int) -> Iterator[TimestampedEvent]:
    """Yield the event with the coordinator's time, if it is one for all: `ahead_ns` is how far the server's clock is ahead.

    A server speaks of itself and of its own ranks only.
    """
    try:
        stamped = from_line(line)
    except (ValueError, RecursionError):
        return
    if stamped is None or not _is_of(server, stamped.event):
        return
    stamped = replace(stamped, time_ns=stamped.time_ns - ahead_ns, server_index=server_index)
    if isinstance(stamped.event, Trouble):
        yield replace(stamped, event=Trouble(f"server {server.server_id}: {stamped.event.message}"))
    elif isinstance(stamped.event, _PASSED_ON):
        yield stamped


def _is_of(server: Server, event: Event) -> bool:
    own = {device.global_rank for device in server.devices}
    if isinstance(event, RankStarted | RankEnded | Slow):
        return event.global_rank in own
    return not isinstance(event, Hung) or own.issuperset(event.global_ranks)
