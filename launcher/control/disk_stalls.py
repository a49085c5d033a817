"""Disks that do not answer for a while: what is reported of them, and what is added to a verdict."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.core.text import listed

STALLED_S = 5.0  # a disk that has been silent for so long is reported
ALSO_S = 1.0  # ... together with other disks that have been silent for so long
RECENT_S = 60.0  # after a stall, in which it may be why something fails


class DiskStalls:
    """The stalls of one run directory, on one server or many."""

    def __init__(self, path: str) -> None:
        """`path`: the run directory."""
        self._path = path
        self._where = ""
        self._longest_s = 0.0  # of the present stall, or the last one
        self._ended_s: float | None = None  # monotonic: when the last one was over
        self.under_way = False

    def look(self, silent_s: Mapping[str, float], now_s: float) -> str | None:
        """Return what to report now, if anything. `silent_s`: how long disks have been silent, by the server's name.

        The name of a single server is empty.
        """
        worst_s = max(silent_s.values(), default=0.0)
        if not self.under_way and worst_s >= STALLED_S:
            self.under_way, self._longest_s, self._ended_s = True, worst_s, None
            names = [name for name, seconds in silent_s.items() if name and seconds >= ALSO_S]
            self._where = f" on {listed(names)}" if names else ""
            return f"{self._silence()}: ranks that use it wait, and go on once it answers"
        if self.under_way and worst_s < ALSO_S:
            self.under_way, self._ended_s = False, now_s
            return f"the disk with {self._path} answers again after {self._longest_s:.0f} s"
        self._longest_s = max(self._longest_s, worst_s) if self.under_way else self._longest_s
        return None

    def remark(self, now_s: float) -> str | None:
        """Return what to add to a verdict; None if there is no stall now and was none in the last `RECENT_S` seconds."""
        if self.under_way:
            return self._silence()
        if self._ended_s is None or now_s - self._ended_s > RECENT_S:
            return None
        ago_s = now_s - self._ended_s
        return (
            f"the disk with {self._path} had not answered for {self._longest_s:.0f} s{self._where}, "
            f"until {ago_s:.0f} s before the verdict"
        )

    def _silence(self) -> str:
        return f"the disk with {self._path} has not answered for {self._longest_s:.0f} s{self._where}"
