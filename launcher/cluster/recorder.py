"""The record of a run on several servers: the coordinator's events, and the events and files of all ranks."""

from __future__ import annotations

import base64
import binascii
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from launcher.cluster.agent_connection import AgentConnection
from launcher.control.messages import ChunkAck, Done, FileChunk, FileSnapshot
from launcher.core import events
from launcher.core.records import RankSpec, RunSpec, Server
from launcher.core.run_dir import RunDir
from launcher.runs.progress import Progress
from launcher.supervise.agent import LauncherLink
from launcher.supervise.disk import Disk
from launcher.supervise.event_log import EventLog, RunRecorder
from launcher.supervise.file_upload import GROWING, OF_ALL_RANKS, REWRITTEN

MODE, SECRET_MODE = 0o644, 0o600
SECRET = frozenset({"env.log"})  # has the same mode as on its own server
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
# The coordinator itself records attempts, verdicts and ends.
_PASSED_ON = (
    events.AgentStarted, events.Preloading, events.Preloaded, events.RankStarted, events.RankEnded,
    events.SchedulerStarted, events.SchedulerEnded, events.Slow, events.Hung, events.NotExiting, events.Leftovers,
    events.Killing, events.Unkillable,
)  # fmt: skip


class ServersRecorder(RunRecorder):
    """Records the events of all servers, and tracks the run's `progress`."""

    def __init__(self, spec: RunSpec, head: LauncherLink, disk: Disk) -> None:
        run_dir = RunDir(spec.run_dir)
        event_log = EventLog(run_dir.events, events.COORDINATOR, head.events_fd, disk=disk)
        super().__init__(spec.name, events.COORDINATOR, run_dir, event_log)
        self._head = head
        self._unkillable: set[int] = set()
        self._events_lost = 0  # events that servers could not record
        self.progress = Progress(len(spec.ranks))

    def keep(self, stamped: events.TimestampedEvent) -> None:
        self.progress.take(stamped)
        super().keep(stamped)

    def take(self, line: str, ahead_ns: int, server: Server, server_index: int) -> list[events.RankEnded]:
        """Record an event from an agent. Return [event] if the event is the end of a rank, else []."""
        kept = list(passed_on(line, ahead_ns, server, server_index))
        for stamped in kept:
            self.keep(stamped)
        return [stamped.event for stamped in kept if isinstance(stamped.event, events.RankEnded)]

    def note_end(self, done: Done) -> None:
        self._unkillable.update(done.unkillable)
        self._events_lost += done.events_lost

    def close(self, cause: events.Cause, exit_code: int) -> None:
        """Write the report and the last event, and wait until the launcher has read all events."""
        self.write_report(
            cause,
            exit_code,
            self.progress.attempts,
            not_restarting=self.progress.not_restarting,
            unkillable=tuple(sorted(self._unkillable)),
            events_lost=self._events_lost,
        )
        self.record(events.AgentEnded(cause, exit_code))
        self.event_log.close(self._head.death_fd)


def passed_on(line: str, ahead_ns: int, server: Server, server_index: int) -> Iterator[events.TimestampedEvent]:
    """Parse an event from an agent and correct its time. Yield the event if the run's record needs it.

    `ahead_ns`: how far the server's clock is ahead. Invalid lines and events of other servers' ranks are dropped.
    """
    try:
        stamped = events.from_line(line)
    except ValueError:
        return
    if stamped is None:
        return
    own = {device.global_rank for device in server.devices}
    named = {getattr(stamped.event, "global_rank", None), *getattr(stamped.event, "global_ranks", ())}
    if not own.issuperset(named - {None}):
        return
    stamped = replace(stamped, time_ns=stamped.time_ns - ahead_ns, server_index=server_index)
    if isinstance(stamped.event, events.Trouble):
        yield replace(stamped, event=events.Trouble(f"server {server.server_id}: {stamped.event.message}"))
    elif isinstance(stamped.event, _PASSED_ON):
        yield stamped


