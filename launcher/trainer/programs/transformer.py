"""Training of the encoder-decoder Transformer for translation, with validation and example translations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from launcher.core.errors import TlaunchError
from launcher.recipes.transformer.cost import predicted_busy, training_flops
from launcher.recipes.transformer.transformer_checks import with_data
from launcher.recipes.transformer.transformer_settings import TransformerSettings, TransformerTrainConfig
from launcher.trainer.checkpoint.initial import initial_tokenizer
from launcher.trainer.data.batches import GlobalBatch, global_batches
from launcher.trainer.data.corpus import open_corpus
from launcher.trainer.data.tokenizer import Tokenizer
from launcher.trainer.data.tokens import Integers, TokenizedPairs
from launcher.trainer.decode.beam import Search
from launcher.trainer.decode.score import bleu, check_installed, tokenization
from launcher.trainer.decode.translator import Translator
from launcher.trainer.model.linear import product
from launcher.trainer.model.transformer import END
from launcher.trainer.parallel.world import World
from launcher.trainer.plan import gives_parts
from launcher.trainer.programs.loop import run
from launcher.trainer.programs.program import Program, Validated, line_of, say, say_layout, say_of_all
from launcher.trainer.programs.strategy_recorder import RecordedModel, StepRecorder
from launcher.trainer.saved import gather, single_device_model
from launcher.trainer.session import Session, StepResult, model_shapes, placements_at
from launcher.trainer.telemetry.metrics_writer import Metrics, perplexity_of
from launcher.trainer.telemetry.step_time import StepTime
from launcher.trainer.training_files import Files

DIVERGED_FROM = 2  # times the loss of a model that guesses
MAX_SHOWN = 1_000_000  # a larger perplexity is not printed


def train(settings: TransformerSettings, world: World, files: Files) -> None:
    """Train the translation Transformer on this rank. All ranks must call it.

    Raises:
        TlaunchError: data or checkpoints are unusable, or a gradient is not finite.
    """
    run(partial(Translation, settings, world, files), settings.checkpoint, world, files)


class Translation(Program[GlobalBatch, StepResult]):
    name = "transformer"

    def __init__(self, settings: TransformerSettings, world: World, files: Files) -> None:
        """Open the corpus and create this rank's part of the model. All ranks must call it.

        Raises:
            TlaunchError: the data is unusable. All ranks raise it.
        """
        self.settings: TransformerSettings = (settings := with_data(settings, files.data))
        self.world = world
        if settings.train.bleu_sentences:
            world.from_rank_0(_check_scores)
        keeps_vocabulary = files.init_from is not None or files.resume is not None
        self._corpus = open_corpus(
            settings, world, files.data, partial(initial_tokenizer, files), keeps_vocabulary=keeps_vocabulary
        )
        self._session = Session(settings, world)
        self.optimizer = self._session.optimizer
        self.best_metric, self.clip_norm = settings.train.best_metric, settings.train.clip_norm
        self.dtype = self._session.dtype
        self.shapes = model_shapes(settings)
        self.digest = self._corpus.digest
        self.tokenizer = self._corpus.tokenizer.serialized
        self._has_warned = False  # that the training has diverged

    def begin(self) -> None:
        session, corpus = self._session, self._corpus
        first_batches = list(islice(self.batches(1), 2))
        session.expect(batch.examples for batch in first_batches)
        layout = self.world.place.layout
        say_layout(f"{layout} micro_batches={layout.micro_batches}", session.model.parameters(), self.world)
        if not self.world.is_first:
            return
        say(f"data: {corpus.origin}")
        for remark in corpus.remarks:
            say(remark)
        say(f"vocabulary: {corpus.tokenizer.size} tokens of {self.settings.model.vocabulary_size} rows")
        if self.settings.train.bleu_sentences and (note := tokenization(self.settings.data.target_language)[1]):
            say(f"note: {note}")
        if (note := short_warmup(self.settings.train, first_batches[0].last_step)) is not None:
            say(note)
        if self.world.pp.size > 1:
            layers = ", ".join(str(len(stage.encoder_layers) + len(stage.decoder_layers)) for stage in session.stages)
            say(f"layers per stage: {layers}; stages are predicted to work {_shares(self._predicted())} of each step")

    def batches(self, first_step: int) -> Iterator[GlobalBatch]:
        return global_batches(self._corpus.train, self.settings.train, first_step=first_step)

    def learning_rate(self, batch: GlobalBatch) -> float:
        return learning_rate_at(batch.step, self.settings.train, batch.last_step)

    def train_step(
        self, batch: GlobalBatch, learning_rate: float, votes: Callable[[], tuple[float, ...]]
    ) -> StepResult:
        return self._session.train_step(batch.examples, learning_rate, step=batch.step, votes=votes)

    def model_flops(self, batch: GlobalBatch) -> float:
        sources, targets = (lengths_B.tolist() for lengths_B in batch.examples.lengths())
        return training_flops(self.settings.model, sources, targets)

    def product(self, left: Tensor, right: Tensor) -> Tensor:
        return product(left, right, rows=len(left))

    def line(self, batch: GlobalBatch, result: StepResult, seconds: float) -> str:
        return f"{line_of(batch, result.loss)}, {result.tokens / seconds:.0f} tokens/s"

    def validate(self) -> Validated:
        """Return the validation loss, and a log line with the perplexity and the BLEU score."""
        corpus = self._corpus
        loss = self._session.validate(corpus.valid)
        bar = unigram_perplexity(corpus.target_counts, corpus.valid, self.settings.model.vocabulary_size)
        perplexity = f"{perplexity_text(loss)} (unigram model: {bar:.2f})"
        if not self._has_warned and (warning := divergence(loss, self.settings.model.vocabulary_size)) is not None:
            self._has_warned = True
            say_of_all(warning, self.world)
        line, bleu = f"validation loss is {loss:.6f}, perplexity {perplexity}", None
        if sample := corpus.valid[: self.settings.train.bleu_sentences]:
            bleu = sample_bleu(self.settings, self.weights(), self.dtype, sample, corpus.tokenizer, self.world)
            line += f", BLEU {bleu:.2f} of {len(sample)} greedy translations"
        return Validated(loss, line, of_tokens=True, bleu=bleu)

    def not_finite(self, batch: GlobalBatch, result: StepResult) -> TlaunchError:
        """Log the sentence pairs that may have caused a non-finite gradient, and return the error to raise."""
        suspects = result.suspects
        assert suspects is not None, "the gradient is not finite"
        for row in suspects.pairs:
            example, decode = batch.examples[row], self._corpus.tokenizer.decode
            told = f"pair {row + 1} of the batch: {decode(example.source)} -> {decode(example.target)}"
            say_of_all(told, self.world)
        named = suspects.parameter
        first = f", and {named} is the first parameter with a gradient that is not finite" if named else ""
        return TlaunchError(
            f"step {batch.step} (epoch {batch.epoch}): the norm of the gradient is {result.gradient_norm}{first}; "
            "the weights were not updated in this step",
            hint="reduce train.learning_rate, increase train.warmup_steps, or check the logged sentence pairs for "
            f"errors ({len(suspects.pairs)} of the {len(batch.examples)} pairs in the batch)",
        )

    def step_recorder(self, path: Path | None, attempt: int) -> StepRecorder:
        model = self._session.model
        recorded = RecordedModel(self.name, model, self._session.placements, gives_parts(model))
        return recorded.recorder(path, self.world, attempt)

    def ended(self, spent: StepTime, last_step: int, metrics: Metrics) -> None:
        """Log and record the share of the step time in which each pipeline stage was busy.

        Does nothing without a pipeline, on accelerators, or after only one step. All ranks must call it.
        """
        world = self.world
        if world.pp.size == 1 or world.device.type != "cpu" or not spent.seconds:
            return
        shares = torch.zeros(world.pp.size, dtype=torch.float64)
        shares[world.pp.index] = spent.busy_s / spent.seconds / (world.dp.size * world.mp.size)
        busy = world.sum_over_all(shares).tolist()
        metrics.stages_measured(last_step, busy, self._predicted())
        if world.is_first:
            say(f"stages: worked {_shares(busy)} of each step")

    def weights(self) -> dict[str, Tensor] | None:
        parts = dict(self._session.model.named_parameters())
        return gather(self.world, parts, partial(placements_at, self.settings, self.world.place.layout))

    def show(self, weights: Mapping[str, Tensor]) -> None:
        """Log greedy translations of some sentences of the test split."""
        data = self.settings.data
        model = single_device_model(self.settings, weights, self.world.device)
        shown = self._corpus.showcase[: self.settings.train.translations]
        if not shown:
            return
        sources = [source for source, _ in shown]
        translations = Translator(model, self._corpus.tokenizer, data).translate(sources, Search(beam=1))
        for (source, reference), translation in zip(shown, translations, strict=True):
            say(f"source:      {source}\nreference:   {reference}\ntranslation: {translation.text}")

    def _predicted(self) -> tuple[float, ...]:
        """Return the predicted share of the step time in which each pipeline stage is busy."""
        layout = self.world.place.layout
        return predicted_busy(self.settings, layout.pp, layout.micro_batches)


def short_warmup(train: TransformerTrainConfig, last_step: int) -> str | None:
    """Return a note if the training ends before the end of the warm-up, or None."""
    if last_step >= train.warmup_steps:
        return None
    return (
        f"note: the training has {last_step} steps and ends within train.warmup_steps = {train.warmup_steps}, before the "
        f"rate reaches train.learning_rate = {train.learning_rate:g}; use for example `--set train.warmup_steps={last_step // 10}`"
    )


def divergence(loss: float, vocabulary_size: int) -> str | None:
    """Return a warning if the loss is far above that of equally likely tokens, or None."""
    if loss <= DIVERGED_FROM * math.log(vocabulary_size):
        return None
    return (
        f"warning: the loss {loss:.2f} is far above {math.log(vocabulary_size):.2f}, the loss of a model that guesses: the "
        "training has diverged; use a smaller train.learning_rate or more train.warmup_steps"
    )


def perplexity_text(loss: float) -> str:
    perplexity = perplexity_of(loss)
    return f"over {MAX_SHOWN:,}" if perplexity > MAX_SHOWN else f"{perplexity:.2f}"


def _check_scores() -> bytes:
    check_installed(["sacrebleu"])
    return b""


def _shares(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.0%}" for value in values)


def sample_bleu(
    settings: TransformerSettings,
    weights: Mapping[str, Tensor] | None,
    dtype: torch.dtype,
    sample: TokenizedPairs,
    tokenizer: Tokenizer,
    world: World,
) -> float:
    """Return the BLEU score of greedy translations of `sample` on every rank. All ranks must call it.

    `weights` are the full model's on rank 0, and None on others. Each of n ranks translates every n-th sentence, and
    temporarily holds the full model.
    """
    everywhere = _on_all_ranks(weights, model_shapes(settings), dtype, world)
    model = single_device_model(settings, everywhere, world.device)
    pairs = sample.uncut()
    own = range(world.place.global_rank, len(pairs), world.place.world_size)
    sources = [tokenizer.decode(pairs[number].source) for number in own]
    found = Translator(model, tokenizer, settings.data).translate(sources, Search(beam=1))
    # Each row is filled by one rank.
    ids_BT = torch.zeros(len(pairs), settings.data.target_length, dtype=torch.int32, device=world.device)
    for number, translation in zip(own, found, strict=True):
        ids = [*translation.ids, END]
        ids_BT[number, : len(ids)] = torch.tensor(ids, dtype=torch.int32)
    hypotheses = world.sum_over_all(ids_BT).tolist()

    def score() -> bytes:
        references = [tokenizer.decode(pairs[number].target) for number in range(len(pairs))]
        tokenize, _ = tokenization(settings.data.target_language)
        return repr(bleu([tokenizer.decode(ids) for ids in hypotheses], references, tokenize=tokenize).score).encode()

    return float(world.from_rank_0(score))


def _on_all_ranks(
    weights: Mapping[str, Tensor] | None, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, world: World
) -> dict[str, Tensor]:
    """Broadcast rank 0's weights to all ranks. All ranks must call it."""
    everywhere = {}
    for name, shape in shapes.items():
        whole = torch.empty(shape, dtype=dtype, device=world.device)
        if weights is not None:
            whole.copy_(weights[name])
        if world.place.world_size > 1:
            dist.broadcast(whole, src=0)
        everywhere[name] = whole
    return everywhere


