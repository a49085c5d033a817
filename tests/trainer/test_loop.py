"""The training loop with a program that has neither tokens nor a tokenizer: lines, checkpoints, resume, model, refusals."""

import dataclasses
import json
import math
import shutil
import signal

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from launcher.checkpoint.index import (
    BLEU,
    INDEX,
    LOSS,
    NOT_VALIDATED,
    SCHEMA_OF_VALIDATIONS,
    Validations,
    checkpoints_in,
    index_text,
    read_index,
)
from launcher.checkpoint.same_settings import check_settings
from launcher.cli.text.progress_text import STEP_LINE
from launcher.core.env import TLAUNCH_RUN_DIR
from launcher.core.errors import TlaunchError, UsageError
from launcher.core.frozen import frozen
from launcher.recipes.quickstart.quickstart_recipe import QuickstartTrainConfig
from launcher.recipes.train import CheckpointConfig, ParallelConfig
from launcher.trainer.optimizer.sharded import ShardedOptimizer
from launcher.trainer.optimizer.update_rules import Momentum
from launcher.trainer.own.train.samples import SampleBatch
from launcher.trainer.parallel.collectives import ALONE
from launcher.trainer.parallel.placement import Placement
from launcher.trainer.programs import save_loop as saving
from launcher.trainer.programs.loop import EarlyStopping, run
from launcher.trainer.programs.network_program import NetworkResult
from launcher.trainer.programs.program import Program, Validated
from launcher.trainer.programs.strategy_recorder import StepRecorder
from launcher.trainer.telemetry import metrics_writer
from launcher.trainer.training_files import Files

from .transformers import alone

STEPS_PER_EPOCH = 3
MEAN = "running_mean"


@frozen
class TrainConfig(QuickstartTrainConfig):
    best_metric: str = LOSS


@frozen
class Settings:
    train: TrainConfig = TrainConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    parallel: ParallelConfig = ParallelConfig()


class Line(Program):
    """Fits a line by least squares, and keeps the mean of the inputs it has seen."""

    name = "line"
    dtype = torch.float64
    digest = "points"
    clip_norm = 4.0

    def __init__(self, settings, *, broken_at=None, overflows_at=None, errors=(), scores=None, rule=Momentum):
        self.settings, self._broken_at, self._overflows_at = settings, broken_at, overflows_at
        self._scores = None if scores is None else list(scores)
        self.best_metric = settings.train.best_metric
        self._errors, self.world = list(errors), alone()
        self.model = nn.Linear(1, 1).to(self.dtype)
        nn.init.zeros_(self.model.weight)
        nn.init.zeros_(self.model.bias)
        parameters = dict(self.model.named_parameters())
        self.shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
        placed = {name: Placement.uncut(shape) for name, shape in self.shapes.items()}
        momentum = rule(settings.train.momentum)
        axes = {"dp": ALONE, "mp": ALONE, "pp": ALONE}
        self.optimizer = ShardedOptimizer(parameters, placed, momentum, clip_norm=self.clip_norm, **axes)
        self.buffers = {MEAN: torch.zeros(1, dtype=self.dtype)}

    def begin(self):
        print("a line")

    def batches(self, first_step):
        train = self.settings.train
        last_step = train.steps or train.epochs * STEPS_PER_EPOCH
        for step in range(first_step, last_step + 1):
            epoch, index = divmod(step - 1, STEPS_PER_EPOCH)
            numbers = torch.Generator().manual_seed(step)
            inputs_B1 = torch.randn(train.batch_size, 1, generator=numbers, dtype=self.dtype)
            yield SampleBatch(inputs_B1, epoch + 1, index + 1, step, last_step)

    def learning_rate(self, batch):
        return self.settings.train.learning_rate

    def step_recorder(self, path, attempt):
        return StepRecorder(path, 0, lambda recorder, step: None, self.model)

    def train_step(self, batch, learning_rate, votes):
        self.on_sigterm = signal.getsignal(signal.SIGTERM)
        self.optimizer.zero_gradients()
        loss = (self.model(batch.samples) - 2 * batch.samples - 1).square().mean()
        if batch.step == self._broken_at:
            loss = loss * math.inf
        loss.backward()
        norm = self.optimizer.step(learning_rate, votes)
        if math.isfinite(norm):
            self.buffers[MEAN].mul_(0.9).add_(batch.samples.mean(), alpha=0.1)
        if batch.step == self._overflows_at:
            self.model.bias.detach().fill_(math.inf)
        return NetworkResult(float(loss.detach()), norm, self.optimizer.votes)

    def not_finite(self, batch, result):
        return TlaunchError(f"step {batch.step}: the loss is {result.loss}")

    def validate(self):
        if self._scores is not None:
            return Validated(1.0, "as given", bleu=self._scores.pop(0))
        if self._errors:
            return Validated(self._errors.pop(0), "as given")
        error = float((self.model.weight.detach() - 2).abs() + (self.model.bias.detach() - 1).abs())
        return Validated(error, f"off by {error:.3f}")

    def weights(self):
        tensors = (*self.model.named_parameters(), *self.buffers.items())
        return {name: tensor.detach().clone() for name, tensor in tensors}

    def show(self, weights):
        print(f"the slope is {float(weights['weight']):.2f}")


