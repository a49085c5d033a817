"""Uploads the files of a server's ranks to the coordinator's run directory, if the servers share no file system.

A marker file shows that the run directory is shared. If a server does not see the marker in time, it starts to upload,
and stops when the coordinator's acknowledgements show that the files are the same.

With the uploads, logs, status and reports on the launcher's machine cover all ranks. Ranks are not affected: their
files are read like any other file. To keep other messages prompt, at most one chunk per file, and `WINDOW_BYTES` in
total, await an acknowledgement. The agent sends the rest before its last message. Local files are always complete.
"""

from __future__ import annotations

import base64
import select
import signal
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from launcher.control.messages import ChunkAck, FileChunk, FileSnapshot
from launcher.control.orders import ForwardSignal
from launcher.core.regular_files import read_regular
from launcher.core.run_dir import RunDir
from launcher.logs.log_file import GrowingLog
from launcher.supervise.link import Link

# Paths of files by kind. The first kinds grow, the second kinds are rewritten.
GROWING: Mapping[str, Callable[[RunDir, int], Path]] = {
    "train.log": RunDir.train_log,
    "arrivals": RunDir.arrivals,
    "stacks.log": RunDir.stacks_log,
    "metrics.jsonl": lambda run_dir, _global_rank: run_dir.metrics,
    "scheduler.log": lambda run_dir, _global_rank: run_dir.scheduler_log,
}
REWRITTEN: Mapping[str, Callable[[RunDir, int], Path]] = {
    "heartbeat": RunDir.heartbeat,
    "failure.json": RunDir.failure,
    "env.log": RunDir.env_log,
    "strategy": RunDir.strategy_of,
}
# One for all ranks: sent as a file of the server's lowest rank.
OF_ALL_RANKS = frozenset({"metrics.jsonl", "scheduler.log"})

PIECE_BYTES = 64 << 10
WINDOW_BYTES = 256 << 10  # in flight at the same time
MAX_WHOLE_BYTES = 4 << 20  # larger files are not uploaded
RATE_BYTES_PER_S = 16 << 20  # while ranks run
BURST_BYTES = 1 << 20
EVERY_S = 0.2
BEATS_EVERY_S = 1.0  # a thousand ranks then send a thousand messages per second to one coordinator
ARRIVALS_EVERY_S = 5.0  # until then, the log's modification time is nearly as good
RETRY_S = 5.0  # after a failed write on the coordinator's disk
FINISH_S = 20.0  # for the remaining data at the end


