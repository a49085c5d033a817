"""The log of an agent's events: events.jsonl, the pipe to the head, perhaps more. None of them can stop supervision."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from launcher.core.events import Event, TimestampedEvent, to_line


class EventLog:
    """Appends every event to a file and offers it to the head. Never raises, never blocks until `close`.

    A full disk or a lost directory costs events (counted in `lost`); a head that does not read costs memory, and no
    more of it than a few lines per rank.
    """

    def __init__(
        self, path: Path, server_index: int, head_fd: int | None = None, tell: Callable[[str], None] | None = None
    ) -> None:
        """`tell` takes every line too; it must neither raise nor block."""
        self._tell = tell
        self._server_index = server_index
        self._head_fd = head_fd
        self._for_head = bytearray()
        self._file_fd: int | None = None
        self._torn = False  # whether the file ends inside a line
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
        """Keep what somebody else has noticed."""
        text = to_line(stamped)
        line = text.encode()
        self._append(line)
        if self._tell is not None:
            self._tell(text)
        if self._head_fd is not None:
            self._for_head += line
            self.send()

    @property
    def backlog(self) -> bool:
        """Return whether the head has not taken everything: wait until its pipe is writable and call `send`."""
        return self._head_fd is not None and bool(self._for_head)

    def send(self) -> None:
        """Give the head what it takes without blocking."""
        try:
            while self._head_fd is not None and self._for_head:
                del self._for_head[: os.write(self._head_fd, self._for_head)]
        except BlockingIOError:
            pass
        except OSError:  # EPIPE: nobody listens any more
            self.forget_head()

    def forget_head(self) -> None:
        self._head_fd = None
        self._for_head.clear()

    def close(self, death_fd: int | None = None) -> None:
        """Wait until the head has taken everything, or has gone (`death_fd` readable), and close the file."""
        with selectors.DefaultSelector() as selector:
            if self.backlog and self._head_fd is not None:
                selector.register(self._head_fd, selectors.EVENT_WRITE)
                if death_fd is not None:
                    selector.register(death_fd, selectors.EVENT_READ)
            while self.backlog:
                if any(key.fd == death_fd for key, _ in selector.select()):
                    self.forget_head()
                self.send()
        if self._file_fd is not None:
            os.close(self._file_fd)
            self._file_fd = None

    def _append(self, line: bytes) -> None:
        rest = b"\n" + line if self._torn else line
        try:
            while rest:
                if self._file_fd is None:
                    raise OSError  # noqa: TRY301 - lost like any other
                written = os.write(self._file_fd, rest)
                rest = rest[written:]
                self._torn = bool(rest)
        except OSError:
            self.lost += 1
