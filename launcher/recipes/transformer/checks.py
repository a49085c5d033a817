"""Does a layout fit the Transformer's sizes? Refused before any process starts, with the values that would fit."""

from __future__ import annotations

from pathlib import Path

from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.records import Layout
from launcher.corpus.dataset import find_splits
from launcher.recipes.train import check_early_stopping
from launcher.recipes.transformer.config import FALLING, TransformerSettings, TransformerTrainConfig
from launcher.recipes.transformer.cost import pipeline_stages


def check_layout(settings: TransformerSettings, layout: Layout) -> None:
    """Refuse a layout that would cut a head or a feed-forward block, or leave a stage empty; and batches of no sentence.

    Raises:
        RefusedLayoutError: with the numbers put in and the nearest values that fit.
        UsageError: `train.batch_tokens` is too small for the longest sentences, or a setting of `train` has no effect.
    """
    model = settings.model
    if model.d_model % model.heads:
        raise RefusedLayoutError(
            f"model.d_model = {model.d_model} cannot be divided by model.heads = {model.heads}",
            hint=f"--set model.d_model={_multiples_near(model.d_model, model.heads)}",
        )
    _check_model_parallel("model.heads", model.heads, layout.mp)
    _check_model_parallel("model.feed_forward_dim", model.feed_forward_dim, layout.mp)
    if layout.mp > model.vocabulary_size:
        raise RefusedLayoutError(
            f"mp = {layout.mp} leaves ranks without a row of model.vocabulary_size = {model.vocabulary_size}",
            hint=f"--mp {model.vocabulary_size} at most",
        )
    pipeline_stages(settings, layout.pp)
    _check_rates(settings.train)
    check_early_stopping(settings.train)
    batch_tokens, longest = settings.train.batch_tokens, settings.data.target_length
    if 0 < batch_tokens < 2 * longest:
        raise UsageError(
            f"train.batch_tokens = {batch_tokens} is less than two targets of data.target_length = {longest} tokens",
            hint=f"--set train.batch_tokens={2 * longest}, or 0 for batches of train.batch_size pairs",
        )


def check_data(settings: TransformerSettings, data: Path | None) -> None:
    """Refuse a path where there are no sentence pairs of the direction that is to be trained; None: the packaged sample.

    Raises:
        TlaunchError: as `find_splits`.
    """
    if data is not None:
        find_splits(data, settings.data.direction)


def _check_rates(train: TransformerTrainConfig) -> None:
    written = f"train.minimum_rate = {train.minimum_rate:g}"
    if train.minimum_rate > 0 and train.schedule not in FALLING:
        raise UsageError(
            f"{written}, but train.schedule = {train.schedule} does not fall to it",
            hint=f"--set train.schedule={' or '.join(FALLING)}, or --set train.minimum_rate=0",
        )
    if train.minimum_rate > train.learning_rate:
        raise UsageError(
            f"{written} is above train.learning_rate = {train.learning_rate:g}",
            hint=f"--set train.minimum_rate={train.learning_rate:g} at most",
        )


def _check_model_parallel(name: str, value: int, mp: int) -> None:
    if value % mp:
        fitting = ", ".join(str(ways) for ways in range(1, value + 1) if value % ways == 0)
        raise RefusedLayoutError(f"{name} = {value} cannot be divided by mp = {mp}", hint=f"--mp can be {fitting}")


def _multiples_near(value: int, factor: int) -> str:
    """Return the multiples of `factor` on both sides of `value` in words, zero left out."""
    below = value - value % factor
    return " or ".join(str(multiple) for multiple in (below, below + factor) if multiple > 0)
