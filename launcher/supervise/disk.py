"""Accesses the disk of the run directory in a thread, so that a stalled file system does not block anything else.

Lustre and NFS may not respond for minutes while one of their servers fails over. Processes that use them then wait in
the kernel, and signals do not reach them. Ranks may wait, but agents and the coordinator must stay responsive. This
thread therefore writes their events and arrival records, while `launcher/supervise/link.py` and
`launcher/cluster/connections.py` send and answer pings.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

TURN_S = 0.5  # interval of the regular chores
PROBE_EVERY_S = 1.0
BUSY_S = 1.0  # a disk that has not responded for this time may block ranks


class Disk:
    """Runs disk operations in a thread, one after another, and measures how long they take."""

    def __init__(self, probed: Path) -> None:
        """Prepare the queue. To detect stalls, the thread regularly touches the file `probed` in the run directory."""
        self.chores: dict[str, Callable[[], object]] = {}  # run about every `TURN_S`; they must not raise
        self._probed = probed
        self._probe_due_s = 0.0
        self._given: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._since_s: float | None = None  # monotonic: start of the current job
        self._past_s = 0.0  # duration of the longest job since the last call of `recent_silence_s`
        self._thread: threading.Thread | None = None

    @property
    def silent_s(self) -> float:
        """The seconds since the current job started, or 0 if no job is running."""
        since_s = self._since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def recent_silence_s(self) -> float:
        """Return the longest response time of the disk since the last call, including the current wait."""
        past_s, self._past_s = self._past_s, 0.0
        return max(past_s, self.silent_s)

    def do(self, work: Callable[[], object]) -> None:
        """Add a function to the queue and return at once. The function must not raise."""
        if self._thread is None:
            self._thread = start_thread(self._work, "disk")
        self._given.put(work)

    def wait(self) -> None:
        """Block until all queued work is done."""
        if self._thread is not None:
            done = threading.Event()
            self._given.put(done.set)
            done.wait()

    def close(self) -> None:
        """Block until all queued work is done, then end the thread."""
        if self._thread is not None:
            self._given.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while True:
            work: Callable[[], object] | None = self._turn
            with suppress(Empty):
                work = self._given.get(timeout=TURN_S)
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
            # Unlike a write, this returns only after the file server has responded.
            with suppress(OSError):
                os.utime(self._probed)
            self._probe_due_s = time.monotonic() + PROBE_EVERY_S


def start_thread(work: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread that receives no signals. Raise BlockingIOError if the user may not start more threads.

    Forking ranks remains safe: a forked child takes no locks before it executes another program.
    """
    warnings.filterwarnings("ignore", ".*multi-threaded.*fork", DeprecationWarning)
    thread = threading.Thread(target=work, name=name, daemon=True)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread.start()
    except RuntimeError as error:
        raise BlockingIOError(errno.EAGAIN, f"{error}: {os.strerror(errno.EAGAIN)}") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return thread
