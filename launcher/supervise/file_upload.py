"""Uploads the files of a server's ranks to the coordinator's run directory if the servers share no file system.

A mark in the directory shows whether they share it. A server may not see the mark at once; then the coordinator finds out.

So logs, status and reports on the launcher's machine cover all ranks, as on one server. Ranks notice nothing: their files
are read as any reader reads them. The agent's messages are never held up for long: at most one chunk of each file is on
its way, and at most `WINDOW_BYTES` in all. What is late comes later, and before its last message the agent sends the
rest. The files on this server are complete at any time, also if the coordinator is lost.
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

# Files by kind: where they are. Those that grow, and those that are rewritten.
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
OF_ALL_RANKS = frozenset(
    {"metrics.jsonl", "scheduler.log"}
)  # one for all ranks: sent in the name of a server's first one

PIECE_BYTES = 64 << 10
WINDOW_BYTES = 256 << 10  # under way at once
MAX_WHOLE_BYTES = 4 << 20  # what is larger stays where it is
RATE_BYTES_PER_S = 16 << 20  # while ranks run
BURST_BYTES = 1 << 20
EVERY_S = 0.2
BEATS_EVERY_S = 1.0  # a thousand ranks' are then a thousand messages a second, for one coordinator
ARRIVALS_EVERY_S = 5.0  # until they come, the log's last write tells nearly as much
RETRY_S = 5.0  # after trouble there
FINISH_S = 20.0  # for what is left in the end


class FileUpload:
    """Call `step` whenever `timeout_s` has passed, `take` with each answer, in the end `finish` and `close`."""

    def __init__(
        self, run_dir: RunDir, global_ranks: Collection[int], link: Link, *, follows_another: bool = False
    ) -> None:
        """`follows_another`: an agent of this run was here before, and what it sent may not be here any more."""
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
        self._apart = False  # an answer has shown that the coordinator's files are others
        self.shares = False  # an answer has shown that they are the same: nothing is sent any more

    @property
    def timeout_s(self) -> float | None:
        """Seconds until something is due; None if an answer has to come first."""
        if self._under_way_bytes >= WINDOW_BYTES or self.shares:
            return None
        moments = [file.due for file in self._turns if not file.awaits and not self._is_held(file)]
        if not moments:
            return None
        now = time.monotonic()
        short_s = 0.0 if self._finishing else -self._allowed_bytes / RATE_BYTES_PER_S
        return max(0.0, min(moments) - now, self._allowed_at + short_s - now)

    def step(self) -> None:
        """Send what is due, in turn, as much as may be under way. Does not block."""
        now = time.monotonic()
        earned_bytes = (now - self._allowed_at) * RATE_BYTES_PER_S
        self._allowed_bytes, self._allowed_at = min(BURST_BYTES, self._allowed_bytes + earned_bytes), now
        for _ in range(len(self._turns)):
            if (
                self.shares
                or self._under_way_bytes >= WINDOW_BYTES
                or (self._allowed_bytes < 0 and not self._finishing)
            ):
                return
            self._turns.rotate(-1)
            file = self._turns[-1]
            if not file.awaits and now >= file.due and not self._is_held(file):
                self._send_some(file, now)

    def take(self, kept: ChunkAck) -> None:
        file = self._files.get((kept.kind, kept.global_rank))
        if kept.shares:
            self.shares = True
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
            file.finished = self._finishing  # room on a disk is not waited for
        else:
            file.due = now if file.behind or self._finishing else _next_tick(now, file.every_s)

    def finish(self, interrupted: Callable[[], bool]) -> str | None:
        """Send all that is left. Blocks, for `FINISH_S` at most; until `interrupted`, or the coordinator is lost.

        Return what to report if not all could be sent.
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
        return f"{', '.join(some[:4])}{more} did not reach the launcher in time: they are in {self._run_dir.root} there"

    def close(self) -> None:
        for file in self._turns:
            file.close()

    def _is_held(self, file: _File) -> bool:
        """Return whether a file of all ranks has to wait until another file has shown that the directory is not shared.

        Several servers write to a file of all ranks, so the coordinator cannot tell from it.
        """
        if file.kind not in OF_ALL_RANKS or file.asks or self._apart:
            return False
        own = (one for one in self._turns if one.kind not in OF_ALL_RANKS)
        return not (self._finishing and all(one.finished for one in own))

    def _send_some(self, file: _File, now: float) -> None:
        try:
            message, size_bytes = file.next()
        except OSError:  # not to be read now, perhaps later
            message, size_bytes = None, 0
        if message is None:
            file.due = _next_tick(now, file.every_s)
            file.finished = self._finishing
            if self._finishing:
                file.due = float("inf")
            return
        file.awaits, file.under_way_bytes = True, size_bytes
        self._under_way_bytes += size_bytes
        self._allowed_bytes -= size_bytes
        self._link.send(message)

    def _hears_end(self) -> bool:
        """Take answers. Return True if the coordinator wants this to end now."""
        impatient = False
        for message in self._link.take():
            if isinstance(message, ChunkAck):
                self.take(message)
            impatient = impatient or (isinstance(message, ForwardSignal) and message.number == signal.SIGQUIT)
        return impatient


class _File(ABC):
    every_s = EVERY_S
    behind = False  # more has to be sent, as far as is known
    asks = False  # how much is there

    def __init__(self, kind: str, global_rank: int, path: Path) -> None:
        self.kind, self.global_rank, self._path = kind, global_rank, path
        self.due = 0.0  # monotonic: when to look at it
        self.awaits = False  # an answer
        self.under_way_bytes = 0
        self.finished = False  # in the end: all of it has been sent

    @abstractmethod
    def next(self) -> tuple[FileChunk | FileSnapshot | None, int]:
        """Return the next message to send, or None, and its size in bytes.

        Raises:
            OSError: the file may not be read.
        """

    @abstractmethod
    def answered(self, kept: ChunkAck) -> None: ...

    def left_bytes(self) -> int:
        return 0

    def close(self) -> None:  # noqa: B027 - most have nothing open
        """May be called twice."""


class _Growing(_File):
    def __init__(self, kind: str, global_rank: int, path: Path, follows_another: bool) -> None:
        super().__init__(kind, global_rank, path)
        self._log = GrowingLog(path)
        if kind == "arrivals":
            self.every_s = ARRIVALS_EVERY_S
        self._offset = 0  # up to here it is there
        self.asks = follows_another
        self._first_end = self._log.end  # before ranks write: less than is there is another disk's file
        self._anew = False
        self._stays = False

    def next(self) -> tuple[FileChunk | None, int]:
        if self.asks:
            return FileChunk(self.kind, self.global_rank, 0, 0, ""), 0
        self._log.position = self._offset
        offset, data = self._log.read(PIECE_BYTES)
        if offset != self._offset:  # it was truncated, or made again
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
        self._sent: tuple[int, ...] | None = None  # what of it is there
        self._stale = follows_another  # what is there is not of this agent
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
    """Return the same moment for all files, so that a server wakes up once for all of them."""
    return (now // every_s + 1) * every_s