def settings_of(*, enabled=True, every_steps=2, keep=4, keep_best=False, **train):
    checkpoint = CheckpointConfig(enabled=enabled, every_steps=every_steps, keep=keep, keep_best=keep_best)
    config = {"epochs": 2, "batch_size": 32, "learning_rate": 0.1, "momentum": 0.9, **train}
    return Settings(TrainConfig(**config), checkpoint)


@pytest.fixture(name="train")
def _train(tmp_path, capsys):
    """Gives a function that trains as `python -m launcher.trainer` would, and returns program and lines."""

    def train(settings, *, output=None, checkpoints="checkpoints", resume=None, init_from=None, **facts):
        made = []

        def make():
            made.append(Line(settings, **facts))
            return made[0]

        output = None if output is None else tmp_path / output
        files = Files(output=output, checkpoints=tmp_path / checkpoints, resume=resume, init_from=init_from)
        run(make, settings.checkpoint, alone(), files)
        return made[0], capsys.readouterr().out.splitlines()

    return train


def test_a_program_without_tokens_is_trained_saved_and_kept(train, tmp_path, monkeypatch):
    """Its lines are the tutorials', and nothing tells of tokens or perplexity; the model has buffers, and no tokenizer."""
    monkeypatch.setenv(TLAUNCH_RUN_DIR, str(tmp_path / "run"))
    monkeypatch.setattr(metrics_writer, "REST_S", 0.0)
    monkeypatch.setattr(metrics_writer, "REST_SHARE", 0.0)
    (tmp_path / "run").mkdir()
    program, lines = train(settings_of(every_steps=4), output="model")
    told = [line for line in lines if not line.startswith("saved the checkpoint")]  # by a thread, whenever that is
    assert told[0] == "a line"
    assert [line.partition(", loss is ")[0] for line in told[1:7]] == [
        *(f"epoch: 1 step: {step}" for step in (1, 2, 3)),
        *(f"epoch: 2 step: {step}, total step: {step + 3}" for step in (1, 2, 3)),
    ]
    assert all(STEP_LINE.match(f"{line}\n".encode()) for line in told[1:7])
    assert told[7].startswith("step 6: off by ")
    assert told[8:] == [f"saved {tmp_path / 'model'}", f"the slope is {program.model.weight.item():.2f}"]
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"model.safetensors", "config.json"}
    kept = load_file(tmp_path / "model" / "model.safetensors")
    assert all(torch.equal(kept[name], tensor) for name, tensor in program.weights().items())
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["program"] == "line"
    assert config["recipe"]["train"]["momentum"] == 0.9
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if record.get("loss") is not None]
    for line, record in zip(told[1:7], steps, strict=True):
        norm = record["gradient_norm"]
        assert line.endswith(f", gradient norm {norm:.4g}{' (clipped to 4)' * (norm > 4)}")
        assert record["clipped_share"] == (norm > 4)
    assert {record["clipped_share"] for record in steps} == {0, 1}
    of_text = ("tokens_per_s", "padding_share", "model_flops")
    assert {record.get(name) for record in steps for name in of_text} == {None}
    [validation] = [record for record in records if "validation_loss" in record]
    assert validation["validation_loss"] > 0
    assert validation.get("perplexity") is None
    assert [path.name for path in checkpoints_in(tmp_path / "checkpoints")] == ["step-6", "step-4"]
    index = read_index(tmp_path / "checkpoints" / "step-6")
    assert (index.schema, index.kinds, index.buffers) == (3, ("weight", "first_moment"), {MEAN: (1,)})


