"""Runs one training step of one rank on a simulated device, and records it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from launcher.core.frozen import frozen
from launcher.core.records import Layout
from launcher.mesh.coordinates import AXES, coordinate_of, group_of
from launcher.recipes.transformer.transformer_settings import TransformerSettings
from launcher.sharding.simulated_step import CollectiveSum, SimulatedRank
from launcher.sharding.strategy_report import ReportCollective
from launcher.trainer.data.tokens import Example
from launcher.trainer.model import dropout, transformer
from launcher.trainer.optimizer import update_rules
from launcher.trainer.parallel.collectives import Group
from launcher.trainer.parallel.place import Place
from launcher.trainer.parallel.world import World, opened_groups
from launcher.trainer.session import Session
from launcher.trainer.simulate.devices import SimulatedDevice
from launcher.trainer.simulate.memory import MemoryRecord
from launcher.trainer.simulate.observer import StepObserver
from launcher.trainer.simulate.torch_internals import fake_tensors, joined
from launcher.trainer.telemetry.recording import Recorder
from launcher.trainer.telemetry.watch import watching

LEARNING_RATE = 1e-3  # does not change shapes


class _Gloo(Group):
    """A group whose backend has no reduce_scatter."""

    scatters = False


@frozen
class ObservedStep:
    """A simulated step of one rank, with all that was recorded."""

    summary: SimulatedRank
    recorder: Recorder
    observer: StepObserver

    @property
    def host_bytes(self) -> int:
        """The bytes of all copies from the host: of initial weights, and of ids, which a step keeps until it ends."""
        return sum(each.bytes for each in self.observer.allocations if each.is_from_host)


def observed_step(
    settings: TransformerSettings, layout: Layout, rank: int, device: SimulatedDevice, examples: Sequence[Example]
) -> ObservedStep:
    """Simulate a step of `rank` on a global batch."""
    clear_caches()
    place = Place(rank, layout.world_size, rank, layout.world_size, None, layout)
    recorder, observer = Recorder(rank), StepObserver(device.device)
    with joined(rank, layout.world_size), fake_tensors(), observer, device.kernels(), ExitStack() as undo:
        session = Session(settings, _world(place, device))
        observer.forget_step()
        record = MemoryRecord(session, observer)
        record.watch(undo)
        with watching(session.model, recorder):
            session.train_step(examples, LEARNING_RATE, step=1)
        peak = record.peak()
    collectives = tuple(_summed(recorder.collectives(), rank, layout))
    flops = observer.flops
    summary = SimulatedRank(
        rank=rank,
        same=(rank,),
        stage=coordinate_of(rank, layout).pp,
        peak=peak,
        forward_flops=flops["forward"],
        backward_flops=flops["backward"],
        collectives=collectives,
    )
    return ObservedStep(summary, recorder, observer)


def clear_caches() -> None:
    """Remove the tensors that the trainer keeps for a whole process. The next simulated step stands for another process."""
    for cached in (dropout.feature_words, dropout.key_words, transformer.sinusoids, update_rules.has_fused_kernel):
        cached.cache_clear()


def _world(place: Place, device: SimulatedDevice) -> World:
    world = opened_groups(place, device.device, "backend")
    if device.scatters:
        return world
    groups: dict[str, Any] = {axis: _Gloo(**vars(getattr(world, axis))) for axis in AXES}
    return replace(world, **groups)


def _summed(collectives: Iterator[ReportCollective], rank: int, layout: Layout) -> Iterator[CollectiveSum]:
    """Sum the collectives of a step by kind, group and purpose, in the order of their first occurrence."""
    counts: Counter[tuple[Any, ...]] = Counter()
    sizes: Counter[tuple[Any, ...]] = Counter()
    for one in collectives:
        key = one.kind, one.group, one.what
        counts[key] += one.count
        sizes[key] += one.count * one.bytes
    groups = {axis: group_of(rank, axis, layout) for axis in AXES}
    for (kind, group, what), count in counts.items():
        axis = next(axis for axis, ranks in groups.items() if {*group} <= {*ranks})
        yield CollectiveSum(kind, axis, group, what, count, sizes[kind, group, what])
