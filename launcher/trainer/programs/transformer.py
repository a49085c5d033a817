"""Train the encoder-decoder Transformer to translate, validate it, keep it, and show what it can do.

Every rank writes the lines about the loss to its own log; rank 0 writes the metrics and all other lines.
"""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import torch

from launcher.checkpoint.index import checkpoints_in
from launcher.core.env import TLAUNCH_RUN_DIR
from launcher.core.errors import TlaunchError, UsageError
from launcher.core.run_dir import RunDir, strategy_name
from launcher.mesh.stages import busy_shares
from launcher.recipes.transformer.config import TransformerSettings
from launcher.recipes.transformer.cost import stage_costs, training_flops
from launcher.trainer.checkpoint.due import SaveSchedule, end_by_sigterm
from launcher.trainer.checkpoint.read import candidates_at, restore
from launcher.trainer.checkpoint.write import CheckpointWriter, Training
from launcher.trainer.data.baseline import unigram_perplexity
from launcher.trainer.data.batches import GlobalBatch, global_batches
from launcher.trainer.data.corpus import Corpus, open_corpus
from launcher.trainer.decode.greedy import translate
from launcher.trainer.files import Files
from launcher.trainer.model.linear import product
from launcher.trainer.model.transformer import Transformer
from launcher.trainer.optimizer.rates import learning_rate_at
from launcher.trainer.parallel.waiting import Stopwatch, loading
from launcher.trainer.parallel.world import World
from launcher.trainer.plan import gives_parts
from launcher.trainer.programs.strategy import RecordedModel, StepRecorder
from launcher.trainer.saved import check_can_save, gather, save_model, single_device_model
from launcher.trainer.session import Session, StepResult, meta_model
from launcher.trainer.telemetry.heartbeat import HeartbeatWriter
from launcher.trainer.telemetry.metrics import Metrics, attempt_in, perplexity_of
from launcher.trainer.telemetry.profile import StepProfiler
from launcher.trainer.telemetry.step_time import StepTime


def train(settings: TransformerSettings, world: World, files: Files) -> None:
    """Train on one rank; every rank must call it.

    Raises:
        TlaunchError: unusable data or checkpoints, or a gradient that is not finite.
    """
    schedule = SaveSchedule(settings.checkpoint, has_clock=world.is_first)
    with schedule.on_demand():
        _train(settings, world, files, schedule)


def _train(settings: TransformerSettings, world: World, files: Files, schedule: SaveSchedule) -> None:
    output = files.output
    world.from_rank_0(partial(_check_output, output))
    corpus = open_corpus(settings, world, files.data)
    session = Session(settings, world)
    metrics = Metrics(
        os.environ,
        world.device,
        writes=world.is_first,
        ranks=world.place.world_size,
        dtype=session.dtype,
        product=lambda left, right: product(left, right, rows=len(left)),
    )
    session.expect(batch.examples for batch in islice(global_batches(corpus.train, settings.train), 2))
    _introduce(session, corpus)
    training = _training(session, corpus, files)
    first_step = _resumed(session, training, files) + 1
    writer = _writer(session, training, files)
    try:
        with schedule.ends_after_step():
            last_step, validation_loss = _run_steps(
                session, corpus, metrics, writer, schedule, first_step, files.strategy
            )
    finally:
        metrics.flush()
    weights = gather(session, dict(session.model.named_parameters()))
    if weights is None:
        return
    if output is None:
        say("the model is not kept: neither --output nor a run directory says where")
    else:
        facts = {"validation_loss": validation_loss, "layout": dataclasses.asdict(world.place.layout)}
        save_model(output, weights, settings, corpus.tokenizer, facts)
        metrics.saved(last_step, "model")
        say(f"saved {output}")
    _show_translations(session, corpus, single_device_model(settings, weights, world.device))


def _check_output(output: Path | None) -> bytes:
    if output is not None:
        check_can_save(output)
    return b""


