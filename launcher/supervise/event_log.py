"""Writes a run's records: events.jsonl, events for the launcher, and report.json. Write errors never stop a run."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from launcher.core import atomic
from launcher.core.events import Cause, Event, TimestampedEvent, Trouble, to_line
from launcher.core.run_dir import RunDir
from launcher.core.run_report import Attempt, Report
from launcher.supervise.disk import Disk


class EventLog:
    """Appends events to a file and sends them to the launcher. Only `flush` and `close` block.

    No method raises. Events that cannot be written, for example to a full disk, are counted in `lost`. Events for a
    launcher that does not read are kept in memory, up to a few lines per rank.
    """

    def __init__(
        self,
        path: Path,
        server_index: int,
        head_fd: int | None = None,
        tell: Callable[[str], None] | None = None,
        disk: Disk | None = None,
    ) -> None:
        """Open the file. Events are written in the thread of `disk`, if given, and are also passed to `tell`."""
        self._tell = tell
        self._disk = disk
        self._server_index = server_index
        self._head_fd = head_fd
        self._for_head = bytearray()
        self._file_fd: int | None = None
        self._torn = False  # the file ends with an incomplete line
        self.lost = 0
        if head_fd is not None:
            os.set_blocking(head_fd, False)
        with suppress(OSError):  # without a file, every event counts as lost
            self._file_fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def record(self, event: Event, time_ns: int | None = None) -> int:
        """Record an event at `time_ns`, by default now, and return the recorded time."""
        stamped = TimestampedEvent(time.time_ns() if time_ns is None else time_ns, self._server_index, event)
        self.keep(stamped)
        return stamped.time_ns

    def keep(self, stamped: TimestampedEvent) -> None:
        """Record an event that was noticed earlier or on another server."""
        text = to_line(stamped)
        line = text.encode()
        if self._disk is None:
            self._write(line)
        else:
            self._disk.do(lambda: self._write(line))
        if self._tell is not None:
            self._tell(text)
        if self._head_fd is not None:
            self._for_head += line
            self.send()

    def _write(self, line: bytes) -> None:
        rest = b"\n" + line if self._torn else line
        try:
            while rest:
                if self._file_fd is None:
                    raise OSError  # noqa: TRY301 - counted as lost like other errors
                rest = rest[os.write(self._file_fd, rest) :]
                self._torn = bool(rest)
        except OSError:
            self.lost += 1

    @property
    def backlog(self) -> bool:
        """True if there are unsent events for the launcher. Call `send` once the pipe to the launcher is writable."""
        return self._head_fd is not None and bool(self._for_head)

    def send(self) -> None:
        try:
            while self._head_fd is not None and self._for_head:
                del self._for_head[: os.write(self._head_fd, self._for_head)]
        except BlockingIOError:
            pass
        except OSError:  # EPIPE: the launcher has exited
            self.forget_head()

    def flush(self) -> None:
        """Block until every event is written or counted as lost."""
        if self._disk is not None:
            self._disk.wait()

    def forget_head(self) -> None:
        self._head_fd = None
        self._for_head.clear()

    def close(self, death_fd: int | None = None) -> None:
        """Wait until the launcher has received all events or has exited, then close the file."""
        poll = select.poll()
        if self._head_fd is not None:
            poll.register(self._head_fd, select.POLLOUT)
        if death_fd is not None:
            poll.register(death_fd, select.POLLIN)
        while self.backlog:
            if any(descriptor == death_fd for descriptor, _ in poll.poll()):
                self.forget_head()
            self.send()
        self.flush()
        if self._file_fd is not None:
            os.close(self._file_fd)
            self._file_fd = None


class RunRecorder:
    """Writes the events and the report of an agent or of the coordinator."""

    def __init__(
        self, run: str, server_index: int, run_dir: RunDir, event_log: EventLog, started_ns: int | None = None
    ) -> None:
        """Prepare the report of a run that started at `started_ns` (nanoseconds since 1970), by default now."""
        self._run = run
        self._server_index = server_index
        self._started_ns = time.time_ns() if started_ns is None else started_ns
        self.run_dir = run_dir
        self.event_log = event_log

    def record(self, event: Event) -> None:
        self.keep(TimestampedEvent(time.time_ns(), self._server_index, event))

    def keep(self, stamped: TimestampedEvent) -> None:
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
        """Wait until all events are written, then write report.json. If that fails, record an event."""
        self.event_log.flush()
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
