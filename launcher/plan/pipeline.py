"""Simulates a pipeline: when each stage runs each pass, from the schedules that the trainer runs.

A pass starts when the stage's previous pass has ended, and the pass of the neighbouring stage that it needs. Passes include
the messages that they send. The order of the passes depends on the schedule only, so it is computed once and used for
all times. A step of many micro batches is periodic: PERIODS periods of P micro batches are simulated, and the last one is
repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from launcher.core.frozen import frozen
from launcher.mesh.schedules import schedule_of
from launcher.plan.stage_time import StageTimes

PERIODS = 4
_MOST_ORDERS = 256


@frozen
class _Order:
    """All passes in an order in which every pass follows those that it needs."""

    durations: tuple[int, ...]  # of pass i: its index in forward + backward times of all stages
    after_own: tuple[int, ...]  # the pass before it on its rank, or the number of passes: time 0
    after_other: tuple[int, ...]  # the pass whose message it needs, or the number of passes
    last: tuple[int, ...]  # the last pass of each rank


@frozen
class Path:
    """How often each pass is on the critical path of a step: the step takes Σ count x time."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]

    def seconds(self, times: StageTimes) -> float:
        return sum(count * each.total for count, each in zip(self.forward, times.forward, strict=True)) + sum(
            count * each.total for count, each in zip(self.backward, times.backward, strict=True)
        )


def critical_path(times: StageTimes, kind: str, ranks: int, micro_batches: int) -> Path:
    """Simulate a step of the schedule `kind` and return its critical path."""
    chunks = len(times.forward) // ranks
    if len(times.forward) == 1:
        return Path((micro_batches,), (micro_batches,))
    durations = [each.total for each in (*times.forward, *times.backward)]
    beyond = max(0, micro_batches - PERIODS * ranks) // ranks
    counts = _counted(durations, _order(kind, ranks, micro_batches - beyond * ranks, chunks))
    if beyond:
        shorter = _counted(durations, _order(kind, ranks, micro_batches - (beyond + 1) * ranks, chunks))
        counts = [count + beyond * (count - less) for count, less in zip(counts, shorter, strict=True)]
    stages = len(times.forward)
    return Path(tuple(counts[:stages]), tuple(counts[stages:]))


def lower_bound_s(times: StageTimes, ranks: int, micro_batches: int) -> float:
    """Return a time that no schedule of `schedule_of` beats, without a simulation.

    A rank cannot start before the first micro batch has passed the ranks before it, and those cannot finish before its last
    backward pass has come back to them. In between, it runs all its passes.
    """
    rank_s = [sum(each.total for each in (*times.forward[i::ranks], *times.backward[i::ranks])) for i in range(ranks)]
    before, bound = 0.0, 0.0
    for index, busy_s in enumerate(rank_s):
        bound = max(bound, before + micro_batches * busy_s)
        before += times.forward[index].total + times.backward[index].total
    return bound


def _counted(durations: Sequence[float], order: _Order) -> list[float]:
    """Return how often each duration is on the critical path."""
    ends, waited = _ends(durations, order)
    counts = [0.0] * len(durations)
    at = max(order.last, key=lambda index: ends[index])
    start = len(order.durations)
    while at != start:
        counts[order.durations[at]] += 1
        at = order.after_other[at] if waited[at] else order.after_own[at]
    return counts


def _ends(durations: Sequence[float], order: _Order) -> tuple[list[float], list[bool]]:
    """Return the end of each pass, and whether it waited for a message."""
    ends = [0.0] * (len(order.durations) + 1)
    waited = []
    for index, (which, own, other) in enumerate(zip(order.durations, order.after_own, order.after_other, strict=True)):
        own_s, other_s = ends[own], ends[other]
        waits = other_s > own_s
        waited.append(waits)
        ends[index] = (other_s if waits else own_s) + durations[which]
    return ends, waited


@lru_cache(maxsize=_MOST_ORDERS)
def _order(kind: str, ranks: int, micro_batches: int, chunks: int) -> _Order:
    """Sort the passes of all ranks so that each follows the passes that it needs."""
    stages = ranks * chunks
    queues = [schedule_of(kind, rank, ranks, micro_batches, chunks=chunks) for rank in range(ranks)]
    total = sum(map(len, queues))
    places: dict[tuple[int, int], int] = {}  # (index of the duration, micro batch) -> index of the pass
    done, previous = [0] * ranks, [total] * ranks
    durations: list[int] = []
    after_own: list[int] = []
    after_other: list[int] = []
    ready = list(range(ranks))
    while ready:
        rank = ready.pop()
        while done[rank] < len(queues[rank]):
            action = queues[rank][done[rank]]
            stage = action.chunk * ranks + rank
            is_forward = action.kind == "forward"
            needed = _needed(stage, stages, action.micro_batch, is_forward=is_forward)
            if needed is not None and needed not in places:
                break
            which = stage if is_forward else stages + stage
            place = len(durations)
            places[which, action.micro_batch] = place
            durations.append(which)
            after_own.append(previous[rank])
            after_other.append(total if needed is None else places[needed])
            previous[rank] = place
            done[rank] += 1
            # Only the neighbours can have waited for this pass.
            ready += [each for each in ((rank + 1) % ranks, (rank - 1) % ranks) if each != rank and each not in ready]
    return _Order(tuple(durations), tuple(after_own), tuple(after_other), tuple(previous))


def _needed(stage: int, stages: int, micro_batch: int, *, is_forward: bool) -> tuple[int, int] | None:
    """Return the pass of another stage that must end before this one, as a key of `places`."""
    if is_forward:
        return (stage - 1, micro_batch) if stage else None
    return (stages + stage + 1, micro_batch) if stage < stages - 1 else None
