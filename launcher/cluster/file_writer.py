"""Writes files of other servers' ranks in the thread of a disk: one that does not answer holds up no decision."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from launcher.cluster.agent_connection import AgentConnection
from launcher.cluster.recorder import FileReceiver
from launcher.control.messages import ChunkAck, FileChunk, FileSnapshot
from launcher.core.frozen import frozen
from launcher.core.records import RunSpec
from launcher.core.run_dir import RunDir
from launcher.supervise.disk import Disk


@frozen
class Written:
    """The answer to an agent: how far a file of its ranks has come."""

    server_index: int
    peer: AgentConnection
    ack: ChunkAck


class FileWriter:
    """Readable (`fileno`) when `take` has something to return. Nothing here waits for the disk."""

    def __init__(self, spec: RunSpec, disk: Disk) -> None:
        self._disk = disk
        self._done: deque[Written | str] = deque()
        self._receiver = FileReceiver(RunDir(spec.run_dir), spec.ranks, self._put)
        self._bell, self._ringer = socket.socketpair()
        self._bell.setblocking(False)
        self._ringer.setblocking(False)

    def fileno(self) -> int:
        return self._bell.fileno()

    def write(self, server_index: int, message: FileChunk | FileSnapshot, peer: AgentConnection) -> None:
        ahead_ns = peer.pings.clock.ahead_ns
        self._disk.do(lambda: self._write(server_index, message, ahead_ns, peer))

    def take(self, on_trouble: Callable[[str], object], on_written: Callable[[Written], object]) -> None:
        """Hand over what was written since the last call, and what could not be."""
        with suppress(OSError):
            while self._bell.recv(4096):
                pass
        while self._done:
            done = self._done.popleft()
            on_written(done) if isinstance(done, Written) else on_trouble(done)

    def close(self) -> None:
        """Call it once the disk is closed."""
        self._bell.close()
        self._ringer.close()

    # --- the disk's thread ---

    def _write(
        self, server_index: int, message: FileChunk | FileSnapshot, ahead_ns: int, peer: AgentConnection
    ) -> None:
        ack = self._receiver.take(server_index, message, ahead_ns)
        if ack is not None:
            self._put(Written(server_index, peer, ack))

    def _put(self, done: Written | str) -> None:
        self._done.append(done)
        with suppress(OSError):  # it is full, so that it is heard anyway
            self._ringer.send(b"1")
