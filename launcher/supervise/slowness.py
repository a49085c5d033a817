"""Detects a rank that is slower than those that do the same work, by the busy time of their steps.

The rule. A step of a rank is slow if its busy time is more than 5 ms and

    more than 1.3 times the median of its peers (itself included), if there are three peers or more;
    more than 1.5 times that of the other, if there are two: either may be the normal one;
    more than 3 times the median of all other ranks, if none of them does the same work.

Before it is compared, what the rank waited for a core in that time is taken off its own busy time, and not off the
others': where more processes run than there are cores, each is held up now and then. Its work must be more than theirs
with all of their waiting.

Peers are the ranks of the same pipeline stage: every stage has work of its own, and the last one has much more than
the others. A rank is named when each of its last five observed steps was slow. It is named once, and again only after
five observed steps in a row that were not.

Busy times of one moment are compared, not those of one step number: ranks that talk to each other are at most a few
steps apart, and no rank is observed at every step.
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
    core_wait_s: float  # of the busy time, or more
    fresh: bool = True  # not judged yet
    # Of the last steps, the oldest first: time of its own work, the time that it was compared with, and whether it was slow.
    judged: deque[tuple[float, float, bool]] = field(default_factory=lambda: deque(maxlen=STEPS))
    named: bool = False

    def all_equal(self, slow: bool) -> bool:
        return len(self.judged) == STEPS and all(was_slow == slow for _, _, was_slow in self.judged)


class Slowness:
    """Collects busy times and names slow ranks. Pure: it reads no clock and no file."""

    def __init__(self, layout: Layout | None = None) -> None:
        self._layout = layout  # None: all ranks do the same work
        self._paces: dict[int, _Pace] = {}

    def note(self, global_rank: int, step: int, busy_s: float, core_wait_s: float = 0.0) -> None:
        """Take note that a rank has done step number `step` in `busy_s` seconds of its own. A step counts once.

        `core_wait_s`: how long it could have run in the step, and had no core.
        """
        pace = self._paces.get(global_rank)
        if pace is None:
            stage = 0 if self._layout is None else coordinate_of(global_rank, self._layout).pp
            self._paces[global_rank] = _Pace(stage, step, busy_s, core_wait_s)
        elif pace.step != step:
            pace.step, pace.busy_s, pace.core_wait_s, pace.fresh = step, busy_s, core_wait_s, True

    def forget(self, global_rank: int) -> None:
        """Take note that the rank has ended: others are no longer compared with it."""
        self._paces.pop(global_rank, None)

    def newly_slow(self) -> list[Slow]:
        """Judge every rank that was noted since the last call. Return those that have become slow. Call once per look."""
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
        return Slow(
            global_rank,
            busy_s=_median(own_s for own_s, _, _ in pace.judged),
            median_s=_median(usual_s for _, usual_s, _ in pace.judged),
            steps=STEPS,
        )

    def _limit(self, global_rank: int, alike: Mapping[int, float], typical_s: float) -> tuple[float, float] | None:
        """Return the time that the rank is compared with and the factor that makes it slow; None if it is the only rank."""
        if len(alike) > 2:
            return typical_s, FACTOR
        if len(alike) == 2:
            return next(busy_s for other, busy_s in alike.items() if other != global_rank), FACTOR_OF_TWO
        others = [pace.busy_s for other, pace in self._paces.items() if other != global_rank]
        return (_median(others), FACTOR_UNLIKE) if others else None


def _median(values: Iterable[float]) -> float:
    """Return the median of at least one value. The library's would load fractions and decimals whenever a run starts."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return (ordered[half] + ordered[~half]) / 2
