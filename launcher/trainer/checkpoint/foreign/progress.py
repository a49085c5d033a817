"""Reports of a conversion: progress for the parent process, and messages for the user."""

from __future__ import annotations

import sys
import time

from launcher.core.text import printable

EVERY_S = 0.1


class Progress:
    """Writes the number of bytes processed since the last line to stdout."""

    def __init__(self) -> None:
        self._untold_bytes, self._next_s = 0, 0.0

    def add(self, count_bytes: int) -> None:
        self._untold_bytes += count_bytes
        if time.monotonic() >= self._next_s:
            print(self._untold_bytes, flush=True)
            self._untold_bytes, self._next_s = 0, time.monotonic() + EVERY_S


def report(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)
