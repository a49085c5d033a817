"""From a corpus on disk to token ids on every rank, with one tokenizer for all."""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist

from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.corpus.dataset import Splits, content_digest, find_splits, read_pairs
from launcher.corpus.sample import cached_sample
from launcher.recipes.transformer.config import TransformerSettings
from launcher.trainer.data.batches import Example, tokenize
from launcher.trainer.data.tokenizer import Tokenizer, obtain_tokenizer
from launcher.trainer.parallel.world import World
from launcher.trainer.telemetry.heartbeat import wait_for_long

HELD_OUT = 20  # without a validation split, one training pair in so many is held out ...
HELD_OUT_AT_MOST = 1000  # ... up to this number

Pairs = list[tuple[str, str]]


@frozen
class Corpus:
    train: list[Example]
    valid: list[Example]
    showcase: Pairs  # sentences whose translations are worth showing, with their references
    tokenizer: Tokenizer
    origin: str  # where all this comes from, in one line


def open_corpus(settings: TransformerSettings, world: World, data: Path | None) -> Corpus:
    """Read the corpus at `data`, or the generated sample. All ranks must call it; the tokenizer comes from rank 0.

    Raises:
        UnreadableError: missing or malformed files.
        UsageError: too few pairs for one batch, or a vocabulary that no tokenizer fits.
    """
    if data is None:  # the first rank of each server unpacks the sample while the others wait
        if world.place.local_rank == 0:
            cached_sample()
        if world.place.world_size > 1:
            wait_for_long(dist.barrier(async_op=True))
    splits = find_splits(data or cached_sample(), settings.data.direction)
    files = [path for path in (splits.train, splits.valid) if path is not None]
    world.check_equal(content_digest(files).encode(), f"the text of {splits.train.parent}")
    train = read_pairs(splits.train)
    if splits.valid is not None:
        valid = read_pairs(splits.valid)
    else:
        count = min(max(1, len(train) // HELD_OUT), HELD_OUT_AT_MOST)
        train, valid = train[:-count], train[-count:]
    if not train:
        raise UsageError(
            f"{splits.train}: the only pair is held out for validation, so none is left to train on",
            hint="more pairs, or a validation file beside it (`tlaunch data preprocess --split valid`)",
        )
    if len(train) < settings.train.batch_size:
        raise UsageError(
            f"{splits.train}: {len(train)} training pairs do not fill one batch of {settings.train.batch_size}",
            hint=f"--set train.batch_size={len(train)}, or more pairs",
        )
    tokenizer, kept_at = _shared_tokenizer(settings, world, splits, train)
    return Corpus(
        train=tokenize(train, tokenizer, settings.data),
        valid=tokenize(valid, tokenizer, settings.data),
        showcase=read_pairs(splits.test) if splits.test else valid,
        tokenizer=tokenizer,
        origin=f"{splits.train}, {len(train)} training and {len(valid)} validation pairs, tokenizer {kept_at}",
    )


def _shared_tokenizer(
    settings: TransformerSettings, world: World, splits: Splits, train: Pairs
) -> tuple[Tokenizer, Path | None]:
    kept_at = None

    def obtain() -> bytes:
        nonlocal kept_at
        serialized, kept_at = obtain_tokenizer(
            [sentence for pair in train for sentence in pair],
            vocabulary_size=settings.model.vocabulary_size,
            beside=splits.train.parent,
        )
        return serialized

    return Tokenizer(world.from_rank_0(obtain)), kept_at