def test_a_training_goes_on_as_if_it_had_not_stopped(train, tmp_path):
    """With the moments and the buffers that it had, to the last bit."""
    whole, _ = train(settings_of())
    train(settings_of(steps=4), checkpoints="half")
    again, lines = train(settings_of(), checkpoints="half")
    assert f"resumed: {tmp_path / 'half' / 'step-4'}, after step 4" in lines
    assert sum(line.startswith("epoch: ") for line in lines) == 2
    assert all(torch.equal(tensor, again.weights()[name]) for name, tensor in whole.weights().items())


# After each second step; three in a row without a lower one.
LOSSES = [4.0, 3.0, math.nan, 3.0, 2.5, 2.6, 2.6, 2.5, 1.0]


def stopping(*, patience=3, **train):
    return settings_of(validate_every=2, early_stopping=patience, **{"steps": 30, **train})


def test_a_training_ends_once_its_validation_loss_falls_no_more(train, tmp_path):
    """After so many validations in a row without a lower loss; with its model, and a checkpoint of its last step."""
    _, lines = train(stopping(every_steps=3), output="model", errors=LOSSES)
    assert sum(line.startswith("epoch: ") for line in lines) == 16
    assert "ended early: 3 validations in a row have no lower loss; the lowest loss is 2.500000" in lines
    assert (tmp_path / "model").exists()
    newest = read_index(checkpoints_in(tmp_path / "checkpoints")[0])
    assert (newest.step, newest.schema, newest.validation_loss) == (16, SCHEMA_OF_VALIDATIONS, 2.5)
    assert newest.validations == Validations(lowest_loss=2.5, since=3)
    _, more = train(stopping(), errors=LOSSES)
    assert not any(line.startswith("epoch: ") for line in more)
    assert any("nothing is left to train after step 16: ended early" in line for line in more)
    _, more = train(stopping(patience=4), errors=[2.4, 5.0, 5.0, 5.0, 5.0])
    assert sum(line.startswith("epoch: ") for line in more) == 10


