"""The files that ranks write on servers that do not share the coordinator's, kept here as it comes."""

from __future__ import annotations

from collections.abc import Callable, Collection

from launcher.core.events import Event, Trouble
from launcher.core.messages import FileChunk, FileSnapshot, Message
from launcher.core.records import RunSpec
from launcher.core.run_dir import RunDir
from launcher.engines.cluster.agent_connection import AgentConnection
from launcher.engines.cluster.file_receiver import FileReceiver
from launcher.supervise.event_log import EventLog
from launcher.supervise.log_keeper import LogKeeper


class ReceivedFiles:
    """Keeps them, and keeps their logs small: agents see to their own."""

    def __init__(self, spec: RunSpec, event_log: EventLog, record: Callable[[Event], object]) -> None:
        self._spec = spec
        self._event_log = event_log
        self._record = record
        self._receiver = FileReceiver(RunDir(spec.run_dir), spec.ranks, self._note_trouble)
        self.log_keeper = LogKeeper({}, None, event_log)

    def expect_from(self, server_indices: Collection[int]) -> None:
        """Keep the logs of these servers small from now on."""
        ranks = [rank.global_rank for rank in self._spec.ranks if rank.server_index in server_indices]
        if ranks:
            run_dir = RunDir(self._spec.run_dir)
            logs = {global_rank: run_dir.train_log(global_rank) for global_rank in ranks}
            self.log_keeper = LogKeeper(logs, self._spec.supervision.log_max_bytes, self._event_log)
            self.log_keeper.start()

    def take(self, peer: AgentConnection, message: Message) -> bool:
        """Keep what a server's ranks wrote to its own disk, and say so there; return whether it was that."""
        if peer.server_index is None or peer.ready is None or peer.ready.shares_files:
            return False
        if not isinstance(message, FileChunk | FileSnapshot):
            return False
        kept = self._receiver.take(peer.server_index, message, peer.clock.ahead_ns)
        if kept is not None:
            peer.send(kept)
        return True

    def _note_trouble(self, trouble: str) -> None:
        self._record(Trouble(trouble))