def say(line: str) -> None:
    """Write a line to this rank's log at once, and in one piece: a thread that writes a checkpoint has lines of its own."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def say_of_all(line: str, world: World) -> None:
    """Print a line, as `say` does, on every rank that has a log of its own; elsewhere on one rank."""
    if world.is_first or TLAUNCH_RUN_DIR in os.environ:
        say(line)


def _introduce(session: Session, corpus: Corpus) -> None:
    world, layout = session.world, session.world.place.layout
    held = sum(parameter.numel() for parameter in session.model.parameters())
    how = f"{layout} micro_batches={layout.micro_batches} on {world.device.type}"
    say_of_all(f"layout: {how}, {held} parameters on this rank", world)
    if not world.is_first:
        return
    say(f"data: {corpus.origin}")
    for remark in corpus.remarks:
        say(remark)
    say(f"vocabulary: {corpus.tokenizer.size} tokens of {session.settings.model.vocabulary_size} rows")
    if world.pp.size > 1:
        layers = ", ".join(str(len(stage.encoder_layers) + len(stage.decoder_layers)) for stage in session.stages)
        say(f"stages: {layers} layers, predicted to work {_shares(_predicted(session))} of each step")


def _predicted(session: Session) -> tuple[float, ...]:
    """Return the share of a step that each pipeline stage should work."""
    costs = stage_costs(session.settings, session.stages)
    return busy_shares(costs, session.world.place.layout.micro_batches)


def _shares(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.0%}" for value in values)


def _training(session: Session, corpus: Corpus, files: Files) -> Training:
    return Training(
        program="transformer",
        settings=dataclasses.asdict(session.settings),
        layout=session.world.place.layout,
        text=corpus.digest,
        data="" if files.data is None else str(files.data.absolute()),
        shapes={name: tuple(parameter.shape) for name, parameter in meta_model(session.settings).named_parameters()},
        tokenizer=corpus.tokenizer.serialized,
        named=files.named,
    )


def _resumed(session: Session, training: Training, files: Files) -> int:
    """Go on from the newest whole checkpoint, of this run first; return the step after which, 0 if from the beginning.

    Raises:
        TlaunchError: on every rank alike, where there are checkpoints and none is whole, or one is of something else.
    """

    def find() -> list[Path]:
        own = [] if files.checkpoints is None else checkpoints_in(files.checkpoints)
        return own + ([] if files.resume is None else candidates_at(files.resume))

    found = restore(find, training, session.optimizer, session.world)
    if found is None:
        if attempt_in(os.environ) > 0:
            say_of_all("there is no checkpoint: the training begins anew", session.world)
        return 0
    path, step = found
    say_of_all(f"resumed: {path}, after step {step}", session.world)
    return step


def _writer(session: Session, training: Training, files: Files) -> CheckpointWriter | None:
    config = session.settings.checkpoint
    if not config.is_on:
        return None
    if files.checkpoints is None:
        raise UsageError("checkpoints are to be written, but nothing says where they belong", hint="--checkpoints DIR")
    return CheckpointWriter(
        files.checkpoints,
        training,
        session.world,
        keep=config.keep,
        keep_best=config.keep_best,
        way=config.files,
        on_saved=lambda step: say(f"saved the checkpoint of step {step}"),
        on_unremoved=_said_once(files.checkpoints),
        on_unwritable=None if config.on_failure == "stop" else _say_that_it_goes_on,
    )


def _say_that_it_goes_on(trouble: str) -> None:
    say(f"{trouble}; the training goes on")


def _said_once(checkpoints: Path) -> Callable[[OSError], None]:
    """Return a function that says why checkpoints stay, the first time alone: the next ones most likely stay as well."""
    told: list[OSError] = []

    def tell(error: OSError) -> None:
        if not told:
            where = error.filename or checkpoints
            say(f"older checkpoints, or parts of some, cannot be removed: {where}: {error.strerror or error}")
        told.append(error)

    return tell


def _finish(writer: CheckpointWriter, session: Session, metrics: Metrics, *, goes_on: bool) -> None:
    """Wait for the checkpoint that is being written, and record it. All ranks must call it.

    Where it could not be written, the log says so, and that the training `goes_on`, if it does.

    Raises:
        TlaunchError: on every rank alike, where it could not be written and checkpoint.on_failure is "stop".
    """
    try:
        step = writer.finish()
    except TlaunchError as error:
        if session.settings.checkpoint.on_failure == "stop":
            raise
        if session.world.is_first and goes_on:
            _say_that_it_goes_on(str(error))
        elif session.world.is_first:
            say(str(error))
        return
    if step is not None and session.world.is_first:
        metrics.saved(step, "checkpoint")


def _run_steps(
    session: Session,
    corpus: Corpus,
    metrics: Metrics,
    writer: CheckpointWriter | None,
    schedule: SaveSchedule,
    first_step: int,
    strategy: Path | None,
) -> tuple[int, float]:
    """Train to the end; the number of the last step, and the last validation loss."""
    config = session.settings.train
    last_step, validation_loss = first_step - 1, math.nan
    heart = HeartbeatWriter(session.world.device)
    profiler = StepProfiler(config.profile_steps, _profile_path(session.world), session.world.device)
    recorder = _step_recorder(session, strategy)
    spent_since_first = StepTime()  # the first step opens connections
    stopwatch = Stopwatch()
    for batch in loading.over(global_batches(corpus.train, config, first_step=first_step)):
        learning_rate = learning_rate_at(batch.step, config)
        with recorder.step(batch.step, is_last=batch.is_last):
            result = session.train_step(batch.examples, learning_rate, step=batch.step, votes=schedule.votes)
        spent = stopwatch.read()
        sources, targets = (lengths_B.tolist() for lengths_B in batch.examples.lengths())
        metrics.stepped(
            batch.step, spent, epoch=batch.epoch, tokens=result.tokens, padding_share=result.padding_share,
            model_flops=training_flops(session.settings.model, sources, targets), loss=result.loss,
            learning_rate=learning_rate, is_last=batch.is_last,
        )  # fmt: skip
        if result.suspects is not None:  # on every rank, so all of them stop together
            if writer is not None:
                _finish(writer, session, metrics, goes_on=False)
            raise _not_finite(result, batch, corpus, session.world)
        heart.stepped(batch.step, batch.last_step, spent.seconds, spent.busy_s, tokens=result.tokens, loss=result.loss)
        speed = result.tokens / spent.seconds
        line = f"epoch: {batch.epoch} step: {batch.step_of_epoch}, loss is {result.loss:.4f}, {speed:.0f} tokens/s"
        say_of_all(line, session.world)
        for told in filter(None, (profiler.stepped(is_last=batch.is_last), recorder.told())):
            say_of_all(told, session.world)
        if batch.step > first_step:
            spent_since_first += spent
        last_step = batch.step
        validates = batch.is_last or (config.validate_every > 0 and batch.step % config.validate_every == 0)
        due = schedule.after(batch.step, result.votes, is_last=batch.is_last, validates=validates)
        known_loss = None  # of this state
        if validates and not due.ends:
            known_loss = validation_loss = _validated(session, corpus, metrics, batch.step)
        if writer is not None and due.saves:
            _save(writer, session, metrics, batch.step, known_loss, ends=due.ends)
        stopwatch = Stopwatch()
    if writer is not None:
        _finish(writer, session, metrics, goes_on=False)
    if last_step < first_step:
        told = "train.steps and train.epochs count from the beginning of the training"
        say_of_all(f"nothing is left to train after step {last_step}: {told}", session.world)
        validation_loss = _validated(session, corpus, metrics, last_step)
    _tell_stages(session, spent_since_first, last_step, metrics)
    return last_step, validation_loss


def _validated(session: Session, corpus: Corpus, metrics: Metrics, step: int) -> float:
    """Validate the state after `step`, tell its loss beside that of a unigram model, and return it. All ranks must call it."""
    loss = session.validate(corpus.valid)
    bar = unigram_perplexity(corpus.target_counts, corpus.valid, session.settings.model.vocabulary_size)
    perplexity = f"{perplexity_of(loss):.2f} (unigram model: {bar:.2f})"
    say_of_all(f"validation loss is {loss:.6f}, perplexity {perplexity}", session.world)
    metrics.validated(step, loss)
    return loss


def _save(
    writer: CheckpointWriter,
    session: Session,
    metrics: Metrics,
    step: int,
    validation_loss: float | None,
    *,
    ends: bool,
) -> None:
    """Save the state after `step`; where the training `ends`, do so as by SIGTERM once that is whole. All ranks must call it."""
    _finish(writer, session, metrics, goes_on=not ends)
    writer.save(step, session.optimizer, validation_loss=validation_loss)
    if ends:
        _finish(writer, session, metrics, goes_on=False)
        metrics.flush()
        say_of_all(f"ended by SIGTERM after step {step}", session.world)
        end_by_sigterm()


def _not_finite(result: StepResult, batch: GlobalBatch, corpus: Corpus, world: World) -> TlaunchError:
    """Write the sentence pairs that may be the reason to the logs; return the error, the same on every rank."""
    suspects = result.suspects
    assert suspects is not None, "the gradient is not finite"
    for row in suspects.pairs:
        example, decode = batch.examples[row], corpus.tokenizer.decode
        say_of_all(f"pair {row + 1} of the batch: {decode(example.source)} -> {decode(example.target)}", world)
    first = f", and {suspects.parameter} is the first parameter where it is not finite" if suspects.parameter else ""
    return TlaunchError(
        f"epoch {batch.epoch} step {batch.step_of_epoch}: the norm of the gradient is {result.gradient_norm}{first}; "
        "that step has changed no weight",
        hint="a smaller train.learning_rate, or more train.warmup_steps; or a fault in one of the "
        f"{len(suspects.pairs)} pairs above, of {len(batch.examples)} in the batch",
    )


def _profile_path(world: World) -> Path | None:
    """Return where this rank's profile belongs: in its directory of the run, if there is one."""
    run_dir = os.environ.get(TLAUNCH_RUN_DIR)
    return RunDir(Path(run_dir)).profile(world.place.global_rank) if run_dir else None


