"""The order in which processes ended, even those that ended while nobody looked."""

from __future__ import annotations

import os
import resource
import select
import sys
from collections.abc import Iterable

from launcher.core.proc import is_readable

LATE_S = 1.0  # an end may be noticed so much later than it was, on a busy machine, even by who looks all the time


class ExitOrder:
    """Watches children from their start. The kernel keeps the ready members of an epoll set in order of arrival.

    `waitpid` cannot tell this: among several ended children it gives the one forked first. A watched child costs a
    descriptor, so children beyond half of the limit are not watched; nor is any where there are no pidfds.
    """

    def __init__(self) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._highest = sys.maxsize if soft == resource.RLIM_INFINITY else soft // 2
        self._epoll = _epoll()
        self._pids: dict[int, int] = {}  # by pidfd
        self._late: set[int] = set()  # pids that had ended when their watch began: after others perhaps, or before them
        self._ended: list[int] = []  # not asked for yet

    def fileno(self) -> int:
        """Readable when a watched child has ended; -1 where none can be watched."""
        return -1 if self._epoll is None else self._epoll.fileno()

    def watch(self, pid: int) -> None:
        """`pid` is a child that has not been reaped."""
        if self._epoll is None:
            return
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:  # an old kernel, or no descriptor left
            return
        if descriptor > self._highest:
            os.close(descriptor)
            return
        try:
            self._epoll.register(descriptor, select.EPOLLIN)
        except OSError:  # the user's limit of watches is reached
            os.close(descriptor)
            return
        self._pids[descriptor] = pid
        if is_readable(descriptor):
            self._late.add(pid)

    def sort(self, pids: Iterable[int]) -> tuple[list[int], bool]:
        """Return the ended children `pids`, those last whose place nobody knows; and whether the order of all is known.

        Of one alone it is: children that are reaped later have ended later.
        """
        self.collect()
        given = list(pids)
        known = [pid for pid in self._ended if pid in given]
        self._ended = [pid for pid in self._ended if pid not in known]
        return known + [pid for pid in given if pid not in known], len(given) in {1, len(known)}

    def close(self) -> None:
        for descriptor in self._pids:
            os.close(descriptor)
        self._pids.clear()
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None

    def collect(self) -> list[int]:
        """Return the pids that have ended since the last call, in order, reaped ones too."""
        found: list[int] = []
        if self._epoll is None or not self._pids:
            return found
        for descriptor, _ in self._epoll.poll(0, len(self._pids)):
            self._epoll.unregister(descriptor)
            os.close(descriptor)
            pid = self._pids.pop(descriptor)
            found.append(pid)
            if pid not in self._late or not self._ended:
                self._ended.append(pid)
            self._late.discard(pid)
        return found


def _epoll() -> select.epoll | None:
    """None where there are no pidfds, or no descriptor is left."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return None
    try:
        return select.epoll()
    except OSError:
        return None
