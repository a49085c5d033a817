"""Searches the layouts of a number of devices: dp x mp x pp, micro batches, chunks, recompute and a sharded optimizer.

    1. Every layout that the model's sizes allow, with every micro batch. The cheapest recompute that fits is taken: none,
       selective, full. A sharded optimizer costs no time in this model, so it is used wherever dp > 1.
    2. A lower bound of the step time for each, without a simulation.
    3. In the order of their bounds, the layouts are simulated: the best of every mp x pp, and all that can still be among
       the best of all.

The order is deterministic: equal times are sorted by the layout's numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from launcher.core.frozen import frozen
from launcher.core.records import Layout
from launcher.mesh.schedules import INTERLEAVED, ONE_FORWARD_ONE_BACKWARD
from launcher.plan.configuration import RECOMPUTES, Configuration, Recompute, Software
from launcher.plan.device_profile import DeviceProfile
from launcher.plan.model_shape import ModelShape
from launcher.plan.nearby import correction, position_of
from launcher.plan.peak_memory import RankMemory, fullest_rank
from launcher.plan.prediction import Prediction, bound_s, predict

MAX_MICRO_BATCH = 64
MAX_CHUNKS = 4
MIN_MEMORY_MARGIN = 0.05
BEST = 5
MOST_SIMULATED = 200


@frozen
class Wanted:
    """The devices and the batch, and what the user has fixed."""

    devices: int
    global_batch: int
    dp: int | None = None
    mp: int | None = None
    pp: int | None = None
    micro_batches: int | None = None
    micro_batch: int | None = None
    schedule: str | None = None
    recompute: Recompute | None = None
    optimizer_shard: bool | None = None
    flash_attention: bool = False


@frozen
class Candidate:
    configuration: Configuration
    memory: RankMemory
    bound_s: float


@frozen
class LayoutClass:
    """All layouts with the same mp and pp: the best of them, or the reason why none is left."""

    mp: int
    pp: int
    best: Prediction | None = None
    refused: str = ""  # the sizes do not allow it
    least_memory: RankMemory | None = None  # of the layout that needs the least, if none fits
    least_configuration: Configuration | None = None


@frozen
class SearchResult:
    best: tuple[Prediction, ...]
    classes: tuple[LayoutClass, ...]
    candidates: tuple[Candidate, ...]  # that fit, by bound
    too_large: tuple[Candidate, ...]  # that do not fit, by bound
    simulated: int


def search(model: ModelShape, device: DeviceProfile, wanted: Wanted) -> SearchResult:
    """Return the best layouts, the best of each mp x pp, and the candidates that were not simulated."""
    limit = memory_limit(device)
    classes: dict[tuple[int, int], list[Candidate]] = {}
    refused: dict[tuple[int, int], str] = {}
    too_large: list[Candidate] = []
    for mp, pp in _pairs(wanted):
        if reason := _refusal(model, wanted, mp, pp):
            refused[mp, pp] = reason
            continue
        found = list(_candidates(model, device, wanted, mp, pp))
        too_large += [each for each in found if each.memory.total > limit]
        classes[mp, pp] = sorted((each for each in found if each.memory.total <= limit), key=_rank)
    simulated: dict[Configuration, Prediction] = {}
    bests = {pair: _best_of(model, device, found, simulated) for pair, found in classes.items()}
    fitting = sorted((each for found in classes.values() for each in found), key=_rank)
    best = _best_of_all(model, device, fitting, simulated)
    too_large.sort(key=_rank)
    return SearchResult(
        best=tuple(best),
        classes=tuple(_class_of(pair, bests.get(pair), refused, too_large) for pair in _pairs(wanted)),
        candidates=tuple(fitting),
        too_large=tuple(too_large),
        simulated=len(simulated),
    )


def memory_limit(device: DeviceProfile) -> float:
    """Return the bytes up to which a layout is said to fit: the device's memory less a margin for the model's error."""
    return device.memory_bytes * (1 - memory_margin(device))


def memory_margin(device: DeviceProfile) -> float:
    error = device.fit.memory_error if device.fit else None
    return max(MIN_MEMORY_MARGIN, error or 0.0)


def divisors(number: int) -> list[int]:
    """Return the divisors of `number` in ascending order."""
    small = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)})


def _pairs(wanted: Wanted) -> Iterator[tuple[int, int]]:
    """Yield mp and pp for all divisions of the devices."""
    for mp in divisors(wanted.devices):
        for pp in divisors(wanted.devices // mp):
            fixed = ((wanted.mp, mp), (wanted.pp, pp), (wanted.dp, wanted.devices // mp // pp))
            if all(value in {None, own} for value, own in fixed):
                yield mp, pp


def _refusal(model: ModelShape, wanted: Wanted, mp: int, pp: int) -> str:
    """Return why the sizes do not allow this mp and pp, or an empty text."""
    dp = wanted.devices // mp // pp
    for size, what in ((model.heads, "heads"), (model.ffn, "feed-forward features")):
        if size % mp:
            return f"{size} {what} are not divisible by mp={mp}"
    if pp > len(model.stack):
        return f"pp={pp} is more than {len(model.stack)} layers"
    if wanted.global_batch % dp:
        return f"a global batch of {wanted.global_batch} is not divisible by dp={dp}"
    if not list(_batches(wanted, dp)):
        return f"{wanted.global_batch // dp} samples of a dp rank do not divide into the given micro batches"
    return ""


def _batches(wanted: Wanted, dp: int) -> Iterator[tuple[int, int]]:
    """Yield the size and the number of micro batches."""
    samples = wanted.global_batch // dp
    for size in divisors(samples):
        is_wanted = wanted.micro_batch in {None, size} and wanted.micro_batches in {None, samples // size}
        if is_wanted and (size <= MAX_MICRO_BATCH or size == wanted.micro_batch or wanted.micro_batches is not None):
            yield size, samples // size


def _candidates(model: ModelShape, device: DeviceProfile, wanted: Wanted, mp: int, pp: int) -> Iterator[Candidate]:
    """Yield a candidate for each micro batch and schedule: with the cheapest recompute that fits, or with full recompute."""
    dp, limit = wanted.devices // mp // pp, memory_limit(device)
    shard = dp > 1 if wanted.optimizer_shard is None else wanted.optimizer_shard
    for micro_batch, micro_batches in _batches(wanted, dp):
        layout = Layout(dp=dp, mp=mp, pp=pp, micro_batches=micro_batches)
        for schedule, chunks in _schedules(model, wanted, layout):
            software = Software(schedule, "none", optimizer_shard=shard, flash_attention=wanted.flash_attention)
            for recompute in _recomputes(wanted):
                configuration = Configuration(layout, micro_batch, replace(software, recompute=recompute), chunks)
                memory = fullest_rank(model, configuration, device)
                if memory.total <= limit:
                    break
            yield Candidate(configuration, memory, _bound_s(model, configuration, device))


def _schedules(model: ModelShape, wanted: Wanted, layout: Layout) -> Iterator[tuple[str, int]]:
    """Yield schedules with their number of chunks. GPipe is left out: 1F1B takes as long and keeps less."""
    if wanted.schedule != INTERLEAVED or layout.pp == 1:
        yield wanted.schedule or ONE_FORWARD_ONE_BACKWARD, 1
    if layout.pp > 1 and layout.micro_batches % layout.pp == 0 and wanted.schedule in {None, INTERLEAVED}:
        for chunks in range(2, MAX_CHUNKS + 1):
            if len(model.stack) % (layout.pp * chunks) == 0:
                yield INTERLEAVED, chunks


def _recomputes(wanted: Wanted) -> tuple[Recompute, ...]:
    if wanted.recompute is not None:
        return (wanted.recompute,)
    return tuple(each for each in RECOMPUTES if each != "selective" or not wanted.flash_attention)


def _bound_s(model: ModelShape, configuration: Configuration, device: DeviceProfile) -> float:
    factor = correction(device.observations, position_of(model, configuration)) if device.observations else 1.0
    return factor * bound_s(model, configuration, device)


def _best_of(
    model: ModelShape,
    device: DeviceProfile,
    sorted_candidates: list[Candidate],
    simulated: dict[Configuration, Prediction],
) -> Prediction | None:
    """Simulate candidates in the order of their bounds until none can be faster. Return the fastest."""
    best: Prediction | None = None
    for each in sorted_candidates:
        if best is not None and each.bound_s >= best.step_s:
            break
        predicted = _simulated(model, device, each, simulated)
        if best is None or _order(predicted) < _order(best):
            best = predicted
    return best


def _best_of_all(
    model: ModelShape, device: DeviceProfile, fitting: list[Candidate], simulated: dict[Configuration, Prediction]
) -> list[Prediction]:
    """Return the fastest layouts, one for each division of the devices and number of micro batches."""
    best: dict[Layout, Prediction] = {}
    for each in fitting:
        slowest = sorted(best.values(), key=_order)[:BEST]
        if len(slowest) == BEST and each.bound_s >= slowest[-1].step_s:
            break
        if len(simulated) >= MOST_SIMULATED and each.configuration not in simulated:
            continue
        predicted = _simulated(model, device, each, simulated)
        layout = each.configuration.layout
        if layout not in best or _order(predicted) < _order(best[layout]):
            best[layout] = predicted
    return sorted(best.values(), key=_order)[:BEST]


def _simulated(
    model: ModelShape, device: DeviceProfile, candidate: Candidate, simulated: dict[Configuration, Prediction]
) -> Prediction:
    configuration = candidate.configuration
    if configuration not in simulated:
        simulated[configuration] = predict(model, configuration, device)
    return simulated[configuration]


def _class_of(
    pair: tuple[int, int], best: Prediction | None, refused: Mapping[tuple[int, int], str], too_large: list[Candidate]
) -> LayoutClass:
    mp, pp = pair
    if best is not None or pair in refused:
        return LayoutClass(mp, pp, best, refused.get(pair, ""))
    own = [each for each in too_large if (each.configuration.layout.mp, each.configuration.layout.pp) == pair]
    least = min(own, key=lambda each: each.memory.total)
    return LayoutClass(mp, pp, least_memory=least.memory, least_configuration=least.configuration)


def _order(prediction: Prediction) -> tuple[float | int, ...]:
    return prediction.step_s, *_numbers(prediction.configuration)


def _rank(candidate: Candidate) -> tuple[float | int, ...]:
    return candidate.bound_s, *_numbers(candidate.configuration)


def _numbers(configuration: Configuration) -> tuple[int, ...]:
    layout = configuration.layout
    return layout.mp, layout.pp, layout.micro_batches, configuration.chunks
