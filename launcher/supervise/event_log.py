"""The record of a run: events.jsonl, the pipe to the launcher, report.json. None of them can stop supervision."""

from __future__ import annotations

import os
import selectors
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
    """Appends every event to a file and offers it to the launcher. Never raises, never blocks until `flush` or `close`.

    A full disk or a lost directory costs events (counted in `lost`); a launcher that does not read costs memory, and no
    more of it than a few lines per rank.
    """

    def __init__(
        self,
        path: Path,
        server_index: int,
        head_fd: int | None = None,
        tell: Callable[[str], None] | None = None,
        disk: Disk | None = None,
    ) -> None:
        """`tell` takes every line too; it must neither raise nor block. Without `disk` every write is waited for."""
        self._tell = tell
        self._disk = disk
        self._server_index = server_index
        self._head_fd = head_fd
        self._for_head = bytearray()
        self._file_fd: int | None = None
        self._torn = False  # the file ends inside a line
        self.lost = 0
        if head_fd is not None:
            os.set_blocking(head_fd, False)
        with suppress(OSError):  # without a file, every event counts as lost
            self._file_fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def record(self, event: Event, time_ns: int | None = None) -> int:
        """Keep `event` with the time at which it was noticed (now, if left out), which is returned."""
        stamped = TimestampedEvent(time.time_ns() if time_ns is None else time_ns, self._server_index, event)
        self.keep(stamped)
        return stamped.time_ns

    def keep(self, stamped: TimestampedEvent) -> None:
        """Keep an event that was noticed before, or elsewhere."""
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
                    raise OSError  # noqa: TRY301 - lost like any other
                rest = rest[os.write(self._file_fd, rest) :]
                self._torn = bool(rest)
        except OSError:
            self.lost += 1

    @property
    def backlog(self) -> bool:
        """True if the launcher has not taken everything: wait until its pipe is writable and call `send`."""
        return self._head_fd is not None and bool(self._for_head)

    def send(self) -> None:
        """Give the launcher what it takes without blocking."""
        try:
            while self._head_fd is not None and self._for_head:
                del self._for_head[: os.write(self._head_fd, self._for_head)]
        except BlockingIOError:
            pass
        except OSError:  # EPIPE: the launcher has gone
            self.forget_head()

    def flush(self) -> None:
        """Wait until every event is in the file, or counts as lost."""
        if self._disk is not None:
            self._disk.wait()

    def forget_head(self) -> None:
        self._head_fd = None
        self._for_head.clear()

    def close(self, death_fd: int | None = None) -> None:
        """Wait until the launcher has taken everything, or has gone (`death_fd` readable), and close the file."""
        with selectors.DefaultSelector() as selector:
            if self.backlog and self._head_fd is not None:
                selector.register(self._head_fd, selectors.EVENT_WRITE)
                if death_fd is not None:
                    selector.register(death_fd, selectors.EVENT_READ)
            while self.backlog:
                if any(key.fd == death_fd for key, _ in selector.select()):
                    self.forget_head()
                self.send()
        self.flush()
        if self._file_fd is not None:
            os.close(self._file_fd)
            self._file_fd = None


class RunRecorder:
    """Writes events and the report, for an agent, for the coordinator of several, or for an agent that was killed."""

    def __init__(
        self, run: str, server_index: int, run_dir: RunDir, event_log: EventLog, started_ns: int | None = None
    ) -> None:
        """`started_ns`: since when there is something to report, in nanoseconds since 1970; now, if left out."""
        self._run = run
        self._server_index = server_index
        self._started_ns = time.time_ns() if started_ns is None else started_ns
        self.run_dir = run_dir
        self.event_log = event_log

    def record(self, event: Event) -> None:
        """Keep `event` with the present time."""
        self.keep(TimestampedEvent(time.time_ns(), self._server_index, event))

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
        """Write report.json; a report that cannot be written is an event. `events_lost`: on other servers. Blocks."""
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