class FileReceiver:
    """Writes the files that other servers send for their ranks (launcher/supervise/file_upload.py). Never raises.

    Each path is derived from a known kind of file and a rank of the sending server; paths are never received.
    If a write fails, the data is requested again later, and the run continues.

    If a file has more data than this receiver wrote, the agent reads this same file: its server shares the
    run directory, but could not see it at first. The file would grow without end, so nothing is written.
    """

    def __init__(self, run_dir: RunDir, ranks: Iterable[RankSpec], report: Callable[[str], object]) -> None:
        """Accept the files of `ranks`. Call `report` once for each reason that files cannot be written.

        Ranks must have the same numbers in every attempt. Elastic runs, which renumber ranks, send no files, since
        their servers share the run directory.
        """
        self._run_dir = run_dir
        self._server_of = {rank.global_rank: rank.server_index for rank in ranks}
        self._ends: dict[tuple[str, int], int] = {}  # received length of each file, by kind and rank
        self._left: dict[tuple[str, int], tuple[int, ...]] = {}  # size, or `_state`, of files after our last write
        self._report = report
        self._reported: set[str] = set()

    def take(self, server_index: int, message: FileChunk | FileSnapshot, ahead_ns: int) -> ChunkAck | None:
        """Write the data and return the acknowledgement, or None if the message is invalid."""
        if self._server_of.get(message.global_rank) != server_index:
            return None
        kinds = GROWING if isinstance(message, FileChunk) else REWRITTEN
        if message.kind not in kinds:
            return None
        path = kinds[message.kind](self._run_dir, message.global_rank)
        try:
            data = None if message.data is None else base64.b64decode(message.data, validate=True)
        except (binascii.Error, ValueError):
            return None
        if isinstance(message, FileChunk):
            return self._append(path, message, data or b"")
        key = (message.kind, message.global_rank)
        if _state(path) not in {None, self._left.get(key)}:
            return ChunkAck(*key, 0, shares=True)
        is_trouble = False
        try:
            if data is None:
                path.unlink(missing_ok=True)
            else:
                if message.kind == "strategy":  # the only file in its directory
                    path.parent.mkdir(exist_ok=True)
                mode = SECRET_MODE if message.kind in SECRET else MODE
                _replace(path, data, message.written_ns - ahead_ns, mode)
                self._left[key] = _state(path) or ()
        except (OSError, OverflowError) as error:
            is_trouble = self._is_trouble(path, error)
        return ChunkAck(*key, 0, is_trouble)

    def _append(self, path: Path, piece: FileChunk, data: bytes) -> ChunkAck:
        key = (piece.kind, piece.global_rank)
        end = self._ends.get(key, 0)
        if not piece.anew and (piece.offset != end or not data):  # without data it asks for the length
            return ChunkAck(*key, end)
        written = 0
        empty_first = piece.anew and not (piece.stays or piece.kind in OF_ALL_RANKS)
        try:
            if piece.kind == "scheduler.log":  # the only file in its directory
                path.parent.mkdir(exist_ok=True)
            descriptor = os.open(path, _APPEND, MODE)
            try:
                if piece.kind not in OF_ALL_RANKS and (os.fstat(descriptor).st_size,) > self._left.get(key, (0,)):
                    return ChunkAck(*key, end, shares=True)
                if empty_first:
                    os.ftruncate(descriptor, 0)
                try:
                    while written < len(data):
                        written += os.write(descriptor, data[written:])
                finally:
                    self._left[key] = (os.fstat(descriptor).st_size,)
            finally:
                os.close(descriptor)
        except OSError as error:
            if empty_first:  # the piece will be sent again, and empties the file again
                written = 0
            self._ends[key] = piece.offset + min(written, piece.end - piece.offset)
            return ChunkAck(*key, self._ends[key], self._is_trouble(path, error))
        self._ends[key] = piece.end
        return ChunkAck(*key, piece.end)

    def _is_trouble(self, path: Path, error: OSError | OverflowError) -> bool:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        if reason not in self._reported:  # on a full disk one message is enough for a thousand logs
            self._reported.add(reason)
            self._report(f"cannot write files of other servers' ranks, will retry: {path}: {reason}")
        return True


class FileWriter:
    """Writes agents' files in the thread for disk access, so that a stalled disk does not block the coordinator.

    `fileno` is readable when `answer` has something to send.
    """

    def __init__(self, spec: RunSpec, disk: Disk) -> None:
        self._spec = spec
        self._disk = disk
        self._done: deque[tuple[int, AgentConnection, ChunkAck] | str] = deque()  # answers, or messages
        self._receiver = FileReceiver(RunDir(spec.run_dir), spec.ranks, self._put)
        self._bell, self._ringer = socket.socketpair()
        self._bell.setblocking(False)
        self._ringer.setblocking(False)

    def fileno(self) -> int:
        return self._bell.fileno()

    def write(self, server_index: int, message: FileChunk | FileSnapshot, peer: AgentConnection) -> None:
        ahead_ns = peer.pings.clock.ahead_ns

        def write() -> None:  # in the disk's thread
            if (ack := self._receiver.take(server_index, message, ahead_ns)) is not None:
                self._put((server_index, peer, ack))

        self._disk.do(write)

    def answer(self) -> Iterator[str]:
        """Send pending acknowledgements to the agents. Yield messages about failed writes and shared directories."""
        with suppress(OSError):
            while self._bell.recv(4096):
                pass
        while self._done:
            done = self._done.popleft()
            if isinstance(done, str):
                yield done
                continue
            server_index, peer, ack = done
            peer.send(ack)
            if ack.shares and peer.ready is not None and not peer.ready.shares_files:
                peer.ready = replace(peer.ready, shares_files=True)
                which = f"server {self._spec.cluster.servers[server_index].server_id}"
                shares = f"shares the run directory {self._spec.run_dir}, which it could not see at first"
                yield f"{which} {shares}: its files are no longer copied"

    def close(self) -> None:
        self._bell.close()
        self._ringer.close()

    def _put(self, done: tuple[int, AgentConnection, ChunkAck] | str) -> None:
        """Pass an acknowledgement or a message from the thread for disk access to the coordinator's thread."""
        self._done.append(done)
        with suppress(OSError):  # a full socket is readable anyway
            self._ringer.send(b"1")


def _state(path: Path) -> tuple[int, ...] | None:
    """Return a tuple that changes when the file is rewritten, or None if there is no file."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _replace(path: Path, data: bytes, written_ns: int, mode: int) -> None:
    """Replace a file atomically. Do not sync it to disk, because each rank's heartbeat is replaced every second."""
    aside = path.with_name(f".{path.name}.mirrored")
    try:
        aside.touch(mode=mode)
        aside.write_bytes(data)
        os.utime(aside, ns=(written_ns, written_ns))
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
