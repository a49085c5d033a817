"""Simulates a training step of the bundled Transformer for each distinct rank of a layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from launcher.core.records import Layout
from launcher.recipes.transformer.transformer_settings import TransformerSettings
from launcher.sharding.simulated_step import SimulatedStep
from launcher.trainer.data.tokens import Example, TokenizedPairs
from launcher.trainer.model.transformer import END
from launcher.trainer.simulate.devices import SimulatedDevice
from launcher.trainer.simulate.distinct_ranks import distinct_ranks
from launcher.trainer.simulate.repeated import simulated_rank


def simulate(
    settings: TransformerSettings, layout: Layout, device: SimulatedDevice, ranks: Sequence[int] | None = None
) -> SimulatedStep:
    """Simulate a step of each distinct rank, or of `ranks`, on a batch of pairs of maximum length."""
    pairs = longest_batch(settings)
    classes = distinct_ranks(settings, layout, pairs)
    if ranks is not None:
        classes = [(rank, next(same for _, same in classes if rank in same)) for rank in ranks]
    return SimulatedStep(
        recipe="transformer",
        layout=str(layout),
        micro_batches=layout.micro_batches,
        device=device.kind,
        torch=torch.__version__,
        assumption=device.assumption,
        pairs=len(pairs),
        source_tokens=settings.data.source_length,
        target_tokens=settings.data.target_length,
        ranks=tuple(
            replace(simulated_rank(settings, layout, rank, device, pairs), same=same) for rank, same in classes
        ),
    )


def longest_batch(settings: TransformerSettings) -> TokenizedPairs:
    """Return a global batch whose sentences have the maximum length: no other batch of as many pairs needs more."""
    data, train = settings.data, settings.train
    count = max(train.batch_tokens // data.target_length, 1) if train.batch_tokens else train.batch_size
    source, target = ([*[END + 1] * (length - 1), END] for length in (data.source_length, data.target_length))
    return TokenizedPairs.of([Example(source, target)] * count)
