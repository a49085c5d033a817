"""The training loop of the bundled programs.

It runs a program's steps (`program.py`), logs them, writes heartbeats and metrics, saves checkpoints on schedule,
validates, profiles, and saves the trained model. Every rank logs the loss; rank 0 writes the metrics and all other
lines.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Generic

import torch
from torch import Tensor
from torch.autograd import profiler

from launcher.checkpoint.index import BLEU, NOT_VALIDATED, Validations
from launcher.core.atomic import replacing
from launcher.core.run_dir import strategy_name
from launcher.recipes.train import CheckpointConfig, why_ended
from launcher.trainer.checkpoint.schedule import SaveSchedule
from launcher.trainer.parallel.world import World
from launcher.trainer.programs.program import (
    NOTHING_VALIDATED,
    AnyBatch,
    AnyResult,
    Program,
    Validated,
    say,
    say_of_all,
)
from launcher.trainer.programs.save_loop import Saving
from launcher.trainer.programs.strategy_recorder import StepRecorder
from launcher.trainer.saved import check_can_save, save_model
from launcher.trainer.telemetry.heartbeat import HeartbeatWriter
from launcher.trainer.telemetry.metrics_writer import Metrics, attempt_in
from launcher.trainer.telemetry.step_time import StepTime, Stopwatch, loading
from launcher.trainer.training_files import Files, own_run

WARM_UP_STEPS = 3  # steps before the profiler's trace; they open connections and allocate memory


def run(
    make: Callable[[], Program[AnyBatch, AnyResult]], checkpoints: CheckpointConfig, world: World, files: Files
) -> dict[str, Tensor] | None:
    """Train the program that `make` creates. Return the trained weights on rank 0, and None on other ranks.

    First checks that the model can be saved. All ranks must call it.

    Raises:
        TlaunchError: data or checkpoints are unusable, or a gradient is not finite.
    """
    schedule = SaveSchedule(checkpoints, has_clock=world.is_first)

    def check_output() -> bytes:
        if files.output is not None:
            check_can_save(files.output)
        return b""

    with schedule.on_demand():
        world.from_rank_0(check_output)
        return _train(make(), files, schedule)


def _train(program: Program[AnyBatch, AnyResult], files: Files, schedule: SaveSchedule) -> dict[str, Tensor] | None:
    world = program.world
    metrics = Metrics(
        os.environ,
        world.device,
        writes=world.is_first,
        ranks=world.place.world_size,
        dtype=program.dtype,
        product=program.product,
    )
    program.begin()
    saving = Saving(program, files, metrics)
    first_step = saving.resume() + 1
    if not saving.open():
        schedule = SaveSchedule(CheckpointConfig(enabled=False), has_clock=False)
    try:
        with schedule.ends_after_step():
            report = files.strategy and files.strategy / strategy_name(world.place.global_rank)
            recorder = program.step_recorder(report, attempt_in(os.environ))
            last_step, validation_loss = _run_steps(program, metrics, saving, schedule, recorder, first_step)
    finally:
        metrics.flush()
    weights = program.weights()
    if weights is None:
        return None
    if files.output is None:
        say("the model is not saved: there is no output directory and no run directory")
    else:
        facts = {"validation_loss": validation_loss, "layout": dataclasses.asdict(world.place.layout)}
        save_model(files.output, program.name, weights, program.settings, program.tokenizer, facts)
        metrics.saved(last_step, "model")
        say("\n".join(filter(None, (f"saved {files.output}", saving.better_than(last_step)))))
    program.show(weights)
    return weights


class _StepReports(Generic[AnyBatch, AnyResult]):
    """Reports each training step in the metrics, the heartbeat and the log."""

    def __init__(self, program: Program[AnyBatch, AnyResult], metrics: Metrics, recorder: StepRecorder) -> None:
        self._program, self._metrics, self._recorder = program, metrics, recorder
        world = program.world
        self._heart = HeartbeatWriter(world.device)
        run = own_run()
        path = None if run is None else run.profile(world.place.global_rank)
        self.profiler = StepProfiler(program.settings.train.profile_steps, path, world.device)

    def stepped(self, batch: AnyBatch, result: AnyResult, spent: StepTime, learning_rate: float) -> None:
        """Write the metrics, heartbeat and log lines of a step. If the gradient is not finite, write only metrics."""
        program = self._program
        self._metrics.stepped(
            batch.step, spent, epoch=batch.epoch, tokens=result.tokens, padding_share=result.padding_share,
            model_flops=program.model_flops(batch), loss=result.loss, gradient_norm=result.gradient_norm,
            is_clipped=self._is_clipped(result), learning_rate=learning_rate, is_last=batch.is_last,
        )  # fmt: skip
        if not result.is_finite:
            return
        seconds = spent.seconds
        self._heart.stepped(batch.step, batch.last_step, seconds, spent.busy_s, tokens=result.tokens, loss=result.loss)
        clipped = f" (clipped to {program.clip_norm:g})" if self._is_clipped(result) else ""
        line = f"{program.line(batch, result, seconds)}, gradient norm {result.gradient_norm:.4g}{clipped}"
        say_of_all(line, program.world)
        for log_line in filter(None, (self.profiler.stepped(is_last=batch.is_last), self._recorder.first_line())):
            say_of_all(log_line, program.world)

    def _is_clipped(self, result: AnyResult) -> bool | None:
        """Return True if the optimizer clipped the gradient of a step, or None if the program never clips."""
        limit = self._program.clip_norm
        return result.gradient_norm > limit if limit else None


def _run_steps(
    program: Program[AnyBatch, AnyResult],
    metrics: Metrics,
    saving: Saving,
    schedule: SaveSchedule,
    recorder: StepRecorder,
    first_step: int,
) -> tuple[int, float | None]:
    """Train from `first_step` to the end, and return the last step and the last validation loss.

    The loss is NaN if no step was validated, and None if the program has no validation data.
    """
    config, world = program.settings.train, program.world
    last_step = first_step - 1
    validation_loss: float | None = math.nan
    reports = _StepReports(program, metrics, recorder)
    spent_since_first = StepTime()  # the first step opens connections
    stopping = _stopping(program, metrics, saving, last_step)
    stopwatch = Stopwatch()
    for batch in loading.over(() if stopping.is_over else program.batches(first_step)):
        learning_rate = program.learning_rate(batch)
        with recorder.step(batch.step, is_last=batch.is_last):
            result = program.train_step(batch, learning_rate, schedule.votes)
        spent = stopwatch.read()
        reports.stepped(batch, result, spent, learning_rate)
        if not result.is_finite:  # on every rank, so all of them stop together
            saving.failed(batch.step)
            raise program.not_finite(batch, result)
        if batch.step > first_step:
            spent_since_first += spent
        last_step = batch.step
        validates = batch.is_last or (config.validate_every > 0 and batch.step % config.validate_every == 0)
        due = schedule.after(batch.step, result.votes, is_last=batch.is_last, validates=validates)
        validated = NOTHING_VALIDATED  # of this state
        if validates or due.saves:
            saving.check_weights(batch.step)
        if validates and due.ends:
            stopping.missed()
        elif validates:
            validated = _validated(program, metrics, batch.step)
            validation_loss = validated.loss
            stopping.after(validated)
        if due.saves or stopping.is_over:
            saving.save(batch.step, validated, stopping.validations, ends=due.ends)
        if stopping.is_over:
            say_of_all("\n".join(filter(None, (stopping.log_line(), reports.profiler.end()))), world)
            break
        stopwatch = Stopwatch()
    saving.finish(goes_on=False)
    if last_step < first_step:
        validation_loss = _nothing_left(program, metrics, stopping, last_step)
    program.ended(spent_since_first, last_step, metrics)
    return last_step, validation_loss


def _stopping(program: Program[AnyBatch, AnyResult], metrics: Metrics, saving: Saving, step: int) -> EarlyStopping:
    """Return the state of early stopping. If a resumed training was not validated after `step`, validate it now."""
    stopping = EarlyStopping(program.settings.train.early_stopping, program.best_metric, saving.validations)
    if stopping.validations.is_due:
        validated = _validated(program, metrics, step)
        stopping.after(validated)
        saving.record_validation(validated, stopping.validations)
    return stopping


def _nothing_left(
    program: Program[AnyBatch, AnyResult], metrics: Metrics, stopping: EarlyStopping, step: int
) -> float | None:
    """Log why there is nothing left to train after `step`, and validate the model. All ranks must call it."""
    told = (
        stopping.log_line()
        if stopping.is_over
        else f"{why_ended(program.settings.train)}; both count from the beginning"
    )
    say_of_all(f"nothing is left to train after step {step}: {told}", program.world)
    return _validated(program, metrics, step).loss


def _validated(program: Program[AnyBatch, AnyResult], metrics: Metrics, step: int) -> Validated:
    """Validate the model after `step`, and log, record and return the result. All ranks must call it."""
    found = program.validate() or NOTHING_VALIDATED
    if found.loss is not None:
        say_of_all(f"step {step}: {found.line}", program.world)
        metrics.validated(step, found.loss, of_tokens=found.of_tokens, bleu=found.bleu)
    return found


class EarlyStopping:
    """Stops after `patience` validations in a row without improvement. All ranks make the same decision."""

    def __init__(self, patience: int, best_metric: str, validations: Validations) -> None:
        """Continue from the counts in `validations`. A `patience` of 0 turns early stopping off.

        A lower loss is an improvement or, if `best_metric` is BLEU, a higher BLEU.
        """
        self._patience, self._by_bleu = patience, best_metric == BLEU
        other = validations.lowest_loss if self._by_bleu else validations.highest_bleu
        continues = patience and other is None  # otherwise another metric was counted
        self.validations = validations if continues else Validations(is_due=validations.is_due)

    @property
    def _best(self) -> float | None:
        return self.validations.highest_bleu if self._by_bleu else self.validations.lowest_loss

    @property
    def is_over(self) -> bool:
        return 0 < self._patience <= self.validations.since

    def after(self, validated: Validated) -> None:
        """Count a validation. A value that is None or not finite is not an improvement."""
        if not self._patience:
            self.validations = NOT_VALIDATED
            return
        best, since = self._best, self.validations.since + 1
        value = validated.bleu if self._by_bleu else validated.loss
        sign = -1 if self._by_bleu else 1
        if value is not None and math.isfinite(value) and (best is None or sign * value < sign * best):
            best, since = value, 0
        self.validations = Validations(None, since, highest_bleu=best) if self._by_bleu else Validations(best, since)

    def missed(self) -> None:
        """Record that the current state is not validated. A run that resumes from this state validates it first."""
        self.validations = dataclasses.replace(self.validations, is_due=True)

    def log_line(self) -> str:
        best, better = self._best, "higher BLEU" if self._by_bleu else "lower loss"
        named = f"none had a finite {'BLEU' if self._by_bleu else 'loss'}"
        if best is not None:
            named = f"the highest BLEU is {best:.2f}" if self._by_bleu else f"the lowest loss is {best:.6f}"
        return f"ended early: {self.validations.since} validations in a row have no {better}; {named}"


class StepProfiler:
    """A profiler that writes a trace of some steps of this rank to a file. The first three steps are not traced.

    With 0 steps it does nothing.
    """

    def __init__(self, steps: int, path: Path | None, device: torch.device) -> None:
        """Prepare to trace `steps` steps. If `path` is None, nothing is traced, and a log line gives the reason."""
        self._left = steps
        self._path = path
        self._steps = 0
        self._running = ExitStack()
        # Not `torch.profiler`: its first use imports torch's compiler, which takes a second on every rank.
        self._profile = profiler.profile(
            path is not None and bool(steps), use_device=None if device.type == "cpu" else device.type
        )

    def stepped(self, *, is_last: bool) -> str:
        """Count a step. Start the trace at its first step, and end it at its last. Return a log line or ""."""
        if not self._left:
            return ""
        if self._path is None:
            self._left = 0
            return "no profile: there is no run directory to write it to"
        self._steps += 1
        if self._steps == WARM_UP_STEPS and not is_last:
            self._running.enter_context(self._profile)
        is_over = self._steps == WARM_UP_STEPS + self._left or is_last
        return self.end() if is_over else ""

    def end(self) -> str:
        """Write the trace if it is not written yet. Return a log line with the path or the error, or ""."""
        if not self._left:
            return ""
        self._left = 0
        if self._steps <= WARM_UP_STEPS:
            return f"no profile: the training ended after {self._steps} steps; the first {WARM_UP_STEPS} are not traced"
        self._running.close()
        assert self._path is not None, "nothing is traced without a path"
        try:
            with replacing(self._path) as aside:
                self._profile.export_chrome_trace(str(aside))
        except OSError as error:
            return f"no profile: {error.filename}: {error.strerror}"
        return f"profile: {self._path}"