def unigram_perplexity(counts: Integers, valid: TokenizedPairs, vocabulary_size: int) -> float:
    """Return the perplexity of validation targets under a unigram model with add-one smoothing.

    p(v) = (count(v) + 1) / (total + V)        perplexity = exp(-mean over tokens of log p)
    """
    log_p = np.log((counts + 1) / (counts.sum() + vocabulary_size))
    occurs = valid.target_counts(len(counts))
    return math.exp(-float(occurs @ log_p) / int(occurs.sum()))


def learning_rate_at(step: int, config: TransformerTrainConfig, last_step: int) -> float:
    """Return the learning rate of a step. Steps count from 1, and the training ends after `last_step`.

    The rate grows linearly to R = `learning_rate` over W = `warmup_steps` steps. After that, until the last step L, it
    follows `train.schedule`:

        inverse_sqrt   R sqrt(W / step)                       as in Vaswani et al. 2017; constant if W is 0
        constant       R
        linear         M + (R - M) (1 - x)                    x = (step - W) / (L - W), from 0 to 1 at the last step
        cosine         M + (R - M) (1 + cos(pi x)) / 2        Loshchilov and Hutter 2017, arXiv:1608.03983, one period

    with M = `minimum_rate`. The rates of linear and cosine depend on `train.steps` or `train.epochs`.
    """
    warmup, highest, lowest = config.warmup_steps, config.learning_rate, config.minimum_rate
    if step <= warmup:
        return highest * (step / warmup)
    if config.schedule == "constant" or (config.schedule == "inverse_sqrt" and warmup == 0):
        return highest
    if config.schedule == "inverse_sqrt":
        return highest * (warmup / step) ** 0.5
    done = (step - warmup) / (last_step - warmup)
    share = 1 - done if config.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return lowest + (highest - lowest) * share
