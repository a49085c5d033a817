"""A message connection for use in a selector loop. Only `wait_for` and `drain` block."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

from launcher.control.messages import MAX_LINE_BYTES, Message, from_line, to_line

CLOSED = "the connection was closed"
CHUNK_BYTES = 1 << 18
_LOOKS = 10  # checks within the silence limit
_AWAY_LOOKS = 4  # after this number of missed checks, this process must have been stopped


class ChannelClosedError(Exception):
    """The connection was lost, or the other side sent invalid data."""


class Channel:
    """One end of a connection that carries messages. Several threads may send, but only one may receive.

    After `send` raises ChannelClosedError, `receive` still yields messages that arrived before. Then call `close`.
    """

    def __init__(self, connection: socket.socket, longest_line_bytes: int = MAX_LINE_BYTES) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self.longest_line_bytes = longest_line_bytes  # approximate limit of the receive buffer
        self._received = bytearray()
        self._searched = 0  # leading bytes of `_received` without a line end
        self._to_send = bytearray()
        self._sending = threading.Lock()
        self.heard_at = time.monotonic()  # time of the last received byte

    def fileno(self) -> int:
        return self._connection.fileno()

    @property
    def peer(self) -> str:
        """The IP address of the other side, or an empty string if it is unknown."""
        return self.peer_address[0]

    @property
    def peer_address(self) -> tuple[str, int]:
        with suppress(OSError):
            host, port, *_ = self._connection.getpeername()
            return str(host).removeprefix("::ffff:"), int(port)
        return "", 0

    @property
    def is_local(self) -> bool:
        """True if the other side is on this machine. Both ends then have the same address."""
        with suppress(OSError):
            return bool(self._connection.getpeername()[0] == self._connection.getsockname()[0])
        return False

    @property
    def wants_write(self) -> bool:
        return bool(self._to_send)

    @property
    def has_message(self) -> bool:
        """True if a complete message is already in the receive buffer. Selectors cannot see this buffer."""
        return self._received.find(b"\n", self._searched) >= 0

    def send(self, message: Message) -> None:
        """Send as much of a message as possible without blocking. Call `flush` to send the rest."""
        self.send_line(to_line(message))

    def send_line(self, line: bytes) -> None:
        with self._sending:
            self._to_send += line
        self.flush()

    def flush(self) -> None:
        try:
            with self._sending:
                while self._to_send:
                    del self._to_send[: self._connection.send(self._to_send)]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            raise ChannelClosedError(_why(error)) from error

    def receive(self) -> Iterator[Message]:
        """Yield all received messages. Raise ChannelClosedError if the connection is lost or data are invalid."""
        ended = self._read()
        while (end := self._received.find(b"\n", self._searched)) >= 0:
            self._searched = 0
            line = bytes(self._received[:end])
            del self._received[: end + 1]
            try:
                yield from_line(line)
            except ValueError as error:
                raise ChannelClosedError(str(error)) from error
        self._searched = len(self._received)
        if len(self._received) > self.longest_line_bytes:
            raise ChannelClosedError("a message is too long")
        if ended is not None:
            raise ChannelClosedError(ended)

    def _read(self) -> str | None:
        """Read all available data. If the connection has ended, return the reason."""
        try:
            while len(self._received) <= self.longest_line_bytes:
                if not (chunk := self._connection.recv(CHUNK_BYTES)):
                    return CLOSED
                self._received += chunk
                self.heard_at = time.monotonic()
                if len(chunk) < CHUNK_BYTES:
                    return None
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            return _why(error)
        return None

    def wait_for(self, deadline: float) -> Iterator[Message]:
        """Yield messages as they arrive until `deadline` (monotonic), then raise TimeoutError."""
        while (left_s := deadline - time.monotonic()) > 0:
            if not self.has_message:
                self._wait(select.POLLIN | (select.POLLOUT if self._to_send else 0), left_s)
            self.flush()
            yield from self.receive()
        raise TimeoutError

    def close(self) -> None:
        self._connection.close()

    def drain(self, deadline: float) -> None:
        """Send the remaining data. Block until it is sent, the connection is lost, or `deadline` has passed."""
        while self._to_send and (left_s := deadline - time.monotonic()) > 0:
            self._wait(select.POLLOUT, left_s)
            try:
                self.flush()
            except ChannelClosedError:
                return

    def _wait(self, events: int, left_s: float) -> None:
        poll = select.poll()
        poll.register(self, events)
        poll.poll(left_s * 1000)


class Silence:
    """Measures how long the other side has been silent while this process was running.

    Time during which this machine was suspended or this process was stopped does not count. The caller must check at
    least every `timeout_s` seconds. If it does not, this process is assumed to have been stopped, and the silence
    restarts.
    """

    def __init__(self, channel: Channel, limit_s: float) -> None:
        self.limit_s = limit_s
        self._channel = channel
        self._looked_at = channel.heard_at = time.monotonic()

    @property
    def timeout_s(self) -> float:
        return max(0.0, self._looked_at + self.limit_s / _LOOKS - time.monotonic())

    def is_too_long(self) -> bool:
        """Return True if the other side has been silent for at least `limit_s` seconds."""
        before, self._looked_at = self._looked_at, time.monotonic()
        if self._looked_at - before > _AWAY_LOOKS * self.limit_s / _LOOKS:
            self._channel.heard_at = self._looked_at
        return self._looked_at - self._channel.heard_at >= self.limit_s


def _why(error: OSError) -> str:
    """Return the reason why a connection was lost. A reset is treated like a close."""
    gone = isinstance(error, ConnectionResetError | BrokenPipeError)
    return CLOSED if gone else error.strerror or str(error)
