"""Test which servers this server can reach: all in parallel, with a proof of each server's identity.

If a switch or tunnel on the path allows only smaller packets than both ends do, small packets arrive but large ones are
lost silently. So large packets are sent to some targets as well.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import ExitStack, suppress
from enum import Enum
from functools import partial

from launcher.core.frozen import frozen
from launcher.doctor.listener import ACKNOWLEDGED, ANSWER_BYTES, CHALLENGE_BYTES, GREETING, LARGE, Listener, answer_to

MAX_AT_ONCE = 128  # pending connections, far below the usual limit of descriptors


class Outcome(str, Enum):
    """The possible results of trying to reach a server, best first."""

    REACHED = "reached"
    LOSES_THERE = "large packets do not arrive there"  # small packets do
    LOSES_BACK = "large packets do not come back"
    WRONG_ANSWER = "wrong answer"  # a listener that is not the intended server
    REFUSED = "refused"
    TIMED_OUT = "timed out"
    NO_ROUTE = "no route"
    UNKNOWN_NAME = "name unknown"


_OUTCOMES = {errno.ECONNREFUSED: Outcome.REFUSED, errno.ETIMEDOUT: Outcome.TIMED_OUT}


@frozen
class Target:
    server: int  # its index in the table
    host: str  # its name in the table
    port: int  # of its listener
    addresses: tuple[str, ...] = ()  # of the host, resolved on this server; empty if unknown
    gets_large: bool = False  # also test large packets


@frozen
class Attempt:
    """The result of trying to reach a target. If the target has several addresses, the best result counts."""

    server: int
    host: str
    outcome: Outcome
    address: str | None = None
    round_trip_s: float | None = None  # until the connection was established
    trouble: str | None = None  # error message
    got_large: bool = False  # large packets were sent

    @property
    def reached(self) -> bool:
        return self.outcome is Outcome.REACHED

    @property
    def loses(self) -> bool:
        return self.outcome in {Outcome.LOSES_THERE, Outcome.LOSES_BACK}


def try_reach(
    targets: Sequence[Target], secret: str, timeout_s: float, listener: Listener | None = None
) -> tuple[Attempt, ...]:
    """Try to reach every target, and return the results in order. Meanwhile, serve this server's own `listener`.

    Blocks up to `timeout_s` for each group of `MAX_AT_ONCE` silent addresses, measured from when the connection is
    established. If large packets are lost, it blocks for up to twice `timeout_s` more.
    """
    calls = [_Call(target, address, secret, timeout_s) for target in targets for address in target.addresses]
    _make(calls, listener)
    order = list(Outcome)
    found = []
    for target in targets:
        attempts = [call.attempt for call in calls if call.target is target and call.attempt is not None]
        unknown = Attempt(target.server, target.host, Outcome.UNKNOWN_NAME)
        found.append(
            min(attempts, key=lambda one: (order.index(one.outcome), one.round_trip_s or 0.0), default=unknown)
        )
    return tuple(found)


def _make(calls: Sequence[_Call], listener: Listener | None) -> None:
    """Run all calls to completion, at most `MAX_AT_ONCE` of them at the same time."""
    waiting = deque(calls)
    running: set[_Call] = set()
    with selectors.DefaultSelector() as selector:
        if listener is not None:
            selector.register(listener, selectors.EVENT_READ)
        try:
            while waiting or running:
                while waiting and len(running) < MAX_AT_ONCE:
                    running.add(call := waiting.popleft())
                    call.proceed(selector, came=None)
                next_s = min(call.deadline for call in running)
                for key, _ in selector.select(max(0.0, next_s - time.monotonic())):
                    if isinstance(key.data, _Call):
                        key.data.proceed(selector, came=True)
                    elif listener is not None:
                        listener.serve()
                now_s = time.monotonic()
                for call in running:
                    if call.attempt is None and now_s >= call.deadline:
                        call.proceed(selector, came=False)
                running = {call for call in running if call.attempt is None}
        finally:
            for call in running:
                call.close()


_Wait = tuple[socket.socket, int]  # a connection and an event of `selectors`


class _Call:
    """A call to one address. `attempt` is None until the call has ended."""

    def __init__(self, target: Target, address: str, secret: str, timeout_s: float) -> None:
        self.target = target
        self.attempt: Attempt | None = None
        self.deadline = 0.0  # monotonic time
        self._timeout_s = timeout_s
        self._steps = _converse(target, address, secret)
        self._connection: socket.socket | None = None  # the one that is waited for

    def proceed(self, selector: selectors.BaseSelector, *, came: bool | None) -> None:
        """Continue to the next wait. `came` is None at first, then True if the socket is ready or False on timeout."""
        if self._connection is not None:
            selector.unregister(self._connection)
            self._connection = None
        try:
            self._connection, event = next(self._steps) if came is None else self._steps.send(came)
            selector.register(self._connection, event, self)
            self.deadline = time.monotonic() + self._timeout_s  # from now, since this process may have been delayed
        except StopIteration as end:
            self.attempt = end.value

    def close(self) -> None:
        self._steps.close()


def _converse(target: Target, address: str, secret: str) -> Generator[_Wait, bool, Attempt]:
    """Call an address and return the result. Yield whenever the call has to wait for the connection."""
    result = partial(Attempt, target.server, target.host, address=address)
    challenge = os.urandom(CHALLENGE_BYTES)
    begun_s = time.monotonic()
    with ExitStack() as stack:
        try:
            connection = stack.enter_context(socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET))
            connection.setblocking(False)
            code = connection.connect_ex((address, target.port))
        except (OSError, OverflowError) as error:
            code = getattr(error, "errno", None) or errno.EINVAL
        if code in {0, errno.EINPROGRESS}:
            if not (yield connection, selectors.EVENT_WRITE):
                return result(Outcome.TIMED_OUT)
            code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            return result(_OUTCOMES.get(code, Outcome.NO_ROUTE), trouble=os.strerror(code))
        result = partial(result, round_trip_s=time.monotonic() - begun_s)
        _send(connection, GREETING + challenge)
        if trouble := (yield from _hear(connection, answer_to(challenge, target.server, secret))):
            return result(Outcome.WRONG_ANSWER, trouble=trouble)
        if not target.gets_large:
            return result(Outcome.REACHED)
        _send(connection, LARGE)
        return result((yield from _hear_large(connection)), got_large=True)


def _hear(connection: socket.socket, expected: bytes) -> Generator[_Wait, bool, str | None]:
    """Receive the answer. Return None if it is as expected, or else a phrase that describes the problem."""
    heard = b""
    while heard != expected:
        piece = yield from _received(connection, ANSWER_BYTES + 1)
        heard += piece or b""
        if not piece:
            return "it sends no data" if piece is None else "it closed the connection"
        if not expected.startswith(heard):
            return "it is another server or another program"
    return None


def _hear_large(connection: socket.socket) -> Generator[_Wait, bool, Outcome]:
    """Receive the acknowledgement and a large packet, and return the outcome of this test.

    If the connection ends, large packets remain untested.
    """
    heard = b""
    while len(heard) <= len(ACKNOWLEDGED):
        piece = yield from _received(connection, len(LARGE))
        if piece is None:
            return Outcome.LOSES_BACK if heard else Outcome.LOSES_THERE
        if not piece:
            break
        heard += piece
    return Outcome.REACHED


def _send(connection: socket.socket, data: bytes) -> None:
    """Send as much as the kernel accepts. Errors are ignored, since a later receive reports them."""
    with suppress(OSError):
        connection.send(data)


def _received(connection: socket.socket, size: int) -> Generator[_Wait, bool, bytes | None]:
    """Return the next data, or b"" if the connection has ended, or None if no data arrives in time."""
    while (yield connection, selectors.EVENT_READ):
        try:
            return connection.recv(size)
        except BlockingIOError:  # noqa: PERF203 - rare
            continue
        except OSError:
            return b""
    return None
