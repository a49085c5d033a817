"""Reports of a conversion: how far it is, for the command that started it, and what a person is to read."""

from __future__ import annotations

import sys
import time

from launcher.core.text import printable

EVERY_S = 0.1


class Progress:
    """Writes lines to stdout, each a number of bytes that were done since the last one."""

    def __init__(self) -> None:
        self._untold_bytes, self._next_s = 0, 0.0

    def add(self, count_bytes: int) -> None:
        """Count bytes that are done, and tell of them every EVERY_S at most."""
        self._untold_bytes += count_bytes
        if time.monotonic() >= self._next_s:
            print(self._untold_bytes, flush=True)
            self._untold_bytes, self._next_s = 0, time.monotonic() + EVERY_S


def tell(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)
