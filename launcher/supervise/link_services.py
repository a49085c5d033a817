"""An agent's services for the coordinator of several servers: uploading files and collecting stacks of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from launcher.control.messages import ChunkAck, Message, TakeStacks
from launcher.core.events import Trouble
from launcher.core.run_dir import RunDir
from launcher.supervise.event_log import EventLog
from launcher.supervise.file_upload import FileUpload
from launcher.supervise.link import Link
from launcher.supervise.stack_collection import StackCollection


class LinkServices:
    """The upload of files and the collection of stacks. Owns the link. Only `finish_upload` and `close` block."""

    def __init__(
        self, link: Link, run_dir: RunDir, event_log: EventLog, global_ranks: Sequence[int], *, follows_another: bool
    ) -> None:
        """Start to upload these ranks' files if the coordinator cannot see them. `follows_another`: see FileUpload."""
        self.link: Link | None = link  # None once the coordinator is lost
        self._run_dir = run_dir
        self._event_log = event_log
        self._upload: FileUpload | None = None
        if not link.shares_files:
            self._upload = FileUpload(run_dir, global_ranks, link, follows_another=follows_another)
        self._survey = StackCollection(run_dir, link.send)

    @property
    def next_action_s(self) -> list[float | None]:
        return [part.timeout_s for part in (self.link, self._upload, self._survey) if part is not None]

    def step(self) -> None:
        if self._upload is not None:
            self._upload.step()
        self._survey.step()

    def hear(self, running: Mapping[int, int]) -> Iterator[Message]:
        """Handle messages for the services and yield all others. `running` has pids by global rank."""
        for message in () if self.link is None else self.link.take():
            if isinstance(message, ChunkAck) and self._upload is not None:
                self._upload.take(message)
                if self._upload.shares:
                    self._end_upload()
            elif isinstance(message, TakeStacks):
                self._survey.begin(message, running)
            else:
                yield message

    def lose(self) -> bool:
        """Close a lost link. Return True if it was lost since the last call."""
        if self.link is None or self.link.lost is None:
            return False
        self._end_upload()
        self._event_log.record(Trouble(f"the run's coordinator is lost: {self.link.lost}"))
        self.link.close()
        self.link = None
        return True

    def finish_upload(self, hears_kill: Callable[[], bool]) -> None:
        """Upload the remaining data; the coordinator waits for it. Stops early if `hears_kill` returns True."""
        if self._upload is not None:
            left = self._upload.finish(hears_kill)
            self._end_upload()
            if left is not None:
                self._event_log.record(Trouble(left))

    def close(self, unkillable: tuple[int, ...]) -> None:
        self._survey.close()
        if self.link is not None:
            self.link.say_farewell(unkillable, self._event_log.lost)

    def _end_upload(self) -> None:
        upload, self._upload = self._upload, None
        if upload is not None:
            upload.close()
            if not upload.shares:  # otherwise the file belongs to the coordinator
                with suppress(OSError):  # local clients then find no server to ask
                    self._run_dir.endpoint.unlink()
