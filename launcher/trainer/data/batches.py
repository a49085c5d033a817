"""The batches of a training, and the part of each batch that a rank computes.

Every rank reads the ids of all pairs from files and determines its own pairs. So no rank sends data to another, every
pipeline stage knows the shapes of its inputs, and the number of tokens in a global batch needs no communication.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from launcher.core.frozen import frozen
from launcher.core.records import Layout
from launcher.mesh.coordinates import Coordinate
from launcher.recipes.transformer.transformer_settings import TransformerTrainConfig
from launcher.trainer.data.order import PairBatches, TokenBatches, cut_by_cost, cut_by_tokens
from launcher.trainer.data.tokens import Example, Integers, TokenizedPairs
from launcher.trainer.model.transformer import BEGIN, PAD, Batch

CPU = torch.device("cpu")


@frozen
class GlobalBatch:
    """The sentence pairs of one optimizer step, for all ranks. Its epoch and step numbers start at 1."""

    epoch: int
    step_of_epoch: int  # as in the tutorial's log lines
    step: int
    last_step: int  # of the training
    examples: TokenizedPairs

    @property
    def is_last(self) -> bool:
        return self.step == self.last_step


def global_batches(
    examples: Sequence[Example], config: TransformerTrainConfig, *, first_step: int = 1
) -> Iterator[GlobalBatch]:
    """Yield the global batches from step `first_step` on, without reading earlier ones."""
    pairs = TokenizedPairs.of(examples)
    order: PairBatches | TokenBatches
    if config.batch_tokens:
        order = TokenBatches(pairs, config.batch_tokens, seed=config.seed)
    else:
        order = PairBatches(pairs, config.batch_size, seed=config.seed)
    last_step = config.steps or config.epochs * order.steps_per_epoch
    for step in range(first_step, last_step + 1):
        epoch, index = divmod(step - 1, order.steps_per_epoch)
        yield GlobalBatch(epoch + 1, index + 1, step, last_step, order.batch(epoch, index))


def validation_batches(examples: Sequence[Example], config: TransformerTrainConfig) -> Iterator[Sequence[Example]]:
    pairs = TokenizedPairs.of(examples)
    if not config.batch_tokens:
        yield from in_batches(pairs, config.batch_size)
        return
    for places in cut_by_tokens(pairs, -(-token_count(pairs) // config.batch_tokens)):
        yield pairs.take(places)


def token_count(examples: Sequence[Example]) -> int:
    """Return the number of target tokens, including END. The loss is averaged over these tokens."""
    return int(TokenizedPairs.of(examples).lengths()[1].sum())


def own_micro_batches(
    examples: Sequence[Example], layout: Layout, coordinate: Coordinate, device: torch.device
) -> list[Batch]:
    """Return this rank's micro batches of a global batch, each padded to its longest sentence.

    The batch is divided by length into dp times micro_batches parts of about equal cost. Rank i takes parts i, i + dp,
    i + 2 dp, ... A part without pairs gets the shortest pair with PAD labels, which costs little and does not count.
    """
    pairs = TokenizedPairs.of(examples)
    parts = cut_by_cost(pairs, layout.dp * layout.micro_batches)
    batches = []
    for part_B in parts[coordinate.dp :: layout.dp]:
        batch = _collated(pairs, np.sort(part_B) if len(part_B) else parts[0][:1], device)
        batches.append(batch if len(part_B) else _without_labels(batch))
    return batches


def padding_share(batches: Sequence[Batch]) -> float:
    """Return the fraction of source and target positions in `batches` that are padding."""
    tokens = sum(batch.source_tokens + len(batch.labelled_N) for batch in batches)
    return 1 - tokens / sum(batch.source_BS.numel() + batch.labels_BT.numel() for batch in batches)


def rows_of(batch: Batch) -> tuple[int, int, int]:
    """Return three numbers of tokens (matrix rows): in the encoder, in the decoder and in the head."""
    return batch.source_BS.numel(), batch.target_BT.numel(), len(batch.labelled_N)


def in_batches(examples: Sequence[Example], size: int) -> Iterator[Sequence[Example]]:
    """Split the examples into consecutive batches of `size`. The last batch may be smaller."""
    for start in range(0, len(examples), size):
        yield examples[start : start + size]


def collate(examples: Sequence[Example], *, device: torch.device = CPU) -> Batch:
    pairs = TokenizedPairs.of(examples)
    return _collated(pairs, np.arange(len(pairs)), device)


def _collated(pairs: TokenizedPairs, row_B: Integers, device: torch.device) -> Batch:
    source_BS, labels_BT = pairs.take(row_B).padded()
    begin_B1 = np.full((len(row_B), 1), BEGIN)
    target_BT = np.where(labels_BT == PAD, PAD, np.concatenate([begin_B1, labels_BT[:, :-1]], axis=1))
    return Batch(
        source_BS=torch.from_numpy(source_BS).to(device),
        target_BT=torch.from_numpy(target_BT).to(device),
        labels_BT=torch.from_numpy(labels_BT).to(device),
        row_B=torch.from_numpy(row_B).to(device),
        labelled_N=torch.from_numpy(np.flatnonzero(labels_BT != PAD)).to(device),
        source_tokens=int(np.count_nonzero(source_BS != PAD)),
    )


def _without_labels(batch: Batch) -> Batch:
    return replace(batch, labels_BT=torch.full_like(batch.labels_BT, PAD), labelled_N=batch.labelled_N[:0])
