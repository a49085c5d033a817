"""An agent's connection to the coordinator of a run on several servers.

A thread receives messages and responds to pings. It never accesses a disk, so a stalled disk does not look like a lost
server.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from contextlib import suppress
from threading import Thread

from launcher.control.messages import Done, EventReport, Message, Ping, Pong
from launcher.supervise.channel import Channel, ChannelClosedError, Silence
from launcher.supervise.disk import Disk, start_thread

LAST_MESSAGES_S = 5.0  # time limit for sending the last messages


class Link:
    """The connection to the coordinator. If it is lost, methods do not raise, and `lost` holds the reason.

    Call `begin` in the process that uses it. From then on, `fileno` is readable when `take` has messages to return.
    """

    def __init__(self, channel: Channel, silence_s: float, *, shares_files: bool = True, by_hand: bool = False) -> None:
        """Prepare the connection to the coordinator.

        The coordinator counts as lost after `silence_s` seconds without messages. `shares_files` means that the
        coordinator sees this server's files. `by_hand` means that a person started this server's launcher, so signals
        that it receives concern all servers. An engine sends its signals to the agents of all servers itself.
        """
        self.shares_files = shares_files
        self.by_hand = by_hand
        self._channel = channel
        self._silence = Silence(channel, silence_s)
        self._disk: Disk | None = None
        self._thread: Thread | None = None
        self._mute: str | None = None  # why nothing can be sent any more; received messages may still be pending
        self._received: deque[Message] = deque()
        self._ended: str | None = None  # why the connection ended; the thread sets this last
        self._closing = False
        # Each side wakes the other: the loop when messages have arrived, the thread when data must be sent.
        self._loop_end, self._thread_end = socket.socketpair()
        self._loop_end.setblocking(False)
        self._thread_end.setblocking(False)
        self.other_disk_stalls = False  # True if the disk of any server stalls
        self.lost: str | None = None  # why the connection is lost

    def begin(self, disk: Disk | None = None) -> None:
        """Start a thread that receives messages and answers pings with the response time of `disk`."""
        self._disk = disk
        self._thread = start_thread(self._receive, "link")

    def fileno(self) -> int:
        return self._loop_end.fileno()

    @property
    def timeout_s(self) -> float | None:
        """Return 0 if `take` should be called at once, or None if there is nothing to take."""
        return 0.0 if self._received or self._ended is not None or self.lost is not None else None

    def send(self, message: Message) -> None:
        if self.lost is None and self._mute is None:
            self._send(message)
            if self._mute is not None or self._channel.wants_write:
                _wake(self._loop_end)

    def report(self, line: str) -> None:
        self.send(EventReport(line))

    def take(self) -> list[Message]:
        """Return the received messages, except pings, which the thread answers."""
        _empty(self._loop_end)
        ended = self._ended  # read this first: messages before the end were queued before it was set
        taken = [self._received.popleft() for _ in range(len(self._received))]
        self.lost = self.lost or ended
        return taken

    def say_farewell(self, unkillable: tuple[int, ...], events_lost: int) -> None:
        """Send the last message and close the connection. Block for at most `LAST_MESSAGES_S` seconds."""
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
            self._ended = self._take_in()
            if self._ended is None and self._silence.is_too_long():
                self._ended = f"nothing was heard for {self._silence.limit_s:g} s"
            if self._received or self._ended is not None:
                _wake(self._thread_end)

    def _take_in(self) -> str | None:
        """Receive messages and send pending data. If the connection is lost, return the reason."""
        try:
            for message in self._channel.receive():
                if not isinstance(message, Ping):
                    self._received.append(message)
                    continue
                self.other_disk_stalls = message.disk_stalls
                silent_s = 0.0 if self._disk is None else self._disk.silent_s
                self._send(Pong(message.sent_ns, time.time_ns(), silent_s))
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
    with suppress(OSError):  # the buffer is full, so the other side will wake up anyway
        own_end.send(b"1")


def _empty(own_end: socket.socket) -> None:
    with suppress(OSError):
        while own_end.recv(4096):
            pass
