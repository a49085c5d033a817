"""Does a layout fit the Transformer's sizes? Refused before any process starts, with the values that would fit."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.records import Layout
from launcher.corpus.dataset import count_first_pairs, find_splits
from launcher.mesh.schedules import INTERLEAVED
from launcher.recipes.train import ParallelConfig, check_clip_norm, check_early_stopping
from launcher.recipes.transformer.cost import pipeline_stages, predicted_busy, rank_costs
from launcher.recipes.transformer.transformer_settings import FALLING, TransformerSettings, TransformerTrainConfig

MUCH_MORE_IDLE = 0.05  # of a step, beside stages cut by cost


def check_layout(settings: TransformerSettings, layout: Layout) -> None:
    """Refuse a layout that would cut a head or a feed-forward block, or has too many stages; and batches of no sentence.

    Raises:
        RefusedLayoutError: with the numbers put in and the nearest values that fit.
        UsageError: `train.batch_tokens` is too small for the longest sentences, a setting of `train` has no effect, or switches
            of `parallel` exclude each other.
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
    _check_schedule(settings.parallel, layout)
    if settings.parallel.gradient_accumulation_shard and not settings.parallel.optimizer_shard:
        raise UsageError(
            "parallel.gradient_accumulation_shard = true, but parallel.optimizer_shard = false: a rank that updates all "
            "weights needs all gradients",
            hint="--set parallel.optimizer_shard=true, or parallel.gradient_accumulation_shard=false",
        )
    pipeline_stages(settings, layout.pp)
    check_tables(is_tied=model.share != "none", vocab_emb_dp=settings.parallel.vocab_emb_dp, mp=layout.mp)
    _check_recomputed(settings)
    _check_rates(settings.train)
    check_clip_norm("train.clip_norm", settings.train.clip_norm)
    check_early_stopping(settings.train)
    batch_tokens, longest = settings.train.batch_tokens, settings.data.target_length
    if 0 < batch_tokens < 2 * longest:
        raise UsageError(
            f"train.batch_tokens = {batch_tokens} is less than two targets of data.target_length = {longest} tokens",
            hint=f"--set train.batch_tokens={2 * longest}, or 0 for batches of train.batch_size pairs",
        )


def check_data(settings: TransformerSettings, data: Path | None) -> None:
    """Refuse data whose first lines hold no sentence pairs of the direction to train; None is the packaged sample.

    Raises:
        TlaunchError: as `find_splits` and `count_first_pairs`.
        UsageError: the pairs do not fill a batch.
    """
    if data is None:
        return
    splits, train = find_splits(data, settings.data.direction), settings.train
    if splits.valid is not None:
        count_first_pairs(splits.valid, 1)
    size = 1 if train.batch_tokens else train.batch_size
    if (count := count_first_pairs(splits.train, size)) < size:
        raise UsageError(
            f"{splits.train}: {count} training pairs do not fill one batch of {size}",
            hint="set a smaller train.batch_size, or give more pairs",
        )


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


def notes(settings: TransformerSettings, layout: Layout) -> tuple[str, ...]:
    """Return what a person should know before a training on a layout that fits: stages that leave ranks idle."""
    parallel = settings.parallel
    if not parallel.stages or layout.pp == 1:
        return ()
    idle = _idle_share(settings, layout)
    without = dataclasses.replace(settings, parallel=dataclasses.replace(parallel, stages=()))
    parts = settings.model.encoder_layers + settings.model.decoder_layers + 1  # with the head
    can_be_cut = layout.pp * parallel.chunks(layout.pp) <= parts
    best = _idle_share(without, layout) if can_be_cut else 0.0
    empty = [index for index, cost in enumerate(rank_costs(settings, layout.pp)) if cost == 0]
    if not empty and idle < best + MUCH_MORE_IDLE:
        return ()
    written = f"warning: parallel.stages = {list(parallel.stages)}"
    nothing = f" leaves stage {empty[0]} nothing to compute, and" if empty else ""
    cut = f"; stages cut by cost (parallel.stages = []) {best:.0%}" if can_be_cut else ""
    return (f"{written}{nothing} has ranks wait for {idle:.0%} of each step, as predicted{cut}",)


def _idle_share(settings: TransformerSettings, layout: Layout) -> float:
    """Return the share of a step that ranks should wait for others in the pipeline, their mean."""
    return 1 - sum(predicted_busy(settings, layout.pp, layout.micro_batches)) / layout.pp


def check_tables(*, is_tied: bool, vocab_emb_dp: bool, mp: int) -> None:
    """Refuse to replicate embedding tables over model-parallel ranks where one of them is the head, which is cut there.

    Raises:
        UsageError: both are wanted.
    """
    if is_tied and vocab_emb_dp and mp > 1:
        raise UsageError(
            f"parallel.vocab_emb_dp = true replicates embedding tables over mp = {mp} ranks, but one of them is the head, too, "
            "which is cut by rows of the vocabulary",
            hint="--set parallel.vocab_emb_dp=false, or a head with a table of its own",
        )


def _check_schedule(parallel: ParallelConfig, layout: Layout) -> None:
    """Refuse chunks of layers without the schedule that has some, and micro batches that it cannot take in turn."""
    schedule, chunks, pp, micro_batches = parallel.schedule, parallel.interleave, layout.pp, layout.micro_batches
    if (schedule == INTERLEAVED) != (chunks > 1):
        raise UsageError(
            f"parallel.schedule = {schedule} and parallel.interleave = {chunks} do not fit: several chunks of layers on a "
            "stage need the interleaved schedule, and that needs several",
            hint=f"--set parallel.schedule={INTERLEAVED} --set parallel.interleave=2, or neither",
        )
    if chunks > 1 and pp > 1 and micro_batches % pp:
        raise RefusedLayoutError(
            f"micro_batches = {micro_batches} cannot be divided by pp = {pp}, as parallel.schedule = {schedule} needs it",
            hint=f"--micro-batches {_multiples_near(micro_batches, pp)}",
        )


def _check_recomputed(settings: TransformerSettings) -> None:
    """Refuse numbers of layers to be recomputed that the model does not have, or beside `parallel.recompute`."""
    parallel, model = settings.parallel, settings.model
    layer_count = model.encoder_layers + model.decoder_layers
    written = f"parallel.recompute_layers = {list(parallel.recompute_layers)}"
    if parallel.recompute and parallel.recompute_layers:
        raise UsageError(
            f"{written}, but parallel.recompute = true is for all layers", hint="--set parallel.recompute=false"
        )
    if unknown := [number for number in parallel.recompute_layers if number >= layer_count]:
        raise UsageError(
            f"{written} has {unknown[0]}, but the model has {model.encoder_layers} encoder + {model.decoder_layers} decoder "
            f"= {layer_count} layers",
            hint=f"layers are numbered from 0 to {layer_count - 1}, the encoder's first",
        )


def _check_model_parallel(name: str, value: int, mp: int) -> None:
    if value % mp:
        fitting = ", ".join(str(ways) for ways in range(1, value + 1) if value % ways == 0)
        raise RefusedLayoutError(f"{name} = {value} cannot be divided by mp = {mp}", hint=f"--mp can be {fitting}")


def _multiples_near(value: int, factor: int) -> str:
    """Return the multiples of `factor` on both sides of `value` in words, zero left out."""
    below = value - value % factor
    return " or ".join(str(multiple) for multiple in (below, below + factor) if multiple > 0)
