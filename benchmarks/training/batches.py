"""The sizes of the measured models, and the batches for all programs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import torch

from launcher.recipes.load import load_settings
from launcher.recipes.transformer.transformer_settings import TransformerSettings
from launcher.trainer.data.batches import GlobalBatch, global_batches, token_count
from launcher.trainer.data.corpus import open_corpus
from launcher.trainer.parallel.place import place_from_environment
from launcher.trainer.parallel.world import open_world

LENGTHS = ["data.source_length=64", "data.target_length=64", "data.source_language=en", "data.target_language=fr"]
# The small Transformer that is used for Multi30K.
M30K = [
    "model.vocabulary_size=10000", "model.d_model=128", "model.heads=4", "model.feed_forward_dim=256",
    "model.encoder_layers=4", "model.decoder_layers=4", "model.dropout=0.1", *LENGTHS,
]  # fmt: skip
# That of the MindSpore tutorial.
TUTORIAL = [
    "model.vocabulary_size=20000", "model.d_model=128", "model.heads=8", "model.feed_forward_dim=128",
    "model.encoder_layers=1", "model.decoder_layers=1", "model.dropout=0.1", *LENGTHS,
]  # fmt: skip
RATE = 1e-4
TOKENS = 4096  # target tokens of a step
STEPS = 6  # batches that every program takes in each round

Batches = Sequence[GlobalBatch]


def settings_of(sizes: Sequence[str], *more: str) -> TransformerSettings:
    return load_settings(TransformerSettings, None, [*sizes, "train.device=cpu", *more])


def rounds_of(settings: TransformerSettings, data: Path | None, rounds: int) -> list[Batches]:
    """Return the batches of each round, which are in no order of length. No batch is taken twice.

    What a program keeps for the shapes of a batch would otherwise be there in later rounds, as in no training.
    """
    with open_world(place_from_environment({}, micro_batches=1), torch.device("cpu")) as alone:
        corpus = open_corpus(settings, alone, () if data is None else (data,))
    batches = list(islice(global_batches(corpus.train, settings.train), rounds * STEPS))
    if len(batches) < rounds * STEPS:
        raise SystemExit(
            f"{corpus.origin} has {len(batches)} batches of {rounds * STEPS}: give more pairs, or train.epochs"
        )
    return [batches[start : start + STEPS] for start in range(0, len(batches), STEPS)]


def token_sum(batches: Batches) -> int:
    return sum(token_count(batch.examples) for batch in batches)


def pairs_of_a_step(rounds: Sequence[Batches]) -> int:
    return round(statistics.mean(len(batch.examples) for batches in rounds for batch in batches))
