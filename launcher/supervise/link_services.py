"""The services of an agent to its coordinator beside its ranks: it sends files, and says where ranks are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from launcher.core.events import Trouble
from launcher.core.messages import ChunkAck, Message, TakeStacks
from launcher.core.run_dir import RunDir
from launcher.supervise.event_log import EventLog
from launcher.supervise.link import Link

if TYPE_CHECKING:
    from launcher.supervise.file_upload import FileUpload
    from launcher.supervise.survey import Survey


class LinkServices:
    """Owns the link. Nothing here waits until `finish`."""

    def __init__(self, link: Link, run_dir: RunDir, event_log: EventLog) -> None:
        self.link: Link | None = link  # None once the coordinator is lost
        self._run_dir = run_dir
        self._event_log = event_log
        self._upload: FileUpload | None = None  # where the coordinator does not see what ranks write
        self._survey: Survey | None = None  # once somebody has asked where ranks are

    def begin(self, global_ranks: Sequence[int], *, follows_another: bool) -> None:
        """Send what these ranks write, where the coordinator does not see it. `follows_another`: agent, on this server."""
        if self.link is not None and not self.link.shares_files:
            from launcher.supervise.file_upload import FileUpload  # noqa: PLC0415 - few runs need it

            self._upload = FileUpload(self._run_dir, global_ranks, self.link, follows_another=follows_another)

    @property
    def due_s(self) -> list[float | None]:
        """The seconds until each part has something to do; None where it has not."""
        return [part.timeout_s for part in (self.link, self._upload, self._survey) if part is not None]

    def step(self) -> None:
        """Do what is due."""
        if self._upload is not None:
            self._upload.step()
        if self._survey is not None:
            self._survey.step()

    def hear(self, running: Mapping[int, int]) -> Iterator[Message]:
        """Yield what the coordinator orders of ranks; the rest is done here. `running`: pids by global rank."""
        for message in () if self.link is None else self.link.take():
            if isinstance(message, ChunkAck) and self._upload is not None:
                self._upload.take(message)
            elif isinstance(message, TakeStacks):
                self._take_stacks(message, running)
            else:
                yield message

    def lose(self) -> bool:
        """Let go of a link that is lost; return whether it was lost since the last call."""
        if self.link is None or self.link.lost is None:
            return False
        why, self.link = self.link.lost, None
        self._forget_upload()
        self._event_log.record(Trouble(f"the run's coordinator is lost: {why}"))
        return True

    def finish_upload(self, hears_kill: Callable[[], bool]) -> None:
        """Send the rest before the last word; the coordinator waits for it. `hears_kill`: nobody waits any longer."""
        if self._upload is not None:
            left = self._upload.finish(hears_kill)
            self._forget_upload()
            if left is not None:
                self._event_log.record(Trouble(left))

    def close(self, unkillable: tuple[int, ...]) -> None:
        """Say the last word."""
        if self._survey is not None:
            self._survey.close()
        if self.link is not None:
            self.link.say_farewell(unkillable, self._event_log.lost)

    def _take_stacks(self, asked: TakeStacks, running: Mapping[int, int]) -> None:
        from launcher.supervise.survey import Survey  # noqa: PLC0415 - most runs need none of it

        if self.link is not None:
            self._survey = self._survey or Survey(self._run_dir, self.link.send)
            self._survey.begin(asked, running)

    def _forget_upload(self) -> None:
        if self._upload is not None:
            self._upload.close()
            self._upload = None
            with suppress(OSError):  # whoever looks here finds nobody to ask any more
                self._run_dir.endpoint.unlink()
