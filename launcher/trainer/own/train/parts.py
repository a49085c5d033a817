"""Compare a network's loss on some samples with its loss on their parts, divided as training divides its batches."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from launcher.core.records import Layout
from launcher.mesh.coordinates import Coordinate
from launcher.trainer.own.check import Division, difference
from launcher.trainer.own.train.modules import CrossEntropyLoss
from launcher.trainer.own.train.pipeline_parts import LossMasks
from launcher.trainer.own.train.samples import Rows, Samples, collated, micro_batches

ROWS = 64  # in all batches together, unless three batches of two parts have more
MAX_BATCHES = 8


def difference_of_parts(
    network: nn.Module,
    masks: Mapping[bool, LossMasks | None],
    samples: Samples,
    batch_size: int,
    layout: Layout,
    *,
    is_validated: bool,
) -> str:
    """Describe how the loss of a batch differs from that of its parts, as `difference` does.

    `masks` are those of cross entropies in training (True) and evaluation. Batches are drawn at random, since neighbouring samples
    may be alike. A large batch is replaced by some of its parts, which have half of `ROWS` rows.

    Raises:
        NotComparedError: as `difference`.
    """
    size = batch_size // (layout.dp * layout.micro_batches)
    count = max(2, ROWS // 2 // size)
    of_rank = min(layout.micro_batches, max(2, count // layout.dp))
    divided = Layout(dp=min(layout.dp, max(1, count // of_rank)), micro_batches=of_rank)
    rows = size * divided.dp * divided.micro_batches

    def loss(called: nn.Module, inputs: Rows, batch: Rows | None) -> Tensor:
        of_mode = masks[called.training]
        counts = {} if of_mode is None or batch is None else of_mode.counts(batch, torch.float64)
        for path, values in counts.items():
            own = called.get_submodule(path)
            assert isinstance(own, CrossEntropyLoss), "that is what was looked for"
            own.begin([value * size / rows for value in values])
        value = called(*inputs)
        assert isinstance(value, Tensor), "a loss"
        return value

    def divisions() -> Iterator[Division]:
        for number in range(min(MAX_BATCHES, max(3, ROWS // rows))):
            numbers = random.Random(number).sample(range(len(samples)), rows)
            whole = collated(samples, numbers, torch.device("cpu"), torch.float64)
            parts = [micro_batches(rows, divided, Coordinate(pp=0, dp=dp, mp=0)) for dp in range(divided.dp)]
            yield Division(whole, [[tuple(each[part] for each in whole) for part in own] for own in parts])

    return difference(network, divisions(), loss, is_validated=is_validated)