def _step_recorder(session: Session, directory: Path | None) -> StepRecorder:
    recorded = RecordedModel("transformer", session.model, session.placements, gives_parts(session.model))
    path = None if directory is None else directory / strategy_name(session.world.place.global_rank)
    return StepRecorder(path, recorded, session.world, attempt_in(os.environ))


def _tell_stages(session: Session, spent: StepTime, last_step: int, metrics: Metrics) -> None:
    """Say and record which share of the steps each pipeline stage worked, the mean of its ranks. All ranks must call it.

    On accelerators that is not known, nor without a step after the first one.
    """
    world = session.world
    if world.pp.size == 1 or world.device.type != "cpu" or not spent.seconds:
        return
    shares = torch.zeros(world.pp.size, dtype=torch.float64)
    shares[world.pp.index] = spent.busy_s / spent.seconds / (world.dp.size * world.mp.size)
    busy = world.sum_over_all(shares).tolist()
    metrics.stages_measured(last_step, busy, _predicted(session))
    if world.is_first:
        say(f"stages: worked {_shares(busy)} of each step")


def _show_translations(session: Session, corpus: Corpus, model: Transformer) -> None:
    data = session.settings.data
    shown = corpus.showcase[: session.settings.train.translations]
    if not shown:
        return
    sources = [source for source, _ in shown]
    translations = translate(
        model, corpus.tokenizer, sources, source_length=data.source_length, target_length=data.target_length
    )
    for (source, reference), translation in zip(shown, translations, strict=True):
        say(f"source:      {source}\nreference:   {reference}\ntranslation: {translation}")
