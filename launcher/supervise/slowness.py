"""Detects ranks that are slower than ranks with the same work, by the busy time of their steps.

A step of a rank is slow if its busy time is more than 5 ms and

    more than 1.3 times the median of its peers (itself included), if there are at least three peers;
    more than 1.5 times the busy time of the other peer, if there are two, because either may be the normal one;
    more than 3 times the median of all other ranks, if it has no peers.

A rank's time waiting for a core is subtracted only from its own busy time. If processes outnumber cores, each one is
delayed now and then. So a rank is slow only if its own work takes longer than the others' work including their waits.

Peers are the ranks of the same pipeline stage. Stages have different work, and the last one has much more than the
others. A rank is reported when each of its last five observed steps was slow. It is reported again only after five
observed steps in a row that were not slow.

Busy times of the same moment are compared, even if the step numbers differ. Ranks that communicate are at most a few
steps apart, and some steps are not observed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from launcher.core.events import Slow
from launcher.core.records import Layout
from launcher.mesh.coordinates import coordinate_of

FACTOR = 1.3
FACTOR_OF_TWO = 1.5
FACTOR_UNLIKE = 3.0
STEPS = 5
MIN_S = 0.005


@dataclass
class _Pace:
    stage: int
    step: int
    busy_s: float
    core_wait_s: float  # waiting for a core; part of the busy time or more
    fresh: bool = True  # True until it is judged
    # For the last steps, oldest first: own work time, reference time, and True if slow.
    judged: deque[tuple[float, float, bool]] = field(default_factory=lambda: deque(maxlen=STEPS))
    named: bool = False

    def all_equal(self, slow: bool) -> bool:
        return len(self.judged) == STEPS and all(was_slow == slow for _, _, was_slow in self.judged)


class Slowness:
    """Detects slow ranks by comparing the busy times of all ranks."""

    def __init__(self, layout: Layout | None = None) -> None:
        self._layout = layout  # None: all ranks do the same work
        self._paces: dict[int, _Pace] = {}

    def note(self, global_rank: int, step: int, busy_s: float, core_wait_s: float = 0.0) -> None:
        """Record that a rank was busy for `busy_s` seconds in a step. A second call for the same step does nothing.

        `core_wait_s` is the time that it was runnable during the step but had no core.
        """
        pace = self._paces.get(global_rank)
        if pace is None:
            stage = 0 if self._layout is None else coordinate_of(global_rank, self._layout).pp
            self._paces[global_rank] = _Pace(stage, step, busy_s, core_wait_s)
        elif pace.step != step:
            pace.step, pace.busy_s, pace.core_wait_s, pace.fresh = step, busy_s, core_wait_s, True

    def forget(self, global_rank: int) -> None:
        self._paces.pop(global_rank, None)

    def newly_slow(self) -> list[Slow]:
        """Judge all ranks that have finished a step since the last call. Return the ranks that have become slow."""
        stages: dict[int, dict[int, float]] = {}
        for global_rank, pace in sorted(self._paces.items()):
            stages.setdefault(pace.stage, {})[global_rank] = pace.busy_s
        named = []
        for alike in stages.values():
            typical_s = _median(alike.values())
            named += [self._judge(global_rank, self._limit(global_rank, alike, typical_s)) for global_rank in alike]
        return [slow for slow in named if slow is not None]

    def _judge(self, global_rank: int, limit: tuple[float, float] | None) -> Slow | None:
        pace = self._paces[global_rank]
        if limit is None or not pace.fresh:
            return None
        pace.fresh = False
        usual_s, factor = limit
        own_s = pace.busy_s - pace.core_wait_s
        pace.judged.append((own_s, usual_s, own_s > max(MIN_S, factor * usual_s)))
        if pace.named and pace.all_equal(slow=False):
            pace.named = False
        if pace.named or not pace.all_equal(slow=True):
            return None
        pace.named = True
        own, usual, _ = zip(*pace.judged, strict=True)
        return Slow(global_rank, busy_s=_median(own), median_s=_median(usual), steps=STEPS)

    def _limit(self, global_rank: int, alike: Mapping[int, float], typical_s: float) -> tuple[float, float] | None:
        """Return a usual busy time and a factor: ranks above their product are slow. Return None for a single rank."""
        if len(alike) > 2:
            return typical_s, FACTOR
        if len(alike) == 2:
            return next(busy_s for other, busy_s in alike.items() if other != global_rank), FACTOR_OF_TWO
        others = [pace.busy_s for other, pace in self._paces.items() if other != global_rank]
        return (_median(others), FACTOR_UNLIKE) if others else None


def _median(values: Iterable[float]) -> float:
    """Return the median of the values. This avoids the slow import of `statistics`."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return (ordered[half] + ordered[~half]) / 2
