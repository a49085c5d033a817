"""Writing of other servers' files in a disk's thread, so that a stalled disk does not block the coordinator."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from launcher.cluster.agent_connection import AgentConnection
from launcher.cluster.recorder import FileReceiver
from launcher.control.messages import ChunkAck, FileChunk, FileSnapshot
from launcher.core.records import RunSpec
from launcher.core.run_dir import RunDir
from launcher.supervise.disk import Disk


class FileWriter:
    """A writer of files from agents that never blocks. `fileno` is readable when `answer` has something to send."""

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
        """Send agents the new answers; yield messages about files that were not written, or that are shared."""
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
        """Pass an answer or a message from the disk's thread to the coordinator's."""
        self._done.append(done)
        with suppress(OSError):  # a full socket is readable anyway
            self._ringer.send(b"1")
