"""An agent's connection to the coordinator of a run over several servers.

A thread receives what comes, and answers pings. It touches no disk: a server whose disk does not answer is there.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from launcher.control.messages import Done, EventReport, Message, Ping, Pong
from launcher.supervise.channel import Channel, ChannelClosedError, Silence
from launcher.supervise.disk import Disk, start_thread

if TYPE_CHECKING:
    from threading import Thread

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

    def report(self, line: str) -> None:
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


def _wake(own_end: socket.socket) -> None:
    with suppress(OSError):  # full: the other side has yet to wake up
        own_end.send(b"1")


def _empty(own_end: socket.socket) -> None:
    with suppress(OSError):
        while own_end.recv(4096):
            pass
