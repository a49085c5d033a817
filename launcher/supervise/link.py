"""An agent's connection to the coordinator of a run over several servers, and what it does for it beside its ranks.

A thread receives what comes, and answers pings. It touches no disk: a server whose disk does not answer is there.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from launcher.core.channel import Channel, ChannelClosedError, Silence
from launcher.core.events import Trouble
from launcher.core.messages import ChunkAck, Done, EventReport, Message, Ping, Pong, TakeStacks
from launcher.core.run_dir import RunDir
from launcher.supervise.disk import Disk, start_thread
from launcher.supervise.event_log import EventLog

if TYPE_CHECKING:
    from threading import Thread

    from launcher.supervise.file_upload import FileUpload
    from launcher.supervise.survey import Survey

LAST_MESSAGES_S = 5.0  # how long the coordinator may take to receive them


class Link:
    """The connection. Never raises: once the coordinator is gone, or silent for too long, `lost` says why.

    Call `begin` in the process that uses it. From then on `fileno` is readable when `take` has something to return.
    """

    def __init__(self, channel: Channel, silence_s: float, *, shares_files: bool = True, by_hand: bool = False) -> None:
        """`silence_s`: a coordinator that is not heard for that long is lost. `shares_files`: it sees what is written here.

        `by_hand`: a person has this server's launcher before him, and what signals it gets is meant for all servers.
        An engine hands its own to the agents of all servers.
        """
        self.shares_files = shares_files
        self.by_hand = by_hand
        self._channel = channel
        self._silence = Silence(channel, silence_s)
        self._disk: Disk | None = None
        self._thread: Thread | None = None
        self._mute: str | None = None  # why nothing can be sent any more; last messages may have come
        self._received: deque[Message] = deque()
        self._ended: str | None = None  # why nothing more comes; set by the thread as its last act
        self._closing = False
        # What one side writes wakes the other: the loop when messages have come, the thread when bytes are left to send.
        self._loop_end, self._thread_end = socket.socketpair()
        self._loop_end.setblocking(False)
        self._thread_end.setblocking(False)
        self.other_disk_stalls = False  # that of some server of the run
        self.lost: str | None = None  # why

    def begin(self, disk: Disk | None = None) -> None:
        """Start to receive. Each answer to a ping says for how long `disk` has not answered."""
        self._disk = disk
        self._thread = start_thread(self._receive, "link")

    def fileno(self) -> int:
        return self._loop_end.fileno()

    @property
    def timeout_s(self) -> float | None:
        """0 if `take` has something to return, or the connection is lost; else None."""
        return 0.0 if self._received or self._ended is not None or self.lost is not None else None

    def send(self, message: Message) -> None:
        if self.lost is None and self._mute is None:
            self._send(message)
            if self._mute is not None or self._channel.wants_write:
                _wake(self._loop_end)

    def tell(self, line: str) -> None:
        self.send(EventReport(line))

    def take(self) -> list[Message]:
        """Return the messages that have come, except pings, which the thread has answered."""
        _empty(self._loop_end)
        ended = self._ended  # first: what came before the end has been put there before it
        taken = []
        while self._received:
            taken.append(self._received.popleft())
        self.lost = self.lost or ended
        return taken

    def say_farewell(self, unkillable: tuple[int, ...], events_lost: int) -> None:
        """Send the last message. Blocks for a moment until it has been sent."""
        self.send(Done(unkillable, events_lost))
        self._end_thread()
        if self.lost is None and self._mute is None:
            self._channel.drain(time.monotonic() + LAST_MESSAGES_S)
        self.close()

    def close(self) -> None:
        self._end_thread()
        self._channel.close()
        self._loop_end.close()
        self._thread_end.close()

    def _send(self, message: Message) -> None:
        try:
            self._channel.send(message)
        except ChannelClosedError as error:
            self._mute = str(error)

    # --- the thread ---

    def _receive(self) -> None:
        poll = select.poll()
        poll.register(self._thread_end, select.POLLIN)
        while not self._closing and self._ended is None:
            poll.register(self._channel, select.POLLIN | (select.POLLOUT if self._channel.wants_write else 0))
            poll.poll(1000 * self._silence.timeout_s)
            _empty(self._thread_end)
            ended = self._take_in()
            if ended is None and self._silence.is_too_long():
                ended = f"nothing was heard for {self._silence.limit_s:g} s"
            self._ended = ended
            if self._received or ended is not None:
                _wake(self._thread_end)

    def _take_in(self) -> str | None:
        """Receive what has come, and send what is left; return why the connection is lost, if it is."""
        try:
            for message in self._channel.receive():
                if isinstance(message, Ping):
                    self.other_disk_stalls = message.disk_stalls
                    self._send(
                        Pong(message.sent_ns, time.time_ns(), 0.0 if self._disk is None else self._disk.silent_s)
                    )
                else:
                    self._received.append(message)
            if self._mute is None:
                self._channel.flush()
        except ChannelClosedError as error:
            return str(error)
        return self._mute

    def _end_thread(self) -> None:
        if self._thread is not None:
            self._closing = True
            _wake(self._loop_end)
            self._thread.join()
            self._thread = None


class LinkServices:
    """Sends files, and says where ranks are. Owns the link. Nothing here waits until `finish_upload`."""

    def __init__(self, link: Link, run_dir: RunDir, event_log: EventLog) -> None:
        self.link: Link | None = link  # None once the coordinator is lost
        self._run_dir = run_dir
        self._event_log = event_log
        self._upload: FileUpload | None = None  # if the coordinator does not see what ranks write
        self._survey: Survey | None = None  # once a client has asked where ranks are

    def begin(self, global_ranks: Sequence[int], *, follows_another: bool) -> None:
        """Send what these ranks write, if the coordinator does not see it. `follows_another`: see FileUpload."""
        if self.link is not None and not self.link.shares_files:
            from launcher.supervise.file_upload import FileUpload  # noqa: PLC0415 - few runs need it

            self._upload = FileUpload(self._run_dir, global_ranks, self.link, follows_another=follows_another)

    @property
    def due_s(self) -> list[float | None]:
        """The seconds until each part has something to do; None if it has not."""
        return [part.timeout_s for part in (self.link, self._upload, self._survey) if part is not None]

    def step(self) -> None:
        for part in (self._upload, self._survey):
            if part is not None:
                part.step()

    def hear(self, running: Mapping[int, int]) -> Iterator[Message]:
        """Yield what the coordinator orders of ranks; the rest is done here. `running`: pids by global rank."""
        for message in () if self.link is None else self.link.take():
            if isinstance(message, ChunkAck) and self._upload is not None:
                self._upload.take(message)
                if self._upload.shares:
                    self._end_upload()
            elif isinstance(message, TakeStacks):
                from launcher.supervise.survey import Survey  # noqa: PLC0415 - most runs need none of it

                assert self.link is not None, "the question came by it"
                self._survey = self._survey or Survey(self._run_dir, self.link.send)
                self._survey.begin(message, running)
            else:
                yield message

    def lose(self) -> bool:
        """Let go of a link that is lost; return whether it was lost since the last call."""
        if self.link is None or self.link.lost is None:
            return False
        self._end_upload()
        self._event_log.record(Trouble(f"the run's coordinator is lost: {self.link.lost}"))
        self.link.close()
        self.link = None
        return True

    def finish_upload(self, hears_kill: Callable[[], bool]) -> None:
        """Send the rest before the last message; the coordinator waits for it. `hears_kill`: not any longer."""
        if self._upload is not None:
            left = self._upload.finish(hears_kill)
            self._end_upload()
            if left is not None:
                self._event_log.record(Trouble(left))

    def close(self, unkillable: tuple[int, ...]) -> None:
        if self._survey is not None:
            self._survey.close()
        if self.link is not None:
            self.link.say_farewell(unkillable, self._event_log.lost)

    def _end_upload(self) -> None:
        upload, self._upload = self._upload, None
        if upload is not None:
            upload.close()
            if not upload.shares:  # else the endpoint is the coordinator's own
                with suppress(OSError):  # clients that look here find no server to ask any more
                    self._run_dir.endpoint.unlink()


def _wake(own_end: socket.socket) -> None:
    with suppress(OSError):  # full: the other side has yet to wake up
        own_end.send(b"1")


def _empty(own_end: socket.socket) -> None:
    with suppress(OSError):
        while own_end.recv(4096):
            pass
