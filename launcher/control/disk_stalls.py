"""Disk stalls: messages about disks that do not respond, and remarks for verdicts."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.core.text import listed

STALLED_S = 5.0  # a disk without a response for this time is reported
ALSO_S = 1.0  # disks without a response for this time are named in the report too
RECENT_S = 60.0  # for this time after a stall, verdicts mention it as a possible cause


class DiskStalls:
    """Detects stalls of the disk that holds the run directory, on one or more servers."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._where = ""
        self._longest_s = 0.0  # of the current stall, or of the last one
        self._ended_s: float | None = None  # monotonic time of the end of the last stall
        self.under_way = False

    def look(self, silent_s: Mapping[str, float], now_s: float) -> str | None:
        """Return a message if a stall begins or ends. `silent_s` maps server names to the response times of disks."""
        worst_s = max(silent_s.values(), default=0.0)
        if not self.under_way and worst_s >= STALLED_S:
            self.under_way, self._longest_s, self._ended_s = True, worst_s, None
            names = [name for name, seconds in silent_s.items() if name and seconds >= ALSO_S]
            self._where = f" on {listed(names)}" if names else ""
            return f"{self._silence()}: ranks that use it wait until it responds"
        if self.under_way and worst_s < ALSO_S:
            self.under_way, self._ended_s = False, now_s
            return f"the disk with {self._path} responds again after {self._longest_s:.0f} s"
        self._longest_s = max(self._longest_s, worst_s) if self.under_way else self._longest_s
        return None

    def remark(self, now_s: float) -> str | None:
        """Return a remark for the verdict if a disk stalled in the last `RECENT_S` seconds, else None."""
        if self.under_way:
            return self._silence()
        if self._ended_s is None or now_s - self._ended_s > RECENT_S:
            return None
        ago_s = now_s - self._ended_s
        return (
            f"the disk with {self._path} had not responded for {self._longest_s:.0f} s{self._where}, "
            f"until {ago_s:.0f} s before the verdict"
        )

    def _silence(self) -> str:
        return f"the disk with {self._path} has not responded for {self._longest_s:.0f} s{self._where}"
