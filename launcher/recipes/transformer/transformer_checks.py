"""Check that a layout fits the Transformer's sizes. Error messages suggest valid values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

from launcher.checkpoint.index import BLEU
from launcher.core.errors import RefusedError, RefusedLayoutError, UsageError
from launcher.core.records import Layout
from launcher.core.resources import at_home
from launcher.core.text import printable
from launcher.corpus.dataset import choose_languages, count_first_pairs, find_splits
from launcher.corpus.sample import LANGUAGES
from launcher.corpus.text_digest import read_text
from launcher.mesh.layouts import SUGGESTED, nearest_layouts
from launcher.mesh.schedules import INTERLEAVED
from launcher.recipes.train import ParallelConfig, check_clip_norm, check_early_stopping
from launcher.recipes.transformer.cost import pipeline_stages, predicted_busy, rank_costs
from launcher.recipes.transformer.tokenizer_file import check_tokenizer
from launcher.recipes.transformer.transformer_settings import (
    FALLING,
    ModelConfig,
    TransformerSettings,
    TransformerTrainConfig,
)

# The only values that transformers' MarianMTModel computes.
MARIAN = {"norm": "post", "positions": "sinusoidal"}
MUCH_MORE_IDLE = 0.05  # fraction of a step, compared with stages balanced by cost


def check_layout(settings: TransformerSettings, layout: Layout) -> None:
    """Raise an error if a layout does not fit the model, or if settings contradict each other.

    Raises RefusedLayoutError, whose message names the nearest values that fit. Raises UsageError if `train.batch_tokens`
    is too small for the longest sentences, a setting of `train` has no effect, or settings of `parallel` exclude each
    other.
    """
    model = settings.model
    if model.d_model % model.heads:
        raise RefusedLayoutError(
            f"model.d_model = {model.d_model} is not divisible by model.heads = {model.heads}",
            hint=f"use `--set model.heads=N` with N = {_divisors_near(model.d_model, model.heads)}, or "
            f"`--set model.d_model=N` with N = {_multiples_near(model.d_model, model.heads)}",
        )
    _check_model_parallel(model, layout)
    if layout.mp > model.vocabulary_size:
        raise RefusedLayoutError(
            f"mp = {layout.mp} is more than model.vocabulary_size = {model.vocabulary_size}, so some ranks would get "
            "no rows of the embedding tables",
            hint=f"use at most `--mp {model.vocabulary_size}`",
        )
    _check_schedule(settings.parallel, layout)
    if settings.parallel.gradient_accumulation_shard and not settings.parallel.optimizer_shard:
        raise UsageError(
            "parallel.gradient_accumulation_shard = true requires parallel.optimizer_shard = true: "
            "without optimizer sharding, every rank needs all gradients",
            hint="use `--set parallel.optimizer_shard=true`, or `--set parallel.gradient_accumulation_shard=false`",
        )
    pipeline_stages(settings, layout.pp)
    check_tables(is_tied=model.share != "none", vocab_emb_dp=settings.parallel.vocab_emb_dp, mp=layout.mp)
    _check_recomputed(settings)
    _check_rates(settings.train)
    check_clip_norm("train.clip_norm", settings.train.clip_norm)
    check_early_stopping(settings.train)
    if settings.train.best_metric == BLEU and not settings.train.bleu_sentences:
        raise UsageError(
            "train.best_metric = bleu needs translations at each validation, but train.bleu_sentences = 0",
            hint="use `--set train.bleu_sentences=200`, or `--set train.best_metric=loss`",
        )
    batch_tokens, longest = settings.train.batch_tokens, settings.data.target_length
    if 0 < batch_tokens < 2 * longest:
        raise UsageError(
            f"train.batch_tokens = {batch_tokens} must be at least twice data.target_length = {longest} tokens",
            hint=f"use `--set train.batch_tokens={2 * longest}`, or 0 for train.batch_size sentence pairs per batch",
        )


def with_data(settings: TransformerSettings, data: Sequence[Path]) -> TransformerSettings:
    """Return the settings with the languages of `data`. Without data, they are those of the packaged sample.

    Raises the errors of `find_splits`.
    """
    chosen = settings.data.languages
    source, target = (
        find_splits(data, chosen).languages if data else choose_languages([LANGUAGES], chosen, "the built-in corpus")
    )
    own = dataclasses.replace(settings.data, source_language=source, target_language=target)
    return dataclasses.replace(settings, data=own)


def check_data(settings: TransformerSettings, data: Sequence[Path]) -> None:
    """Raise an error if `data` starts with malformed lines or has too few pairs. No data means the packaged sample.

    Raises UsageError if the pairs do not fill a batch, and the errors of `find_splits`, `count_first_pairs` and
    `check_tokenizer`.
    """
    if settings.data.tokenizer:
        check_tokenizer(Path(at_home(settings.data.tokenizer)), settings.model.vocabulary_size)
    if not data:
        return
    splits, train = find_splits(data, settings.data.languages), settings.train
    if splits.valid is not None:
        count_first_pairs(splits.valid, 1)
    size = 1 if train.batch_tokens else train.batch_size
    if (count := count_first_pairs(splits.train, size)) < size:
        raise UsageError(
            f"{splits.train}: {count} training pairs do not fill one batch of {size}",
            hint="reduce `train.batch_size`, or provide more pairs",
        )


def text_digest(settings: TransformerSettings, data: Sequence[Path]) -> str:
    """Return the digest of the training pairs in `data`. Raises the errors of `find_splits` and `read_text`."""
    return read_text(find_splits(data, settings.data.languages).train).digest


def data_notes(settings: TransformerSettings, data: Sequence[Path]) -> tuple[str, ...]:
    """Return a warning if both sides of `data` are the same file or language."""
    source, target = settings.data.languages
    if len(data) > 1 and data[0].samefile(data[1]):
        return (f"warning: --source and --target are the same file: {printable(str(data[0]))}",)
    if source and source == target:
        return (f"warning: the source and the target language are both {source}",)
    return ()


def _check_rates(train: TransformerTrainConfig) -> None:
    written = f"train.minimum_rate = {train.minimum_rate:g}"
    if train.minimum_rate > 0 and train.schedule not in FALLING:
        raise UsageError(
            f"{written}, but train.schedule = {train.schedule} does not decay to it",
            hint=f"use `--set train.minimum_rate=0`, or set train.schedule to {' or '.join(FALLING)}",
        )
    if train.minimum_rate > train.learning_rate:
        raise UsageError(
            f"{written} is above train.learning_rate = {train.learning_rate:g}",
            hint=f"use `--set train.minimum_rate={train.learning_rate:g}` or a lower rate",
        )


def notes(settings: TransformerSettings, layout: Layout) -> tuple[str, ...]:
    """Return warnings if `parallel.stages` leaves ranks idle in a valid layout."""
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
    nothing = f" leaves stage {empty[0]} nothing to compute:" if empty else ":"
    cut = f"; with stages balanced by cost (parallel.stages = []) {best:.0%}" if can_be_cut else ""
    return (f"{written}{nothing} ranks are predicted to wait for {idle:.0%} of each step{cut}",)


def _idle_share(settings: TransformerSettings, layout: Layout) -> float:
    return 1 - sum(predicted_busy(settings, layout.pp, layout.micro_batches)) / layout.pp


def check_counterparts(settings: TransformerSettings, where: str) -> None:
    """Raise RefusedError if MarianMTModel has no counterpart of a setting. `where` names the model in the message."""
    values = {name: getattr(settings.model, name) for name in MARIAN}
    if lacking := [f"model.{name} = {value}" for name, value in values.items() if value != MARIAN[name]]:
        needed = " ".join(f"--set model.{name}={value}" for name, value in MARIAN.items() if values[name] != value)
        raise RefusedError(
            f"{where}: MarianMTModel of transformers has no counterpart of {' and '.join(lacking)}",
            hint=f"the settings of a trained model are fixed; train another one with `{needed}`",
        )


def check_tables(*, is_tied: bool, vocab_emb_dp: bool, mp: int) -> None:
    """Raise UsageError if replicated embedding tables are requested, but the sharded output head shares one."""
    if is_tied and vocab_emb_dp and mp > 1:
        raise UsageError(
            f"parallel.vocab_emb_dp = true replicates embedding tables over mp = {mp} ranks, "
            "but the tied output head needs a row-sharded embedding table",
            hint="use `--set parallel.vocab_emb_dp=false`, or give the output head a separate table",
        )


def _check_schedule(parallel: ParallelConfig, layout: Layout) -> None:
    """Raise an error if the pipeline schedule does not fit the number of layer chunks or micro batches."""
    schedule, chunks, pp, micro_batches = parallel.schedule, parallel.interleave, layout.pp, layout.micro_batches
    if (schedule == INTERLEAVED) != (chunks > 1):
        raise UsageError(
            f"parallel.schedule = {schedule} does not fit parallel.interleave = {chunks}: "
            "the interleaved schedule needs at least 2 layer chunks per stage, and other schedules support only 1",
            hint=f"use `--set parallel.schedule={INTERLEAVED} --set parallel.interleave=2`, or leave out both settings",
        )
    if chunks > 1 and pp > 1 and micro_batches % pp:
        raise RefusedLayoutError(
            f"micro_batches = {micro_batches} must be divisible by pp = {pp} with parallel.schedule = {schedule}",
            hint=f"use `--micro-batches N` with N = {_multiples_near(micro_batches, pp)}",
        )


def _check_recomputed(settings: TransformerSettings) -> None:
    """Raise an error if layers to recompute do not exist, or if `parallel.recompute` already covers all layers."""
    parallel, model = settings.parallel, settings.model
    layer_count = model.encoder_layers + model.decoder_layers
    written = f"parallel.recompute_layers = {list(parallel.recompute_layers)}"
    if parallel.recompute and parallel.recompute_layers:
        raise UsageError(
            f"{written}, but parallel.recompute recomputes all layers", hint="use `--set parallel.recompute=false`"
        )
    if unknown := [number for number in parallel.recompute_layers if number >= layer_count]:
        raise UsageError(
            f"{written} has {unknown[0]}, but the model has {model.encoder_layers} encoder + {model.decoder_layers} decoder "
            f"= {layer_count} layers",
            hint=f"use numbers from 0 to {layer_count - 1}, encoder layers first",
        )


def _check_model_parallel(model: ModelConfig, layout: Layout) -> None:
    """Raise RefusedLayoutError if mp does not divide the model. The hint has layouts for the same number of ranks."""
    divided = math.gcd(model.heads, model.feed_forward_dim)
    for name in ("heads", "feed_forward_dim"):
        if (value := getattr(model, name)) % layout.mp:
            nearest = nearest_layouts(layout, layout.world_size)
            fitting = [near for near in nearest if divided % near.mp == 0 and near.pp == layout.pp][:SUGGESTED]
            raise RefusedLayoutError(
                f"model.{name} = {value} is not divisible by mp = {layout.mp}",
                hint=f"use {' or '.join(f'`--dp {near.dp} --mp {near.mp}`' for near in fitting)}",
            )


def _divisors_near(value: int, number: int) -> str:
    """Return the nearest divisors of `value` below and above `number` as text, for example "2 or 4"."""
    divisors = [each for each in range(1, value + 1) if value % each == 0]
    below, above = [each for each in divisors if each < number][-1:], [each for each in divisors if each > number][:1]
    return " or ".join(map(str, below + above))


def _multiples_near(value: int, factor: int) -> str:
    """Return the nearest multiples of `factor` below and above `value` as text, for example "8 or 16". Omit zero."""
    below = value - value % factor
    return " or ".join(str(multiple) for multiple in (below, below + factor) if multiple > 0)
