"""Uses a run's disk in a thread of its own, so that a file system that does not answer holds up nothing else.

Lustre and NFS may answer nothing for minutes while one of their servers fails over. Until then every process that uses
them waits in the kernel, where no signal reaches it. Ranks may wait, but agents and the coordinator have to answer each
other. So their events and arrival notes are written here, and `launcher/supervise/link.py` and
`launcher/cluster/connections.py` answer and send pings.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

TURN_S = 0.5  # between two rounds of chores
PROBE_EVERY_S = 1.0
BUSY_S = 1.0  # a disk that has not answered for so long may hold up ranks


class Disk:
    """Does pieces of work in order, and measures how long each takes. The thread starts with the first."""

    def __init__(self, probed: Path) -> None:
        """`probed`: a file in the run directory whose times are set every `PROBE_EVERY_S`, so that a stall is noticed."""
        self.chores: dict[str, Callable[[], object]] = {}  # done about every `TURN_S`; they must not raise
        self._probed = probed
        self._probe_due_s = 0.0
        self._given: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._since_s: float | None = None  # monotonic: when the present work began
        self._past_s = 0.0  # how long the longest work took since `recent_silence_s` was called
        self._thread: threading.Thread | None = None

    @property
    def silent_s(self) -> float:
        """How long the disk has not answered, in seconds; 0 while nothing is asked of it."""
        since_s = self._since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def recent_silence_s(self) -> float:
        """Return the longest silence since the last call, even if it is over: the caller may have waited for the disk, too."""
        past_s, self._past_s = self._past_s, 0.0
        return max(past_s, self.silent_s)

    def do(self, work: Callable[[], object]) -> None:
        """Do `work`, which must not raise, after all work that was given before. Returns at once."""
        if self._thread is None:
            self._thread = start_thread(self._work, "disk")
        self._given.put(work)

    def wait(self) -> None:
        """Block until all work that was given is done."""
        if self._thread is not None:
            done = threading.Event()
            self._given.put(done.set)
            done.wait()

    def close(self) -> None:
        """Block until all work that was given is done, and end the thread."""
        if self._thread is not None:
            self._given.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while True:
            try:
                work = self._given.get(timeout=TURN_S)
            except Empty:
                work = self._turn
            if work is None:
                return
            self._since_s = time.monotonic()
            work()
            self._past_s = max(self._past_s, self.silent_s)
            self._since_s = None

    def _turn(self) -> None:
        for chore in list(self.chores.values()):
            chore()
        if time.monotonic() >= self._probe_due_s:
            # Unlike a write, this returns only when a file server has answered.
            with suppress(OSError):
                os.utime(self._probed)
            self._probe_due_s = time.monotonic() + PROBE_EVERY_S


def start_thread(work: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread that gets no signals.

    The process may fork ranks meanwhile: a forked child takes no lock before it becomes another program.
    """
    warnings.filterwarnings("ignore", ".*multi-threaded.*fork", DeprecationWarning)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        return thread
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
