"""Sentence pairs as token ids, and batches as a pure function of (seed, epoch, step).

Every rank holds the ids of all pairs and computes which of them are its own, so no rank is ever asked for data, every
pipeline stage knows the shapes that will arrive, and the number of tokens in a global batch needs no communication.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from launcher.core.frozen import frozen
from launcher.core.records import Layout
from launcher.mesh.coordinates import Coordinate
from launcher.recipes.train import TrainConfig
from launcher.recipes.transformer.config import DataConfig
from launcher.trainer.data.tokenizer import Tokenizer
from launcher.trainer.model.transformer import BEGIN, END, PAD, Batch

CPU = torch.device("cpu")


@frozen
class Example:
    """One sentence pair."""

    source: list[int]  # ends with END
    target: list[int]  # ends with END
    is_cut: bool = False  # whether either side was longer than the configured length


def tokenize(pairs: Sequence[tuple[str, str]], tokenizer: Tokenizer, config: DataConfig) -> list[Example]:
    """Encode pairs, cut to the configured lengths, END included."""
    sources = tokenizer.encode([source for source, _ in pairs])
    targets = tokenizer.encode([target for _, target in pairs])
    return [
        Example(
            [*source[: config.source_length - 1], END],
            [*target[: config.target_length - 1], END],
            is_cut=len(source) >= config.source_length or len(target) >= config.target_length,
        )
        for source, target in zip(sources, targets, strict=True)
    ]


@frozen
class GlobalBatch:
    """The pairs that all ranks together train on in one optimizer step. All numbers count from 1."""

    epoch: int
    step_of_epoch: int  # as the tutorials' log lines count
    step: int
    last_step: int
    examples: list[Example]

    @property
    def is_last(self) -> bool:
        return self.step == self.last_step


def global_batches(examples: Sequence[Example], config: TrainConfig) -> Iterator[GlobalBatch]:
    """Yield the batches of a whole training; what is left of an epoch after its last full batch is not used in it."""
    steps_per_epoch = len(examples) // config.batch_size
    last_step = config.steps or config.epochs * steps_per_epoch
    for step in range(1, last_step + 1):
        epoch, index = divmod(step - 1, steps_per_epoch)
        if index == 0:
            order = epoch_order(len(examples), seed=config.seed, epoch=epoch)
        chosen = order[index * config.batch_size : (index + 1) * config.batch_size]
        yield GlobalBatch(epoch + 1, index + 1, step, last_step, [examples[place] for place in chosen])


def epoch_order(example_count: int, *, seed: int, epoch: int) -> list[int]:
    """Return the order in which epoch number `epoch` (from 0) visits the examples."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(example_count, generator=generator).tolist()


def token_count(examples: Sequence[Example]) -> int:
    """Target tokens, END included: what the loss is an average over."""
    return sum(len(example.target) for example in examples)


def own_micro_batches(
    examples: Sequence[Example], layout: Layout, coordinate: Coordinate, device: torch.device
) -> list[Batch]:
    """Return this rank's share of a global batch, cut into micro batches, each padded to its own longest sentence.

    A global batch whose size dp * micro batches does not divide (the last of a validation) is filled up with pairs
    whose labels are all PAD: they cost time but count nothing.
    """
    size = -(-len(examples) // (layout.dp * layout.micro_batches))
    first = coordinate.dp * layout.micro_batches
    batches = []
    for start in range(first * size, (first + layout.micro_batches) * size, size):
        share = examples[start : start + size]
        batches.append(collate(share, fillers=[examples[0]] * (size - len(share)), first_row=start, device=device))
    return batches


def padding_share(batches: Sequence[Batch]) -> float:
    """Return the share of the positions of `batches`, source and target, that hold no token."""
    ids = [ids for batch in batches for ids in (batch.source_BS, batch.labels_BT)]
    tokens = sum(int(torch.count_nonzero(each != PAD)) for each in ids)
    return 1 - tokens / sum(each.numel() for each in ids)


def in_batches(examples: Sequence[Example], size: int) -> Iterator[Sequence[Example]]:
    """Consecutive batches; the last may be smaller."""
    for start in range(0, len(examples), size):
        yield examples[start : start + size]


def collate(
    examples: Sequence[Example], *, fillers: Sequence[Example] = (), first_row: int = 0, device: torch.device = CPU
) -> Batch:
    """Return one batch of `examples`, which are the pairs from `first_row` on, and of `fillers` whose labels do not count."""
    rows = [*examples, *fillers]
    inputs = [[BEGIN, *example.target[:-1]] for example in rows]
    labels = [*(example.target for example in examples), *[[PAD]] * len(fillers)]
    width = max(len(row) for row in inputs)
    return Batch(
        source_BS=_padded([row.source for row in rows], max(len(row.source) for row in rows), device),
        target_BT=_padded(inputs, width, device),
        labels_BT=_padded(labels, width, device),
        row_B=torch.arange(first_row, first_row + len(rows), device=device),
    )


def _padded(rows: Sequence[Sequence[int]], width: int, device: torch.device) -> Tensor:
    return torch.tensor([[*row, *[PAD] * (width - len(row))] for row in rows], device=device)
