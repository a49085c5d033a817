"""One checkpoint, written by a thread on each rank.

A rank's part is a copy of the state that it owns. The thread works in three phases:

    PART     each rank writes its part to a separate file
    FILE     if a file contains the parts of several ranks (`launcher/checkpoint/file_layout.py`), its writer reads the parts
    COMMIT   rank 0 writes strategy and index, removes unlisted files, and renames the directory

The writer of a file then writes a second file, a note, and other ranks wait for it. So threads use no collectives.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from launcher.checkpoint.file_layout import PlannedFile
from launcher.checkpoint.finish import finish
from launcher.checkpoint.index import (
    BUFFERS,
    KINDS_OF_BUFFERS,
    TOKENIZER,
    Index,
    NamedBox,
    PartFile,
    Validations,
    best_of,
    checkpoints_in,
    damage_of,
    name_of,
    partial_name,
    readable,
    remove_partials,
    step_named,
)
from launcher.checkpoint.tensors import write_digested
from launcher.core.atomic import name_directory, renamed_error, write_text
from launcher.core.codec import decode, encode
from launcher.core.errors import TlaunchError
from launcher.core.frozen import frozen
from launcher.mesh.boxes import full_box
from launcher.trainer.checkpoint.checkpoint_files import LOOK_S, SEEN_WITHIN_S, assemble, write_tensors
from launcher.trainer.checkpoint.state import Training, shapes_of
from launcher.trainer.telemetry.heartbeat import getting_on

DTYPES = {torch.float32: "F32", torch.float64: "F64"}
PHASES = PART, FILE, COMMIT = range(3)
LIFE_SIGN_S = 1.0


@frozen
class Plan:
    directory: Path
    training: Training
    rank: int
    files: tuple[PlannedFile, ...]
    keep: int
    keep_best: bool
    token: str  # identifies this writer in the names of incomplete files
    on_saved: Callable[[int], object]
    on_unremoved: Callable[[OSError], object]

    @property
    def own_file(self) -> PlannedFile | None:
        return next((file for file in self.files if file.writer == self.rank), None)


@frozen
class Part:
    kinds: tuple[str, ...]
    boxes: list[NamedBox]
    values_KN: Tensor  # by kind, the values of all boxes concatenated
    buffers: Mapping[str, Tensor]


class Writing:
    def __init__(
        self, plan: Plan, step: int, part: Part, loss: float | None, bleu: float | None, validations: Validations
    ) -> None:
        self.step, self._plan = step, plan
        self._loss, self._bleu, self._validations = loss, bleu, validations  # of the validation after `step`
        self._final, self._aside = plan.directory / name_of(step), plan.directory / partial_name(step, plan.token)
        self._part = part
        self._done = 0  # number of finished phases
        self._failure = "writing has not finished"  # why no more phases are done
        self._is_over = [threading.Event() for _ in PHASES]  # on this rank
        self._is_done = [threading.Event() for _ in PHASES]  # on all ranks; a file not visible then is elsewhere
        self._gives_up = threading.Event()  # another rank has failed
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"checkpoint of step {step}")
        self._thread.start()

    def wait(self, phase: int) -> None:
        """Wait until this rank has finished a phase. Raise a TlaunchError if the phase failed."""
        while not self._is_over[phase].wait(LIFE_SIGN_S):
            getting_on()
        if self._done <= phase:
            raise TlaunchError(self._failure)

    def all_came(self, phase: int, *, failed: bool) -> None:
        """Notify the thread that all ranks have finished a phase, or that a rank has failed."""
        (self._gives_up if failed else self._is_done[phase]).set()

    def remove(self) -> None:
        shutil.rmtree(self._aside, ignore_errors=True)

    def _run(self) -> None:
        try:
            for phase, work in zip(PHASES, (self._write_part, self._assemble, self._commit), strict=True):
                with renamed_error(self._final, self._aside):
                    work()
                self._done = phase + 1
                self._is_over[phase].set()
        except OSError as error:
            where = error.filename or self._final
            self._failure = f"rank {self._plan.rank} could not write to {where}: {error.strerror or error}"
            if isinstance(error, FileNotFoundError) and self._plan.directory.is_dir():
                self._failure += f"; another run that writes to {self._plan.directory} may have removed it"
        except TlaunchError as error:
            self._failure = error.message
        finally:
            for over in self._is_over:
                over.set()

    def _write_part(self) -> None:
        self._aside.mkdir(parents=True, exist_ok=True)  # it may not have been writable at the start
        own = self._plan.own_file
        is_final = own is not None and own.is_a_part
        name = own.name if own is not None and is_final else _part_of(self._plan.rank)
        part, values = self._part, [self._part.values_KN.numpy()]
        written = write_tensors(self._aside / name, part.boxes, self._dtype, values, kinds=part.kinds, synced=is_final)
        self._note(name, written)

    def _assemble(self) -> None:
        """If this rank writes a file for several ranks, combine their parts into this file."""
        own = self._plan.own_file
        if own is None or own.is_a_part:
            return
        parts = self._wait_for(map(_part_of, own.sources), PART)
        for name, part in parts.items():
            if problem := damage_of(self._aside, name, part):
                raise TlaunchError(problem)
        names, kinds = self._plan.training.shapes, self._part.kinds
        self._note(own.name, assemble(self._aside / own.name, parts, self._dtype, names, kinds=kinds))

    @property
    def _dtype(self) -> str:
        return DTYPES[self._part.values_KN.dtype]

    def _note(self, name: str, file: PartFile) -> None:
        write_text(self._aside / f"{name}.json", json.dumps(encode(file)))

    def _wait_for(self, names: Iterable[str], phase: int) -> dict[str, PartFile]:
        """Wait until the ranks have written the files `names` in a phase, and return a description of each file."""
        notes = {name: self._aside / f"{name}.json" for name in names}
        deadline_s = None
        for name, path in notes.items():  # in sequence, because polling thousands of files would overload a file server
            while not path.exists():
                if self._gives_up.is_set():
                    raise TlaunchError("another rank has failed")
                if deadline_s is None and self._is_done[phase].is_set():
                    deadline_s = time.monotonic() + SEEN_WITHIN_S
                if deadline_s is not None and time.monotonic() > deadline_s:
                    raise TlaunchError(
                        f"this server cannot find {name} in {self._aside}; all servers must share the checkpoint directory"
                    )
                time.sleep(LOOK_S)
        return {name: decode(PartFile, json.loads(path.read_bytes())) for name, path in notes.items()}

    def _commit(self) -> None:
        """On rank 0, wait for the files of all ranks, then write the index and rename the directory."""
        if self._plan.rank != 0:
            return
        training = self._plan.training
        files = self._wait_for((file.name for file in self._plan.files), FILE)
        if training.tokenizer is not None:
            files[TOKENIZER] = write_digested(self._aside / TOKENIZER, [training.tokenizer], synced=True)
        if buffers := self._part.buffers:
            boxes = [NamedBox(name, full_box(buffer.shape)) for name, buffer in buffers.items()]
            values = (buffer.numpy() for buffer in buffers.values())
            path = self._aside / BUFFERS
            files[BUFFERS] = write_tensors(path, boxes, self._dtype, values, kinds=KINDS_OF_BUFFERS)
        index = Index(
            step=self.step,
            program=training.program,
            settings=training.settings,
            layout=training.layout,
            text=training.text,
            data=training.data,
            dtype=self._dtype,
            shapes=training.shapes,
            files=files,
            validation_loss=self._loss,
            validation_bleu=self._bleu,
            kinds=self._part.kinds,
            buffers=shapes_of(buffers),
            validations=self._validations,
            init_from=training.init_from,
        )
        finish(self._aside, index)  # removes parts and notes
        if self._final.exists():  # a run that resumed from an older checkpoint writes this step again
            self._final.rename(self._old(self._final))
        name_directory(self._aside, self._final)
        self._plan.on_saved(self.step)
        try:
            failure = self._remove_others()
        except OSError as error:
            failure = error
        if failure is not None:
            self._plan.on_unremoved(failure)

    def _remove_others(self) -> OSError | None:
        """Keep the latest `keep` checkpoints up to this step and, with `keep_best`, the best one. Remove all others.

        Return the first error. Raise an OSError if the directory cannot be read.
        """
        found = checkpoints_in(self._plan.directory)
        later = [path for path in found if (step_named(path.name) or 0) > self.step]
        own = found[len(later) :]
        older = own[self._plan.keep :]
        best = best_of(readable(own)) if self._plan.keep_best and older else None
        failures = [self._rename(path) for path in (*later, *older) if path != best]
        failures.append(remove_partials(self._plan.directory))
        return next(filter(None, failures), None)

    def _rename(self, checkpoint: Path) -> OSError | None:
        """Rename a checkpoint before its removal, so that no reader finds it incomplete. Return the error, if any."""
        try:
            checkpoint.rename(self._old(checkpoint))
        except OSError as error:
            return error
        return None

    def _old(self, checkpoint: Path) -> Path:
        return checkpoint.with_name(f".{checkpoint.name}.{self._plan.token}.old.partial")


def _part_of(rank: int) -> str:
    return f"rank{rank}.part"
