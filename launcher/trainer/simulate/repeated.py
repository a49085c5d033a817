"""Simulates a step with many equal micro batches by fewer of them.

In a 1F1B schedule a stage keeps at most K micro batches, so the memory of a step does not grow after K + 3 micro batches:
K forwards, the first backward that adds to existing gradients, and two messages on their way. Only the ids of the further
micro batches are added, and their losses on the last stage. FLOPs and collectives are those of a step with one micro
batch, plus a fixed number for each further micro batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from launcher.core.records import Layout
from launcher.mesh.coordinates import coordinate_of
from launcher.mesh.schedules import ONE_FORWARD_ONE_BACKWARD, most_in_flight, schedule_of
from launcher.recipes.transformer.transformer_settings import TransformerSettings
from launcher.sharding.simulated_step import CollectiveSum, SimulatedRank
from launcher.trainer.data.tokens import TokenizedPairs
from launcher.trainer.parallel.pipeline import MESSAGES_ON_THEIR_WAY
from launcher.trainer.simulate.devices import SimulatedDevice
from launcher.trainer.simulate.observed_step import ObservedStep, observed_step


def simulated_rank(
    settings: TransformerSettings, layout: Layout, rank: int, device: SimulatedDevice, pairs: TokenizedPairs
) -> SimulatedRank:
    """Simulate a step of one rank on a global batch of equal pairs."""
    parts = layout.dp * layout.micro_batches
    fewer = replace(layout, micro_batches=_enough(settings, layout, rank))
    if len(pairs) % parts or fewer.micro_batches >= layout.micro_batches:
        return observed_step(settings, layout, rank, device, pairs).summary
    rows = len(pairs) // layout.micro_batches  # of a micro batch, on all data-parallel ranks
    one, some = (
        observed_step(settings, each, rank, device, pairs[: each.micro_batches * rows])
        for each in (replace(layout, micro_batches=1), fewer)
    )
    continued = _continued(one, some, fewer.micro_batches, layout.micro_batches)
    if continued.stage < layout.pp - 1:
        return continued
    losses = (layout.micro_batches - fewer.micro_batches) * max(getattr(torch, settings.train.precision).itemsize, 4)
    return replace(continued, peak=replace(continued.peak, activations=continued.peak.activations + losses))


def _enough(settings: TransformerSettings, layout: Layout, rank: int) -> int:
    """Return a number of micro batches after which more of them need no more memory."""
    kind, count = settings.parallel.schedule, layout.micro_batches
    if kind != ONE_FORWARD_ONE_BACKWARD:
        return count
    return (
        most_in_flight(schedule_of(kind, coordinate_of(rank, layout).pp, layout.pp, count)) + MESSAGES_ON_THEIR_WAY + 1
    )


def _continued(observed_one: ObservedStep, observed: ObservedStep, simulated: int, count: int) -> SimulatedRank:
    """Return the step with `count` micro batches, from the steps with one and with `simulated` micro batches."""
    one, some = observed_one.summary, observed.summary

    def extended(first: int, last: int) -> int:
        each, rest = divmod(last - first, simulated - 1)
        assert rest == 0, "equal micro batches add equal numbers"
        return first + (count - 1) * each

    ids = extended(observed_one.host_bytes, observed.host_bytes) - observed.host_bytes
    return replace(
        some,
        peak=replace(some.peak, buffers=some.peak.buffers + ids),
        forward_flops=extended(one.forward_flops, some.forward_flops),
        backward_flops=extended(one.backward_flops, some.backward_flops),
        collectives=tuple(
            replace(last, count=extended(first.count, last.count), bytes=extended(first.bytes, last.bytes))
            for first, last in _matched(one.collectives, some.collectives)
        ),
    )


def _matched(
    one: Sequence[CollectiveSum], some: Sequence[CollectiveSum]
) -> Iterator[tuple[CollectiveSum, CollectiveSum]]:
    known = {(each.kind, each.group, each.what): each for each in one}
    for last in some:
        yield known.get((last.kind, last.group, last.what), replace(last, count=0, bytes=0)), last
