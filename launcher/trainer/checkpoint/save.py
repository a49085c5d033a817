"""Write checkpoints in the background while the training continues, on all ranks together.

A step only waits until each rank has copied the state it owns. Threads then write the copy (`writer.py`), and no rank
holds more than its own state in memory. Ranks exchange success or failure before the next checkpoint and at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from launcher.checkpoint.file_layout import OWNED, keeps_replicas, planned_files
from launcher.checkpoint.index import NOT_VALIDATED, NamedBox, Validations
from launcher.core.errors import TlaunchError
from launcher.trainer.checkpoint.checkpoint_files import SEEN_WITHIN_S, prepared
from launcher.trainer.checkpoint.state import NONE, State, Training
from launcher.trainer.checkpoint.writer import PHASES, Part, Plan, Writing
from launcher.trainer.parallel.world import World


class CheckpointWriter:
    """Writes checkpoints of a training, one at a time. All ranks must call its methods in the same order."""

    def __init__(
        self,
        directory: Path,
        training: Training,
        world: World,
        *,
        keep: int,
        keep_best: bool = False,
        way: str = OWNED,
        on_saved: Callable[[int], object] = lambda _step: None,
        on_unremoved: Callable[[OSError], object] = lambda _error: None,
        on_unwritable: Callable[[str], object] | None = None,
        seen_within_s: float = SEEN_WITHIN_S,
    ) -> None:
        """Prepare to write checkpoints to `directory`. Only one run may write to it at a time.

        `keep` is the number of latest checkpoints to keep; with `keep_best` the one with the best validation is kept,
        too. `way` is one of `launcher.checkpoint.file_layout.WAYS`. On rank 0, in the writing thread, `on_saved`
        is called with the step of each complete checkpoint, and `on_unremoved` with the error if an old checkpoint
        cannot be removed. `on_unwritable` and `seen_within_s` are as in `prepared`.

        Raises:
            TlaunchError: on every rank, if the directory cannot be created or written, or is not shared by all ranks.
        """
        self._world = world
        self._buffer_KN: Tensor | None = None
        self._writing: Writing | None = None
        self._keeps_replicas = keeps_replicas(way)
        token = prepared(directory, world, on_unwritable, seen_within_s)
        files = tuple(planned_files(way, world.place.layout))
        self._plan = Plan(
            directory, training, world.place.global_rank, files, keep, keep_best, token, on_saved, on_unremoved
        )

    def save(
        self,
        step: int,
        state: State,
        *,
        buffers: Mapping[str, Tensor] = NONE,
        validation_loss: float | None = None,
        validation_bleu: float | None = None,
        validations: Validations = NOT_VALIDATED,
    ) -> None:
        """Wait for the previous checkpoint. Then start to write this rank's part of `state` after `step`.

        `buffers` are floating-point tensors, and rank 0's are written. `validation_loss` is recorded if it is finite.
        `validation_bleu` and `validations` are recorded unchanged.

        Raises:
            TlaunchError: on every rank, if the previous checkpoint could not be written.
        """
        self.finish()
        own = [each for each in state.owned_boxes() if self._keeps_replicas or not each.is_replica]
        count = sum(each.box.count for each in own)
        if self._buffer_KN is None:
            self._buffer_KN = torch.empty(len(state.kinds), count, dtype=state.state_dtype)
        at = 0
        for each in own:
            here = slice(at, at + each.box.count)
            for row_N, tensor in zip(self._buffer_KN, each.values, strict=True):
                row_N[here].copy_(tensor.reshape(-1))
            at = here.stop
        boxes = [NamedBox(each.name, each.box) for each in own]
        loss = validation_loss if validation_loss is not None and math.isfinite(validation_loss) else None
        kept = {name: buffer.detach().to("cpu", state.state_dtype, copy=True) for name, buffer in buffers.items()}
        part = Part(state.kinds, boxes, self._buffer_KN, kept)
        self._writing = Writing(self._plan, step, part, loss, validation_bleu, validations)

    def finish(self) -> int | None:
        """Wait until the pending checkpoint is complete. Return its step, or None if no checkpoint is pending.

        Raises:
            TlaunchError: on every rank, if it could not be written.
        """
        writing, self._writing = self._writing, None
        if writing is None:
            return None
        failure: TlaunchError | None = None
        for phase in PHASES:
            try:
                self._world.while_others_wait(partial(writing.wait, phase))
            except TlaunchError as error:
                failure = failure or error
            writing.all_came(phase, failed=failure is not None)
        if failure is not None:
            writing.remove()
            raise TlaunchError(f"the checkpoint of step {writing.step} could not be written: {failure.message}")
        return writing.step
