"""From a corpus on disk to token ids on every rank, with one tokenizer for all."""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist

from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.corpus.dataset import Splits, content_digest, find_splits, read_pairs
from launcher.corpus.sample import cached_sample
from launcher.recipes.transformer.config import TransformerRecipe
from launcher.trainer.data import Example, tokenize
from launcher.trainer.heart import wait_for_long
from launcher.trainer.tokenizer import Tokenizer, obtain_tokenizer
from launcher.trainer.world import World

HELD_OUT = 20  # without a validation split, one training pair in so many is held out ...
MAX_HELD_OUT = 1000  # ... up to this number

Pairs = list[tuple[str, str]]


@frozen
class Corpus:
    train: list[Example]
    valid: list[Example]
    showcase: Pairs  # sentences whose translations are worth showing, with their references
    tokenizer: Tokenizer
    origin: str  # where all this comes from, in one line


def open_corpus(recipe: TransformerRecipe, world: World, data: Path | None) -> Corpus:
    """Read the corpus at `data`, or the built-in sample. All ranks must call it; the tokenizer comes from rank 0.

    Raises:
        UnreadableError: missing or malformed files.
        UsageError: too few pairs for one batch, or a vocabulary that no tokenizer fits.
    """
    splits = find_splits(data or _sample(world), recipe.data.direction)
    files = [path for path in (splits.train, splits.valid) if path is not None]
    world.check_equal(content_digest(files).encode(), f"the text of {splits.train.parent}")
    train, valid = _with_validation(read_pairs(splits.train), splits)
    _check_enough(train, splits, recipe.train.batch_size)
    tokenizer, kept_at = _shared_tokenizer(recipe, world, splits, train)
    return Corpus(
        train=tokenize(train, tokenizer, recipe.data),
        valid=tokenize(valid, tokenizer, recipe.data),
        showcase=read_pairs(splits.test) if splits.test else valid,
        tokenizer=tokenizer,
        origin=f"{splits.train}, {len(train)} training and {len(valid)} validation pairs, tokenizer {kept_at}",
    )


def _check_enough(train: Pairs, splits: Splits, batch_size: int) -> None:
    if not train:
        raise UsageError(
            f"{splits.train}: the only pair is held out for validation, so none is left to train on",
            hint="more pairs, or a validation file beside it (`tlaunch data preprocess --split valid`)",
        )
    if len(train) < batch_size:
        raise UsageError(
            f"{splits.train}: {len(train)} training pairs do not fill one batch of {batch_size}",
            hint=f"--set train.batch_size={len(train)}, or more pairs",
        )


def _sample(world: World) -> Path:
    """Return the built-in corpus: the first rank of each server unpacks it while the others wait."""
    if world.place.local_rank == 0:
        cached_sample()
    if world.place.world_size > 1:
        wait_for_long(dist.barrier(async_op=True))
    return cached_sample()


def _with_validation(train: Pairs, splits: Splits) -> tuple[Pairs, Pairs]:
    if splits.valid is not None:
        return train, read_pairs(splits.valid)
    count = min(max(1, len(train) // HELD_OUT), MAX_HELD_OUT)
    return train[:-count], train[-count:]


def _shared_tokenizer(
    recipe: TransformerRecipe, world: World, splits: Splits, train: Pairs
) -> tuple[Tokenizer, Path | None]:
    kept_at = None

    def obtain() -> bytes:
        nonlocal kept_at
        serialized, kept_at = obtain_tokenizer(
            [sentence for pair in train for sentence in pair],
            vocabulary_size=recipe.model.vocabulary_size,
            beside=splits.train.parent,
        )
        return serialized

    return Tokenizer(world.from_rank_0(obtain)), kept_at
