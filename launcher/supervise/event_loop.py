"""Shared parts of the event loops of the agent and the coordinator: signals, and selector registrations."""

from __future__ import annotations

import os
import selectors
import signal
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from launcher.control.events import ASKS_TO_STOP, CONTINUES, KILLS_AT_ONCE, PAUSES
from launcher.core.records import Supervision


class SignalPipe:
    """A pipe that becomes readable when one of the signals `numbers` arrives. Use it only in the main thread.

    A handler stores the numbers, so a full pipe loses no signal.
    """

    def __init__(self, numbers: Iterable[signal.Signals]) -> None:
        self._arrived: list[int] = []
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._former_fd = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._former = {
            number: signal.signal(number, lambda arrived, _frame: self._arrived.append(arrived)) for number in numbers
        }

    def fileno(self) -> int:
        return self._reader

    def take(self) -> list[int]:
        with suppress(BlockingIOError):
            while os.read(self._reader, 4096):
                pass
        arrived, self._arrived = self._arrived, []
        return arrived

    def close(self) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._former_fd)
        os.close(self._reader)
        os.close(self._writer)


def run_signals(supervision: Supervision) -> SignalPipe:
    """Return a pipe for the signals of a run: stop and pause signals, forwarded signals, and SIGCHLD."""
    forwarded = frozenset(map(signal.Signals, supervision.forward_signals))
    return SignalPipe({signal.SIGCHLD, KILLS_AT_ONCE, PAUSES, CONTINUES, *ASKS_TO_STOP, *forwarded})


# The file to wait for, or None if it does not exist at the moment; the selector events; the callback.
Wanted = tuple[Any, int, Callable[[], object]]


class Listening:
    """Keeps a selector up to date with file objects that are opened and closed over time."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._known: dict[str, tuple[Any, int]] = {}

    def choose(self, wanted: Mapping[str, Wanted]) -> None:
        """Register exactly the files in `wanted`. Files of earlier calls are unregistered, even if they are closed."""
        stays = {purpose for purpose, (what, events, _) in wanted.items() if self._known.get(purpose) == (what, events)}
        for purpose in self._known.keys() - stays:
            self.forget(purpose)
        # Register after unregistering: a new file may have the descriptor number of a closed one.
        for purpose, (what, events, react) in wanted.items():
            if purpose not in stays and what is not None:
                self._selector.register(what, events, react)
                self._known[purpose] = what, events

    def forget(self, purpose: str) -> None:
        known = self._known.pop(purpose, None)
        if known is not None:
            with suppress(KeyError, ValueError):
                self._selector.unregister(known[0])
