"""A listener on one server that proves its identity to each caller.

The caller sends a random challenge. The listener answers with its server's index and an HMAC-SHA256 of both, keyed with
the examination's secret. This exposes other programs, proxies, and listeners of other servers behind a wrong address.

If the caller sends more data, the listener acknowledges the first bytes in a small packet, and then sends packets as
large as the caller's. A lost large packet would otherwise look like silence at both ends.
"""

from __future__ import annotations

import hmac
import selectors
import socket
import time
from contextlib import suppress

from launcher.core.frozen import frozen

GREETING = b"tlreach1"
CHALLENGE_BYTES = 24
CALL_BYTES = len(GREETING) + CHALLENGE_BYTES
_INDEX_BYTES = 4
ANSWER_BYTES = _INDEX_BYTES + 32
LARGE = bytes(64 << 10)  # fills several packets of any network
ACKNOWLEDGED = b"+"
MAX_CALLERS = 256  # at once; others wait in the kernel's queue
SILENCE_S = 2.0  # after which a silent caller may be replaced by a waiting one
_BACKLOG = 1024


def answer_to(challenge: bytes, server_index: int, secret: str) -> bytes:
    """Return the answer to a challenge. It proves that the listener belongs to this server and examination."""
    who = server_index.to_bytes(_INDEX_BYTES, "big")
    return who + hmac.digest(secret.encode(), challenge + who, "sha256")


@frozen
class _Caller:
    connection: socket.socket
    said: bytearray
    since_s: float  # monotonic time


class Listener:
    """A non-blocking listener on all addresses at a free port. Its owner calls `serve` to handle callers.

    `fileno` becomes readable when there is something to serve, so it fits into the owner's selector.
    """

    def __init__(self, server_index: int, secret: str) -> None:
        self._server_index = server_index
        self._secret = secret
        try:
            self._socket = _bound(socket.AF_INET6, "::")
        except OSError:  # a machine without IPv6
            self._socket = _bound(socket.AF_INET, "0.0.0.0")  # noqa: S104 - any address in the table must work
        self.port: int = self._socket.getsockname()[1]
        self._selector = selectors.EpollSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._callers: dict[int, _Caller] = {}

    def fileno(self) -> int:
        return self._selector.fileno()

    def serve(self) -> None:
        """Read all pending data, then accept all waiting callers."""
        ready = [key.fd for key, _ in self._selector.select(0)]
        for caller in [self._callers[number] for number in ready if number in self._callers]:
            self._hear(caller)
        if self._socket.fileno() in ready:
            self._accept()

    def close(self) -> None:
        """Disconnect all callers and stop listening. Repeated calls have no effect."""
        for caller in tuple(self._callers.values()):
            self._drop(caller)
        self._selector.close()
        self._socket.close()

    def _accept(self) -> None:
        """Accept waiting callers. If there are too many, drop callers connected for more than `SILENCE_S` seconds."""
        with suppress(OSError):  # no more callers, or no descriptor: the caller times out
            while True:
                if len(self._callers) >= MAX_CALLERS:
                    oldest = next(iter(self._callers.values()))
                    if time.monotonic() - oldest.since_s <= SILENCE_S:
                        return
                    self._drop(oldest)
                connection, _ = self._socket.accept()
                connection.setblocking(False)
                self._callers[connection.fileno()] = _Caller(connection, bytearray(), time.monotonic())
                self._selector.register(connection, selectors.EVENT_READ)

    def _hear(self, caller: _Caller) -> None:
        """Read data from a caller, and answer a complete request. Drop the caller if the data is invalid."""
        before = len(caller.said)
        try:
            piece = caller.connection.recv(CALL_BYTES + 1 if before < CALL_BYTES else len(LARGE))
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        caller.said.extend(piece)
        if not piece or not _is_call(caller.said, before):
            self._drop(caller)
        elif len(caller.said) == CALL_BYTES:
            self._say(caller, answer_to(bytes(caller.said[len(GREETING) :]), self._server_index, self._secret))
        elif before == CALL_BYTES:
            self._say(caller, ACKNOWLEDGED, LARGE)

    def _say(self, caller: _Caller, *pieces: bytes) -> None:
        """Send each piece separately. If the send buffer is full, the rest of a piece is not sent."""
        with suppress(OSError):
            for piece in pieces:
                caller.connection.send(piece)

    def _drop(self, caller: _Caller) -> None:
        del self._callers[caller.connection.fileno()]
        self._selector.unregister(caller.connection)
        caller.connection.close()


def _is_call(said: bytearray, before: int) -> bool:
    """Return True if the bytes received so far can be part of a valid call.

    `before` is the number of bytes that arrived before the last piece. More bytes are valid only after an answer.
    """
    if before < CALL_BYTES < len(said) or len(said) > CALL_BYTES + len(LARGE):
        return False
    return said.startswith(GREETING[: len(said)])


def _bound(family: socket.AddressFamily, address: str) -> socket.socket:
    created = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            created.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        created.bind((address, 0))
        created.listen(_BACKLOG)
        created.setblocking(False)
    except BaseException:
        created.close()
        raise
    return created
