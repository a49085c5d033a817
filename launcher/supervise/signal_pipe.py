"""Signals as something to select on, so that a loop can wait for signals, children and pipes at once without polling."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from types import FrameType


class SignalPipe:
    """Receives `numbers` instead of their default action, until closed. From the main thread only.

    Readable (`fileno`) as soon as one has arrived; `take` tells which. Numbers are kept by a handler, not by the
    bytes of the pipe, so a full pipe loses none.
    """

    def __init__(self, numbers: Iterable[signal.Signals]) -> None:
        self._arrived: list[int] = []
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._former_fd = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._former = {number: signal.signal(number, self._note) for number in numbers}

    def fileno(self) -> int:
        return self._reader

    def take(self) -> list[int]:
        """Return the signals that arrived since the last call, in order."""
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

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._arrived.append(number)
