"""The time that this rank waits for others, from which the time of its own work follows.

On CPU backends a collective blocks until the others have come, and so does taking a message: the time spent there is
waiting, with the transfer in it. Accelerators run both in the background, so that nothing is known of their waiting.
"""

from __future__ import annotations

import time


class Waiting:
    """Adds up the seconds spent inside `with`. Not for nested use."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since_s = 0.0

    def __enter__(self) -> None:
        self._since_s = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._since_s


waiting = Waiting()  # of this process


class Stopwatch:
    """Runs from its making on."""

    def __init__(self) -> None:
        self._started_s = time.perf_counter()
        self._waited_before_s = waiting.seconds

    def read(self) -> tuple[float, float]:
        """Seconds until now, and how many of them this rank did not wait for others."""
        elapsed_s = time.perf_counter() - self._started_s
        return elapsed_s, elapsed_s - (waiting.seconds - self._waited_before_s)
