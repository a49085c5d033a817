"""The files that ranks write on servers that do not share the coordinator's, kept here as it comes."""

from __future__ import annotations

from collections.abc import Callable

from launcher.cluster.agent_connection import AgentConnection
from launcher.cluster.file_receiver import FileReceiver
from launcher.core.events import Event, Trouble
from launcher.core.messages import FileChunk, FileSnapshot, Message
from launcher.core.records import RunSpec
from launcher.core.run_dir import RunDir


class ReceivedFiles:
    """Keeps what ranks of servers without the run directory write, in the coordinator's."""

    def __init__(self, spec: RunSpec, record: Callable[[Event], object]) -> None:
        self._record = record
        self._receiver = FileReceiver(RunDir(spec.run_dir), spec.ranks, self._note_trouble)

    def take(self, peer: AgentConnection, message: Message) -> bool:
        """Keep what a server's ranks wrote to its own disk, and say so there; return whether it was that."""
        if peer.server_index is None or peer.ready is None or peer.ready.shares_files:
            return False
        if not isinstance(message, FileChunk | FileSnapshot):
            return False
        kept = self._receiver.take(peer.server_index, message, peer.pings.clock.ahead_ns)
        if kept is not None:
            peer.send(kept)
        return True

    def _note_trouble(self, trouble: str) -> None:
        self._record(Trouble(trouble))