class FileUpload:
    """Uploads the files of this server's ranks to the coordinator. Call `step` each time `timeout_s` has passed."""

    def __init__(
        self, run_dir: RunDir, global_ranks: Collection[int], link: Link, *, follows_another: bool = False
    ) -> None:
        """Prepare the uploads. `follows_another` means that an earlier agent may have uploaded data already."""
        self._run_dir = run_dir
        self._link = link
        self._files: dict[tuple[str, int], _File] = {
            (kind, global_rank): make(kind, global_rank, place(run_dir, global_rank), follows_another)
            for make, places in ((_Growing, GROWING), (_Rewritten, REWRITTEN))
            for kind, place in places.items()
            for global_rank in sorted(global_ranks)[: 1 if kind in OF_ALL_RANKS else None]
        }
        self._turns = deque(self._files.values())
        self._under_way_bytes = 0
        self._allowed_bytes = float(BURST_BYTES)
        self._allowed_at = time.monotonic()
        self._finishing = False
        self._apart = False  # True once an acknowledgement shows that the coordinator's files are different
        self.shares = False  # True once an acknowledgement shows that they are the same: stop sending

    @property
    def timeout_s(self) -> float | None:
        """The seconds until `step` must be called, or None if there is nothing to send for now."""
        if self._under_way_bytes >= WINDOW_BYTES or self.shares:
            return None
        due = min((file.due for file in self._turns if not file.awaits and not self._is_held(file)), default=None)
        if due is None:
            return None
        short_s = 0.0 if self._finishing else -self._allowed_bytes / RATE_BYTES_PER_S
        return max(0.0, max(due, self._allowed_at + short_s) - time.monotonic())

    def step(self) -> None:
        now = time.monotonic()
        earned_bytes = (now - self._allowed_at) * RATE_BYTES_PER_S
        self._allowed_bytes, self._allowed_at = min(BURST_BYTES, self._allowed_bytes + earned_bytes), now
        for _ in range(len(self._turns)):
            is_too_fast = self._allowed_bytes < 0 and not self._finishing
            if self.shares or is_too_fast or self._under_way_bytes >= WINDOW_BYTES:
                return
            self._turns.rotate(-1)
            file = self._turns[-1]
            if not file.awaits and now >= file.due and not self._is_held(file):
                self._send_some(file, now)

    def take(self, kept: ChunkAck) -> None:
        file = self._files.get((kept.kind, kept.global_rank))
        self.shares = self.shares or kept.shares
        if file is None or not file.awaits:
            return
        self._apart |= file.kind not in OF_ALL_RANKS and file.under_way_bytes > 0 and not (kept.trouble or kept.shares)
        self._under_way_bytes -= file.under_way_bytes
        file.under_way_bytes = 0
        file.awaits = False
        file.answered(kept)
        now = time.monotonic()
        if kept.trouble:
            file.due = now + RETRY_S
            file.finished = self._finishing  # do not wait for disk space
        else:
            file.due = now if file.behind or self._finishing else _next_tick(now, file.every_s)

    def finish(self, interrupted: Callable[[], bool]) -> str | None:
        """Send all remaining data. If some of it cannot be sent, return an error message.

        Blocks for at most `FINISH_S`, until `interrupted` returns True, or until the coordinator is lost.
        """
        self._finishing = True
        for file in self._turns:
            file.due = 0.0
        deadline = time.monotonic() + FINISH_S
        while self._link.lost is None and not self.shares and not all(file.finished for file in self._turns):
            if time.monotonic() >= deadline or interrupted() or self._hears_end():
                break
            self.step()
            timeouts_s = (self.timeout_s, self._link.timeout_s, deadline - time.monotonic(), EVERY_S)
            poll = select.poll()
            poll.register(self._link, select.POLLIN)
            poll.poll(1000 * max(0.0, min(seconds for seconds in timeouts_s if seconds is not None)))
        if self.shares:
            return None
        left = [(file.left_bytes(), file.global_rank) for file in self._turns if file.kind == "train.log"]
        some = [f"{count} bytes of rank {global_rank}" for count, global_rank in left if count]
        if not some:
            return None
        more = f" and some of {len(some) - 4} more" if len(some) > 4 else ""
        return f"{', '.join(some[:4])}{more} did not reach the launcher in time: see {self._run_dir.root} on that host"

    def close(self) -> None:
        for file in self._turns:
            file.close()

    def _is_held(self, file: _File) -> bool:
        """Return True if the upload of a file must wait until it is known whether servers share the run directory.

        Files common to all ranks wait: several servers write them, so their acknowledgements cannot show it.
        """
        if file.kind not in OF_ALL_RANKS or file.asks or self._apart:
            return False
        own = (one for one in self._turns if one.kind not in OF_ALL_RANKS)
        return not (self._finishing and all(one.finished for one in own))

    def _send_some(self, file: _File, now: float) -> None:
        try:
            message, size_bytes = file.next()
        except OSError:  # not readable now, perhaps later
            message, size_bytes = None, 0
        if message is None:
            file.finished = self._finishing
            file.due = float("inf") if self._finishing else _next_tick(now, file.every_s)
            return
        file.awaits, file.under_way_bytes = True, size_bytes
        self._under_way_bytes += size_bytes
        self._allowed_bytes -= size_bytes
        self._link.send(message)

    def _hears_end(self) -> bool:
        """Process acknowledgements. Return True if the coordinator orders an immediate stop."""
        messages = self._link.take()
        for message in messages:
            if isinstance(message, ChunkAck):
                self.take(message)
        return any(isinstance(message, ForwardSignal) and message.number == signal.SIGQUIT for message in messages)


