"""The checkpoints of a program's training: what it goes on from, and what it saves."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from launcher.checkpoint.finish import record_validation, set_aside
from launcher.checkpoint.index import NOT_VALIDATED, Validations, checkpoints_in, name_of, read_index
from launcher.core.codec import decode, encode
from launcher.core.errors import TlaunchError, UsageError
from launcher.trainer.checkpoint.restore import candidates_at, restore
from launcher.trainer.checkpoint.save import CheckpointWriter
from launcher.trainer.checkpoint.schedule import end_by_sigterm
from launcher.trainer.checkpoint.state import Training, check_finite
from launcher.trainer.programs.log_lines import say, say_of_all
from launcher.trainer.programs.program import Program
from launcher.trainer.telemetry.metrics_writer import Metrics, attempt_in
from launcher.trainer.training_files import Files


class Saving:
    """Saves the state of a program's training, and goes on from what was saved. All ranks must call its methods in the same order."""

    def __init__(self, program: Program[Any, Any], files: Files, metrics: Metrics) -> None:
        self._program, self._files, self._metrics = program, files, metrics
        self._config = program.settings.checkpoint
        self._training = Training(
            program=program.name,
            settings=dataclasses.asdict(program.settings),
            layout=program.world.place.layout,
            text=program.digest,
            data="" if files.data is None else str(files.data.absolute()),
            shapes=program.shapes,
            tokenizer=program.tokenizer,
            named=files.named,
            defaults=dataclasses.asdict(type(program.settings)()),
        )
        self._writer: CheckpointWriter | None = None
        self.validations = NOT_VALIDATED  # that were counted before the first step
        self._resumed: Path | None = None  # the checkpoint, if it is one of this run's own directory

    def resume(self) -> int:
        """Go on from the newest whole checkpoint, of this run first; return the step after which, 0 if from the beginning.

        Raises:
            TlaunchError: on every rank alike, where there are checkpoints and none is whole, or one is of something else.
        """
        program, files = self._program, self._files

        def find() -> list[Path]:
            own = [] if files.checkpoints is None else checkpoints_in(files.checkpoints)
            return own + ([] if files.resume is None else candidates_at(files.resume))

        found = restore(find, self._training, program.optimizer, program.world, buffers=program.buffers)
        if found is None:
            if attempt_in(os.environ) > 0:
                say_of_all("there is no checkpoint: the training begins anew", program.world)
            return 0
        path, step = found
        program.take_buffers()
        self._resumed = path if path.parent == files.checkpoints else None
        kept = program.world.from_rank_0(lambda: json.dumps(encode(read_index(path).validations)).encode())
        self.validations = decode(Validations, json.loads(kept))
        say_of_all(f"resumed: {path}, after step {step}", program.world)
        return step

    def open(self) -> None:
        """Make ready to write, if checkpoints are on.

        Raises:
            TlaunchError: on every rank alike, where there is no directory for them, or it cannot be written to.
        """
        config, directory = self._config, self._files.checkpoints
        if not config.is_on:
            return
        if directory is None:
            raise UsageError(
                "checkpoints are on, but they have no directory",
                hint="name an output directory, or one for checkpoints",
            )
        self._writer = CheckpointWriter(
            directory,
            self._training,
            self._program.world,
            keep=config.keep,
            keep_best=config.keep_best,
            way=config.files,
            on_saved=lambda step: say(f"saved the checkpoint of step {step}"),
            on_unremoved=_said_once(directory),
            on_unwritable=None if config.on_failure == "stop" else _warn_and_continue,
        )

    def save(self, step: int, validation_loss: float | None, validations: Validations, *, ends: bool) -> None:
        """Save the state after `step`, if checkpoints are on; where the training `ends`, do so as by SIGTERM once that is whole."""
        if self._writer is None:
            return
        program = self._program
        self.finish(goes_on=not ends)
        program.settle()
        self._writer.save(
            step,
            program.optimizer,
            buffers=program.buffers,
            validation_loss=validation_loss,
            validations=validations,
        )
        if ends:
            self.finish(goes_on=False)
            self._metrics.flush()
            say_of_all(f"ended by SIGTERM after step {step}", program.world)
            end_by_sigterm()

    def record_validation(self, loss: float | None, validations: Validations) -> None:
        """Write the loss of the resumed state to its checkpoint, so that keep_best sees it. All ranks may call it.

        A checkpoint of another run is left as it is.
        """
        if self._resumed is None or not self._program.world.is_first:
            return
        try:
            record_validation(self._resumed, loss, validations)
        except (OSError, TlaunchError) as error:
            say(f"{self._resumed}: its validation loss could not be recorded: {error}")

    def check_weights(self, step: int) -> None:
        """Raise if the weights after `step` are not finite, once the checkpoint before is written.

        Raises:
            TlaunchError: on every rank alike, some weight is NaN or infinite.
        """
        program = self._program
        try:
            program.world.while_others_wait(partial(check_finite, program.optimizer, f"after step {step}"))
        except TlaunchError as error:
            self.finish(goes_on=False)
            error.hint = "use a smaller learning rate or more warm-up steps; nothing was saved after this step"
            raise

    def failed(self, step: int) -> None:
        """Finish writing after `step`, whose gradient was not finite; set the checkpoint just before it aside if an older one is left.

        Weights can be finite and too large for another step. A restart from them would fail again.
        """
        self.finish(goes_on=False)
        directory = self._files.checkpoints
        if directory is None or not self._program.world.is_first:
            return
        try:
            aside = set_aside(directory, step - 1)
        except OSError as error:
            say(f"{directory / name_of(step - 1)} could not be renamed: {error.strerror or error}")
            return
        if aside is not None:
            say(
                f"the checkpoint of step {step - 1} is now {aside}: the next step failed; resume from the one before it"
            )

    def finish(self, *, goes_on: bool) -> None:
        """Wait for the checkpoint that is being written, if there is one, and record it.

        Where it could not be written, the log says so, and that the training `goes_on`, if it does.

        Raises:
            TlaunchError: on every rank alike, where it could not be written and checkpoint.on_failure is "stop".
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
    say(f"{trouble}; the training goes on")


def _said_once(checkpoints: Path) -> Callable[[OSError], None]:
    """Return a function that says why checkpoints stay, the first time alone: the next ones most likely stay as well."""
    told: list[OSError] = []

    def report(error: OSError) -> None:
        if not told:
            where = error.filename or checkpoints
            say(f"older checkpoints, or parts of some, cannot be removed: {where}: {error.strerror or error}")
        told.append(error)

    return report