@pytest.mark.parametrize(("step", "is_due"), [(4, False), (4, True), (5, False), (8, True), (15, False)])
def test_validations_are_counted_over_an_interruption(train, tmp_path, step, is_due):
    """From whichever step it goes on, it ends after the same one: also if the run had no time to validate that step."""
    whole, _ = train(stopping(every_steps=1, keep=30), errors=LOSSES, checkpoints="whole")
    half = tmp_path / "half" / f"step-{step}"
    shutil.copytree(tmp_path / "whole" / half.name, half)
    losses = LOSSES[step // 2 :]
    if is_due:
        counting = EarlyStopping(3, LOSS, read_index(tmp_path / "whole" / f"step-{step - 1}").validations)
        counting.missed()
        (half / INDEX).write_text(index_text(dataclasses.replace(read_index(half), validations=counting.validations)))
        losses = LOSSES[step // 2 - 1 :]
    again, lines = train(stopping(), errors=losses, checkpoints="half")
    assert sum(line.startswith("epoch: ") for line in lines) == 16 - step
    assert all(torch.equal(tensor, again.weights()[name]) for name, tensor in whole.weights().items())
    assert read_index(half.with_name("step-16")).validations == Validations(lowest_loss=2.5, since=3)


@pytest.mark.parametrize("patience", [0, 3])
def test_the_best_checkpoint_is_kept_although_sigterm_left_no_time_to_validate_it(train, tmp_path, patience):
    """The run that resumes validates that state and records its loss, with and without early stopping."""
    train(stopping(every_steps=1, keep=1, steps=3, patience=patience))
    best = tmp_path / "checkpoints" / "step-3"
    counting = EarlyStopping(patience, LOSS, read_index(best).validations)
    counting.missed()
    index = dataclasses.replace(read_index(best), validation_loss=None, validations=counting.validations)
    (best / INDEX).write_text(index_text(dataclasses.replace(index, schema=SCHEMA_OF_VALIDATIONS)))
    settings = stopping(every_steps=0, keep=1, keep_best=True, steps=8, patience=patience)
    train(settings, errors=[0.5, 0.9, 0.8, 0.7])  # of steps 3, 4, 6, 8
    assert [path.name for path in checkpoints_in(best.parent)] == ["step-8" if patience == 0 else "step-6", "step-3"]
    assert read_index(best).validation_loss == 0.5
    assert not read_index(best).validations.is_due


def test_the_log_names_a_better_checkpoint_than_the_model(train, tmp_path):
    _, lines = train(stopping(every_steps=0, keep=1, keep_best=True), output="model", errors=[0.5, 0.9, 0.8, 0.7])
    [line] = [line for line in lines if str(tmp_path / "checkpoints" / "step-2") in line]
    assert line.startswith("the model is of step 8; ")
    _, lines = train(stopping(every_steps=0, steps=4), output="falls", checkpoints="new", errors=[0.5, 0.4])
    assert not any(line.startswith("the model is of") for line in lines)


# BLEU after each second step; three in a row without a higher one.
SCORES = [10.0, 20.0, 20.0, 30.5, 30.0, 20.0, 29.0, 40.0]


def test_the_best_bleu_decides_if_it_is_the_metric(train, tmp_path):
    """When the training ends and which checkpoint is kept, also over an interruption; another metric counts anew."""
    by_bleu = {"keep": 1, "keep_best": True, "best_metric": BLEU}
    _, lines = train(stopping(**by_bleu, steps=8), scores=SCORES)
    _, lines = train(stopping(**by_bleu), scores=SCORES[4:])
    assert sum(line.startswith("epoch: ") for line in lines) == 6
    assert "ended early: 3 validations in a row have no higher BLEU; the highest BLEU is 30.50" in lines
    newest, best = (read_index(path) for path in checkpoints_in(tmp_path / "checkpoints"))
    assert (newest.step, newest.validation_bleu, newest.validations) == (
        14,
        29.0,
        Validations(None, 3, highest_bleu=30.5),
    )
    assert (best.step, best.validation_bleu, best.validation_loss) == (8, 30.5, 1.0)
    _, lines = train(stopping(keep=1, steps=16), errors=[2.0])
    assert sum(line.startswith("epoch: ") for line in lines) == 2
    assert read_index(checkpoints_in(tmp_path / "checkpoints")[0]).validations == Validations(2.0)
    counting = EarlyStopping(1, BLEU, NOT_VALIDATED)
    counting.after(Validated(1.0, ""))
    assert counting.log_line().endswith("no higher BLEU; none had a finite BLEU")


def test_a_changed_setting_is_reported(train):
    train(settings_of(steps=2))
    _, lines = train(settings_of(steps=4))
    assert "settings changed since step-2: train.steps 2 -> 4" in lines
    _, lines = train(settings_of(steps=4, learning_rate=0.05, momentum=0.5))
    assert "settings changed since step-4: train.learning_rate 0.1 -> 0.05, train.momentum 0.9 -> 0.5" in lines
    _, lines = train(settings_of(steps=4))
    assert not any(line.startswith("settings changed") for line in lines)


def test_a_training_starts_from_the_weights_of_another(train, tmp_path):
    """And its buffers, but not from its moments and steps; a restart, before or after a checkpoint, changes nothing."""
    first, _ = train(settings_of(steps=4), output="model", checkpoints="first")
    still = settings_of(steps=1, learning_rate=0.0)
    for source in (tmp_path / "model", tmp_path / "first" / "step-4"):
        program, lines = train(still, init_from=source, checkpoints=source.name)
        assert f"initial weights: {source}" in lines
        assert torch.equal(program.model.weight, first.model.weight)
        whole, _ = train(settings_of(), init_from=source, checkpoints=f"whole {source.name}")
        train(settings_of(steps=4), init_from=source, checkpoints=f"half {source.name}")
        again, lines = train(settings_of(), init_from=source, checkpoints=f"half {source.name}")
        assert sum(line.startswith("epoch: ") for line in lines) == 2
        assert not any("initial weights" in line for line in lines)
        assert all(torch.equal(tensor, again.weights()[name]) for name, tensor in whole.weights().items())
    fresh, _ = train(settings_of(), checkpoints="fresh")
    assert not torch.equal(fresh.weights()[MEAN], whole.weights()[MEAN])


@pytest.mark.parametrize(("damage", "message"), [
    (lambda model: (model / "model.safetensors").write_bytes(b"junk"), "is damaged"),
    (lambda model: (model / "model.safetensors").unlink(), "No such file"),
    (lambda model: (model / "config.json").write_text("{}"), "no valid entries"),
    (lambda model: (model / "config.json").unlink(), "cannot read"),
    (lambda model: save_file({"bias": torch.zeros(1)}, model / "model.safetensors"), "no such tensor"),
    (lambda model: save_file({"weight": torch.zeros(2, 1)}, model / "model.safetensors"), r"the shape \(2, 1\)"),
    (lambda model: (model / "config.json").write_text('{"program": "circle", "recipe": {}}'), "the program circle"),
])  # fmt: skip
def test_a_model_that_does_not_fit_is_refused(train, tmp_path, damage, message):
    train(settings_of(steps=2), output="model", checkpoints="first")
    damage(tmp_path / "model")
    with pytest.raises(TlaunchError, match=message):
        train(settings_of(), init_from=tmp_path / "model", checkpoints="second")


def test_a_checkpoint_of_another_run_is_not_changed(train, tmp_path):
    """Its loss is computed by the run that resumes from it, and recorded nowhere."""
    train(settings_of(steps=4), checkpoints="first")
    first = tmp_path / "first" / "step-4"
    index = dataclasses.replace(read_index(first), validation_loss=None, validations=Validations(is_due=True))
    (first / INDEX).write_text(index_text(dataclasses.replace(index, schema=SCHEMA_OF_VALIDATIONS)))
    before = (first / INDEX).read_bytes()
    _, lines = train(settings_of(steps=6), resume=first, errors=[0.5, 0.4])
    assert sum(line.endswith(": as given") for line in lines) == 2
    assert (first / INDEX).read_bytes() == before


def test_another_optimizer_does_not_go_on_from_it(train, tmp_path):
    """Nor does another program; settings of sections or names that one has not are no hindrance."""
    settings = settings_of(steps=2)
    train(settings)
    path = tmp_path / "checkpoints" / "step-2"
    index = read_index(path)
    with pytest.raises(UsageError, match="program line"):
        check_settings(path, index, "circle", {}, ())
    check_settings(path, index, "line", {"train": {"seed": 1}}, ())
    check_settings(path, index, "line", {"data": {"radius": 1}}, ())

    class Velocity(Momentum):
        state = ("velocity",)

    with pytest.raises(UsageError, match="velocity"):
        train(settings, rule=Velocity)


def test_a_gradient_that_is_not_finite_ends_it(train, tmp_path):
    with pytest.raises(TlaunchError, match="step 4"):
        train(settings_of(), broken_at=4)
    assert [path.name for path in checkpoints_in(tmp_path / "checkpoints")] == ["step-2"]


@pytest.mark.parametrize(("every_steps", "keep", "found"), [
    (1, 4, ["step-3", "step-2", "step-1"]),
    (2, 4, ["step-4", "step-2"]),  # not the step before
    (1, 1, ["step-4"]),  # the only one stays
])  # fmt: skip
def test_the_checkpoint_before_a_step_that_failed_is_set_aside(train, tmp_path, every_steps, keep, found):
    """So that a restart takes an older one. It can still be named."""
    settings = settings_of(every_steps=every_steps, keep=keep)
    with pytest.raises(TlaunchError, match="the loss is inf"):
        train(settings, broken_at=6 if every_steps == 2 else 5)
    assert [path.name for path in checkpoints_in(tmp_path / "checkpoints")] == found
    aside = tmp_path / "checkpoints" / "step-4.not-finite"
    assert aside.exists() == ("step-4" not in found)
    _, lines = train(settings, resume=aside if aside.exists() else None, checkpoints="checkpoints")
    assert f"resumed: {tmp_path / 'checkpoints' / found[0]}, after step {found[0][5:]}" in lines
    if aside.exists():
        _, lines = train(settings, resume=aside, checkpoints="others")
        assert f"resumed: {aside}, after step 4" in lines


@pytest.mark.parametrize(("at", "train_settings", "kept"), [
    (4, {}, ["step-2"]),  # before a checkpoint
    (6, {}, ["step-4", "step-2"]),  # before the last one and the model
    (3, {"validate_every": 3}, ["step-2"]),  # before a validation
    (6, {"enabled": False}, []),  # without checkpoints
])  # fmt: skip
def test_weights_that_are_not_finite_are_never_kept(train, tmp_path, at, train_settings, kept):
    """Neither as a checkpoint nor as the model: the training fails, with the checkpoints of before."""
    with pytest.raises(TlaunchError, match=f"after step {at}: weights of bias are not finite"):
        train(settings_of(**train_settings), overflows_at=at, output="model")
    assert [path.name for path in checkpoints_in(tmp_path / "checkpoints")] == kept
    assert not (tmp_path / "model").exists()


def test_a_checkpoint_whose_weights_are_not_finite_is_not_used(train, tmp_path, monkeypatch):
    """As an older version wrote them: the one before serves."""
    with monkeypatch.context() as patch:
        patch.setattr(saving, "check_finite", lambda state, of: None)
        train(settings_of(steps=4), overflows_at=4)
    _, lines = train(settings_of(steps=6))
    assert any("step-4: weights of bias are not finite; step-4 is not used" in line for line in lines)
    assert f"resumed: {tmp_path / 'checkpoints' / 'step-2'}, after step 2" in lines


def test_checkpoints_that_have_no_place_are_refused(train):
    settings = settings_of()
    with pytest.raises(UsageError, match="no checkpoint directory"):
        run(lambda: Line(settings), settings.checkpoint, Line(settings).world, Files())


def test_a_run_without_checkpoint_settings_can_be_continued(train, tmp_path):
    """It leaves its last step, and nothing else."""
    train(settings_of(every_steps=0, steps=4))
    assert [path.name for path in checkpoints_in(tmp_path / "checkpoints")] == ["step-4"]
    again, lines = train(settings_of(every_steps=0))
    assert sum(line.startswith("epoch: ") for line in lines) == 2
    whole, _ = train(settings_of(enabled=False), checkpoints="none")
    assert not (tmp_path / "none").exists()
    assert all(torch.equal(tensor, again.weights()[name]) for name, tensor in whole.weights().items())


def test_without_a_place_for_checkpoints_a_run_that_did_not_ask_for_any_trains(train, tmp_path):
    """A signal then ends it at once, as without checkpoints."""
    (tmp_path / "file").touch()
    before = signal.getsignal(signal.SIGTERM)
    program, lines = train(settings_of(every_steps=0), checkpoints="file")
    assert any(f"no checkpoints are saved: cannot write checkpoints to {tmp_path / 'file'}" in line for line in lines)
    assert sum(line.startswith("epoch: ") for line in lines) == 6
    assert program.on_sigterm == before
    program, _ = train(settings_of(every_steps=0))
    assert program.on_sigterm != before
