"""Test which servers this one can reach: all in parallel, with a proof of each server's identity.

If a switch or tunnel on the path allows only smaller packets than both ends, small packets arrive but large ones are
lost silently. So large packets are sent to some targets as well.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum

from launcher.core.frozen import frozen
from launcher.doctor.listener import ACKNOWLEDGED, ANSWER_BYTES, CHALLENGE_BYTES, GREETING, LARGE, Listener, answer_to

MAX_AT_ONCE = 128  # pending connections, far below the usual limit of descriptors


class Outcome(str, Enum):
    """The result of trying to reach a server, best first."""

    REACHED = "reached"
    LOSES_THERE = "large packets do not arrive there"  # small packets do
    LOSES_BACK = "large packets do not come back"
    WRONG_ANSWER = "wrong answer"  # a listener that is not the intended server
    REFUSED = "refused"
    TIMED_OUT = "timed out"
    NO_ROUTE = "no route"
    UNKNOWN_NAME = "name unknown"


@frozen
class Target:
    server: int  # its index in the table
    host: str  # its name in the table
    port: int  # of its listener
    addresses: tuple[str, ...] = ()  # of the host, resolved on this server; empty if unknown
    gets_large: bool = False  # also test large packets


@frozen
class Attempt:
    """The result for a target: of its addresses, the one with the best outcome, or the fastest of equal ones."""

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
    """Try every target, in order. `listener` is this server's own listener, and is served meanwhile.

    Blocks up to `timeout_s` for each group of `MAX_AT_ONCE` silent addresses, measured from when the connection is
    established. If large packets are lost, it blocks for up to twice `timeout_s` more.
    """
    calls = [_Call(target, address, secret) for target in targets for address in target.addresses]
    _make(calls, timeout_s, listener)
    return tuple(_best(target, [call for call in calls if call.target is target]) for target in targets)


class _Call:
    """A connection to one address. `outcome` is None until the call has ended."""

    def __init__(self, target: Target, address: str, secret: str) -> None:
        self.target = target
        self.address = address
        self.outcome: Outcome | None = None
        self.round_trip_s: float | None = None
        self.trouble: str | None = None
        self.sent_large = False
        self.deadline = 0.0  # monotonic time
        self.connection: socket.socket | None = None
        challenge = os.urandom(CHALLENGE_BYTES)
        self._greeting = GREETING + challenge
        self._expected = answer_to(challenge, target.server, secret)
        self._heard = b""
        self._begun_s = 0.0
        self._timeout_s = 0.0

    def begin(self, timeout_s: float) -> None:
        """Start to connect. An immediate failure sets `outcome`."""
        self._begun_s, self._timeout_s = time.monotonic(), timeout_s
        self.deadline = self._begun_s + timeout_s
        try:
            self.connection = socket.socket(socket.AF_INET6 if ":" in self.address else socket.AF_INET)
            self.connection.setblocking(False)
            code = self.connection.connect_ex((self.address, self.target.port))
        except (OSError, OverflowError) as error:
            code = getattr(error, "errno", None) or errno.EINVAL
        if code not in {0, errno.EINPROGRESS}:
            self._fail(code)

    def proceed(self) -> None:
        """Continue when the connection becomes writable, and later readable."""
        assert self.connection is not None, "a call that could not begin is not waited for"
        if self.round_trip_s is None:
            self._connected(self.connection)
        elif self._is_answered:
            self._hear_large(self.connection)
        else:
            self._listen(self.connection)

    def give_up(self) -> None:
        """End the call at its deadline. An established connection without data leads to a wrong listener."""
        if self._is_answered:
            self._end(Outcome.LOSES_BACK if len(self._heard) > ANSWER_BYTES else Outcome.LOSES_THERE)
            return
        stood = self.round_trip_s is not None
        self._end(Outcome.WRONG_ANSWER if stood else Outcome.TIMED_OUT, "it sends no data" if stood else None)

    def _connected(self, connection: socket.socket) -> None:
        if code := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._fail(code)
            return
        self.round_trip_s = time.monotonic() - self._begun_s
        try:
            connection.send(self._greeting)
        except OSError:
            self._end(Outcome.WRONG_ANSWER, "it closed the connection")
        self.deadline = time.monotonic() + self._timeout_s  # this process may have been delayed

    def _listen(self, connection: socket.socket) -> None:
        try:
            piece = connection.recv(ANSWER_BYTES + 1)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        self._heard += piece
        if self._heard == self._expected:
            self._answered(connection)
        elif not piece:
            self._end(Outcome.WRONG_ANSWER, "it closed the connection")
        elif not self._expected.startswith(self._heard):
            self._end(Outcome.WRONG_ANSWER, "it is another server or another program")

    @property
    def _is_answered(self) -> bool:
        return len(self._heard) >= ANSWER_BYTES

    def _answered(self, connection: socket.socket) -> None:
        """Record the correct answer. If the connection ends from now on, large packets remain untested."""
        if not self.target.gets_large:
            self._end(Outcome.REACHED)
            return
        self.sent_large = True
        self.deadline = time.monotonic() + self._timeout_s
        try:
            connection.send(LARGE)
        except OSError:
            self._end(Outcome.REACHED)

    def _hear_large(self, connection: socket.socket) -> None:
        """Receive the small acknowledgement. Data after it starts with a large packet."""
        try:
            piece = connection.recv(len(LARGE))
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        self._heard += piece
        self.deadline = time.monotonic() + self._timeout_s
        if not piece or len(self._heard) > ANSWER_BYTES + len(ACKNOWLEDGED):
            self._end(Outcome.REACHED)

    def _fail(self, code: int) -> None:
        outcome = {errno.ECONNREFUSED: Outcome.REFUSED, errno.ETIMEDOUT: Outcome.TIMED_OUT}.get(code, Outcome.NO_ROUTE)
        self._end(outcome, os.strerror(code))

    def _end(self, outcome: Outcome, trouble: str | None = None) -> None:
        self.outcome, self.trouble = outcome, trouble


def _make(calls: Sequence[_Call], timeout_s: float, listener: Listener | None) -> None:
    """Run all calls to completion, with a limit on parallel ones."""
    waiting = deque(calls)
    running: set[_Call] = set()
    with selectors.DefaultSelector() as selector:
        if listener is not None:
            selector.register(listener, selectors.EVENT_READ)
        try:
            while waiting or running:
                while waiting and len(running) < MAX_AT_ONCE:
                    call = waiting.popleft()
                    call.begin(timeout_s)
                    if call.outcome is not None or call.connection is None:
                        _close(call)
                        continue
                    running.add(call)
                    selector.register(call.connection, selectors.EVENT_WRITE, call)
                _step(selector, running, listener)
        finally:
            for call in running:
                _close(call)


def _step(selector: selectors.BaseSelector, running: set[_Call], listener: Listener | None) -> None:
    """Wait for the next event or deadline."""
    next_s = min((call.deadline for call in running), default=0.0)
    for key, _ in selector.select(max(0.0, next_s - time.monotonic())):
        if isinstance(key.data, _Call):
            key.data.proceed()
            selector.modify(key.fileobj, selectors.EVENT_READ, key.data)
        elif listener is not None:
            listener.serve()
    now_s = time.monotonic()
    for call in tuple(running):
        if call.outcome is None and now_s >= call.deadline:
            call.give_up()
        if call.outcome is not None and call.connection is not None:
            running.remove(call)
            selector.unregister(call.connection)
            _close(call)


def _close(call: _Call) -> None:
    if call.connection is not None:
        with suppress(OSError):
            call.connection.close()


def _best(target: Target, calls: Sequence[_Call]) -> Attempt:
    order = list(Outcome)
    if not calls:
        return Attempt(target.server, target.host, Outcome.UNKNOWN_NAME)
    ended = [(call, call.outcome or Outcome.TIMED_OUT) for call in calls]
    call, outcome = min(ended, key=lambda one: (order.index(one[1]), one[0].round_trip_s or 0.0))
    return Attempt(target.server, target.host, outcome, call.address, call.round_trip_s, call.trouble, call.sent_large)