class _File(ABC):
    every_s = EVERY_S
    behind = False  # True if more data are known to be pending
    asks = False  # True to ask first how much the coordinator has

    def __init__(self, kind: str, global_rank: int, path: Path) -> None:
        self.kind, self.global_rank, self._path = kind, global_rank, path
        self.due = 0.0  # monotonic time of the next check
        self.awaits = False  # True while an acknowledgement is pending
        self.under_way_bytes = 0
        self.finished = False  # True if all data have been sent at the end

    @abstractmethod
    def next(self) -> tuple[FileChunk | FileSnapshot | None, int]:
        """Return the next message to send and its data size in bytes. If nothing has changed, the message is None."""

    @abstractmethod
    def answered(self, kept: ChunkAck) -> None: ...

    def left_bytes(self) -> int:
        return 0

    def close(self) -> None:  # noqa: B027 - most files have nothing open
        """Close the file. May be called twice."""


class _Growing(_File):
    def __init__(self, kind: str, global_rank: int, path: Path, follows_another: bool) -> None:
        super().__init__(kind, global_rank, path)
        self._log = GrowingLog(path)
        if kind == "arrivals":
            self.every_s = ARRIVALS_EVERY_S
        self._offset = 0  # acknowledged up to this offset
        self.asks = follows_another
        self._first_end = self._log.end  # before ranks write; if the coordinator has more, it is of another disk
        self._anew = False
        self._stays = False

    def next(self) -> tuple[FileChunk | None, int]:
        if self.asks:
            return FileChunk(self.kind, self.global_rank, 0, 0, ""), 0
        self._log.position = self._offset
        offset, data = self._log.read(PIECE_BYTES)
        if offset != self._offset:  # it was truncated or replaced
            self._offset, self._anew, self._stays = offset, True, False
        if not data and not self._anew:
            return None, 0
        self.behind = len(data) >= PIECE_BYTES
        end = self._log.position
        encoded = base64.b64encode(data).decode()
        return FileChunk(self.kind, self.global_rank, self._offset, end, encoded, self._anew, self._stays), len(data)

    def answered(self, kept: ChunkAck) -> None:
        asked, self.asks = self.asks, self.asks and kept.trouble
        self.behind = self.behind or kept.end != self._log.position
        self._offset = kept.end
        self._anew, self._stays = self._anew and kept.trouble, self._stays and kept.trouble
        if asked and kept.end > self._first_end:
            self._offset, self._anew, self._stays, self.behind = 0, True, True, True

    def left_bytes(self) -> int:
        return max(0, self._log.end - self._offset)

    def close(self) -> None:
        self._log.close()


class _Rewritten(_File):
    def __init__(self, kind: str, global_rank: int, path: Path, follows_another: bool) -> None:
        super().__init__(kind, global_rank, path)
        self._sent: tuple[int, ...] | None = None  # state of the acknowledged version
        self._stale = follows_another  # True if the coordinator has a file of an earlier agent
        self._sending: tuple[int, ...] | None = None
        if kind == "heartbeat":
            self.every_s = BEATS_EVERY_S

    def next(self) -> tuple[FileSnapshot | None, int]:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            self._sending = None
            gone = self._sent is not None or self._stale
            return FileSnapshot(self.kind, self.global_rank, None, 0) if gone else None, 0
        self._sending = (found.st_ino, found.st_mtime_ns, found.st_size)
        if self._sending == self._sent or found.st_size > MAX_WHOLE_BYTES:
            return None, 0
        data = read_regular(self._path, MAX_WHOLE_BYTES)
        encoded = base64.b64encode(data).decode()
        return FileSnapshot(self.kind, self.global_rank, encoded, found.st_mtime_ns), len(data)

    def answered(self, kept: ChunkAck) -> None:
        if not kept.trouble:
            self._sent, self._stale = self._sending, False


def _next_tick(now: float, every_s: float) -> float:
    """Return the next multiple of `every_s` after `now`, so that all files are checked at the same time."""
    return (now // every_s + 1) * every_s
