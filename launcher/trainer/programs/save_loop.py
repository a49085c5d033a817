"""Saves checkpoints of a program's training, and resumes from them."""

from __future__ import annotations

import dataclasses
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

from launcher.checkpoint.finish import record_validation, set_aside
from launcher.checkpoint.index import NOT_VALIDATED, Validations, best_of, checkpoints_in, name_of, read_index, readable
from launcher.core.codec import decode, encode
from launcher.core.errors import TlaunchError, UsageError
from launcher.core.text import shell_word
from launcher.recipes.train import CheckpointConfig
from launcher.trainer.checkpoint.checkpoint_files import SEEN_SOON_S, SEEN_WITHIN_S
from launcher.trainer.checkpoint.initial import start_from
from launcher.trainer.checkpoint.restore import candidates_of, restore
from launcher.trainer.checkpoint.save import CheckpointWriter
from launcher.trainer.checkpoint.schedule import end_by_sigterm
from launcher.trainer.checkpoint.state import Training, check_finite
from launcher.trainer.programs.program import Program, Validated, say, say_of_all
from launcher.trainer.telemetry.metrics_writer import Metrics, attempt_in
from launcher.trainer.training_files import Files


class Saving:
    """Saves and restores the checkpoints of a program's training. All ranks must call the methods in the same order."""

    def __init__(self, program: Program[Any, Any], files: Files, metrics: Metrics) -> None:
        self._program, self._files, self._metrics = program, files, metrics
        self._config = program.settings.checkpoint
        self._training = Training(
            program=program.name,
            settings=dataclasses.asdict(program.settings),
            layout=program.world.place.layout,
            text=program.digest,
            data=" ".join(str(path.absolute()) for path in files.data),
            shapes=program.shapes,
            tokenizer=program.tokenizer,
            init_from="" if files.init_from is None else str(files.init_from.absolute()),
            named=files.named,
            defaults=dataclasses.asdict(type(program.settings)()),
        )
        self._writer: CheckpointWriter | None = None
        self._has_warned = False
        self.validations = NOT_VALIDATED  # counts of early stopping before the first step
        self._resumed: Path | None = None  # the checkpoint, if it is in this run's directory

    def resume(self) -> int:
        """Restore the newest usable checkpoint and return its step. Return 0 if there are no checkpoints.

        This run's checkpoints are tried before those in `files.resume`. Without checkpoints, load the weights of the
        model `files.init_from`, if one is given.

        Raises:
            TlaunchError: no checkpoint is usable, one belongs to a different training, or the initial model does not
                fit. All ranks raise it.
        """
        program, files = self._program, self._files
        found = restore(
            partial(candidates_of, files), self._training, program.optimizer, program.world, buffers=program.buffers
        )
        if found is None:
            if attempt_in(os.environ) > 0:
                say_of_all("there is no checkpoint: the training starts from the beginning", program.world)
            if files.init_from is not None:
                start_from(files.init_from, self._training, program.optimizer, program.world, buffers=program.buffers)
                program.take_buffers()
                say_of_all(f"initial weights: {files.init_from}", program.world)
            return 0
        path, step = found
        program.take_buffers()
        self._resumed = path if path.parent == files.checkpoints else None
        kept = program.world.from_rank_0(lambda: json.dumps(encode(read_index(path).validations)).encode())
        self.validations = decode(Validations, json.loads(kept))
        say_of_all(f"resumed: {path}, after step {step}", program.world)
        return step

    def open(self) -> bool:
        """Create the checkpoint writer, if the settings turn checkpoints on. Return True if it was created.

        With the default settings, a run without a usable checkpoint directory trains without checkpoints.

        Raises:
            TlaunchError: there is no checkpoint directory, or it is not writable, and a checkpoint setting differs
                from its default. All ranks raise it.
        """
        if not self._config.enabled:
            return False
        try:
            self._writer = self._new_writer()
        except TlaunchError as error:
            if self._config != CheckpointConfig():
                raise
            if self._program.world.is_first:
                say(f"no checkpoints are saved: {error.message}")
        return self._writer is not None

    def _new_writer(self) -> CheckpointWriter:
        config, directory = self._config, self._files.checkpoints
        if directory is None:
            raise UsageError(
                "checkpoints are on, but no checkpoint directory is set",
                hint="set an output directory, or a checkpoint directory",
            )
        return CheckpointWriter(
            directory,
            self._training,
            self._program.world,
            keep=config.keep,
            keep_best=config.keep_best,
            way=config.files,
            on_saved=lambda step: say(f"saved the checkpoint of step {step}"),
            on_unremoved=self._warn_of_unremoved,
            on_unwritable=None if config.on_failure == "stop" else _warn_and_continue,
            seen_within_s=SEEN_SOON_S if config == CheckpointConfig() else SEEN_WITHIN_S,
        )

    def _warn_of_unremoved(self, error: OSError) -> None:
        """Log that a checkpoint cannot be removed. Log it only once, since later errors likely have the same cause."""
        if not self._has_warned:
            where = error.filename or self._files.checkpoints
            say(f"cannot remove older checkpoints: {where}: {error.strerror or error}")
        self._has_warned = True

    def save(self, step: int, validated: Validated, validations: Validations, *, ends: bool) -> None:
        """Start to save a checkpoint of `step`, if checkpoints are on. `validated` is the validation of its state.

        With `ends`, wait until it is saved, then end this process by SIGTERM.
        """
        if self._writer is None:
            return
        program = self._program
        self.finish(goes_on=not ends)
        program.settle()
        self._writer.save(
            step, program.optimizer, buffers=program.buffers, validation_loss=validated.loss,
            validation_bleu=validated.bleu, validations=validations,
        )  # fmt: skip
        if ends:
            self.finish(goes_on=False)
            self._metrics.flush()
            say_of_all(f"ended by SIGTERM after step {step}", program.world)
            end_by_sigterm()

    def better_than(self, last_step: int) -> str | None:
        """Return a log line about the best checkpoint that is left, or None if it is of the last step. Call it on rank 0."""
        if self._files.checkpoints is None:
            return None
        indexed = list(readable(checkpoints_in(self._files.checkpoints)))
        if (best := best_of(indexed)) is None or (index := dict(indexed)[best]).step == last_step:
            return None
        validation = [] if index.validation_loss is None else [f"loss {index.validation_loss:.6f}"]
        validation += [] if index.validation_bleu is None else [f"BLEU {index.validation_bleu:.2f}"]
        return (
            f"the model is of step {last_step}; the best checkpoint that is left is of step {index.step} "
            f"(validation {', '.join(validation)}): to get its model, use `tlaunch ckpt merge {shell_word(str(best))} --output DIR`"
        )

    def record_validation(self, validated: Validated, validations: Validations) -> None:
        """Add a validation to the checkpoint that the training resumed from, unless another run wrote it."""
        if self._resumed is None or not self._program.world.is_first:
            return
        try:
            record_validation(self._resumed, validated.loss, validated.bleu, validations)
        except (OSError, TlaunchError) as error:
            say(f"{self._resumed}: cannot record the validation loss: {error}")

    def check_weights(self, step: int) -> None:
        """Check that all weights are finite after `step`. If not, finish the pending checkpoint and raise an error.

        Raises:
            TlaunchError: some weight is NaN or infinite. All ranks raise it.
        """
        program = self._program
        try:
            program.world.while_others_wait(partial(check_finite, program.optimizer, f"after step {step}"))
        except TlaunchError as error:
            self.finish(goes_on=False)
            error.hint = "use a smaller learning rate or more warm-up steps; nothing was saved after this step"
            raise

    def failed(self, step: int) -> None:
        """Rename the checkpoint of `step - 1`, after `step` failed with a non-finite gradient.

        That checkpoint's weights may be too large for another step, so that a restart from it would fail again. It
        keeps its name if there is no older checkpoint.
        """
        self.finish(goes_on=False)
        directory = self._files.checkpoints
        if directory is None or not self._program.world.is_first:
            return
        try:
            aside = set_aside(directory, step - 1)
        except OSError as error:
            say(f"cannot rename {directory / name_of(step - 1)}: {error.strerror or error}")
            return
        if aside is not None:
            say(
                f"the checkpoint of step {step - 1} is now {aside}, since the next step failed; resume from the one "
                "before it"
            )

    def finish(self, *, goes_on: bool) -> None:
        """Wait until the pending checkpoint is written, and record it in the metrics.

        If it cannot be written, log the error, and with `goes_on` that the training continues.

        Raises:
            TlaunchError: it cannot be written, and checkpoint.on_failure is "stop". All ranks raise it.
        """
        if self._writer is None:
            return
        is_first = self._program.world.is_first
        try:
            step = self._writer.finish()
        except TlaunchError as error:
            if self._config.on_failure == "stop":
                raise
            if is_first and goes_on:
                _warn_and_continue(str(error))
            elif is_first:
                say(str(error))
            return
        if step is not None and is_first:
            self._metrics.saved(step, "checkpoint")


def _warn_and_continue(trouble: str) -> None:
    say(f"{trouble}; the training continues")
