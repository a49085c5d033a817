"""Checkpoints written beside the training, by all ranks together.

A rank copies what it owns, which is all that the step waits for. A thread writes the copy to a file of its own and then says so,
by a second file. When those of all ranks are there, a thread of rank 0 writes the index and gives the directory its name. Threads call
no collective: whether all have succeeded is exchanged before the next checkpoint, and at the end.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from launcher.checkpoint.index import (
    INDEX,
    KINDS,
    TOKENIZER,
    Index,
    NamedBox,
    PartFile,
    best_of,
    checkpoints_in,
    index_of,
    index_text,
    name_of,
    partial_name,
    partials_in,
    readable,
)
from launcher.core.atomic import write_text
from launcher.core.codec import decode, encode
from launcher.core.errors import TlaunchError, UsageError
from launcher.core.frozen import frozen
from launcher.core.records import Layout
from launcher.trainer.optimizer.sharded import ShardedAdamW
from launcher.trainer.parallel.world import World
from launcher.trainer.telemetry.heartbeat import getting_on

DTYPES = {torch.float32: "F32", torch.float64: "F64"}
ALIGNMENT = 64  # bytes
BLOCK_BYTES = 8 << 20  # written and digested at a time
LOOK_S, LIFE_SIGN_S = 0.02, 1.0
SEEN_WITHIN_S = 60.0  # what another server has written: a network file system may take its time


@frozen
class Training:
    """What a checkpoint says of its training, the same after every step."""

    program: str
    settings: Mapping[str, Any]
    layout: Layout
    text: str
    data: str
    shapes: Mapping[str, tuple[int, ...]]
    tokenizer: bytes
    named: frozenset[str] = frozenset()  # the settings that a person has set

    @property
    def tokenizer_digest(self) -> str:
        return hashlib.sha256(self.tokenizer).hexdigest()


@frozen
class _Plan:
    """What all checkpoints of a rank have in common."""

    directory: Path
    training: Training
    rank: int
    ranks: int
    keep: int
    keep_best: bool
    token: str  # of this writer, in the names of what is not whole


class CheckpointWriter:
    """All ranks must call its methods in the same order."""

    def __init__(
        self, directory: Path, training: Training, world: World, *, keep: int, keep_best: bool = False
    ) -> None:
        """Keep the newest `keep` checkpoints in `directory`, where only one run writes at a time.

        With `keep_best` also the one with the lowest validation loss.

        Raises:
            TlaunchError: on every rank alike, where the directory cannot be made, or is not the same one for all.
        """
        self._world = world
        self._buffer_KN: Tensor | None = None
        self._writing: _Writing | None = None
        token = world.from_rank_0(partial(_prepare, directory)).decode()
        place = world.place
        self._plan = _Plan(directory, training, place.global_rank, place.world_size, keep, keep_best, token)
        world.while_others_wait(partial(_see, directory / token))
        world.from_rank_0(partial(_tidy, directory / token))

    def save(self, step: int, optimizer: ShardedAdamW, *, validation_loss: float | None = None) -> None:
        """Begin to write the state after `step`, of which this rank's optimizer has its part. Ends the writing of the one before.

        `validation_loss` is that of the state; one that is not finite is left out.

        Raises:
            TlaunchError: that one could not be written, on every rank alike.
        """
        self.finish()
        own = [each for each in optimizer.owned_boxes() if not each.is_replica]
        count = sum(each.box.count for each in own)
        if self._buffer_KN is None:
            self._buffer_KN = torch.empty(len(KINDS), count, dtype=optimizer.state_dtype)
        at = 0
        for each in own:
            here = slice(at, at + each.box.count)
            for row_N, tensor in zip(
                self._buffer_KN, (each.weight, each.first_moment, each.second_moment), strict=True
            ):
                row_N[here].copy_(tensor.reshape(-1))
            at = here.stop
        boxes = [NamedBox(each.name, each.box) for each in own]
        loss = validation_loss if validation_loss is not None and math.isfinite(validation_loss) else None
        self._writing = _Writing(self._plan, step, boxes, self._buffer_KN, loss)

    def finish(self) -> int | None:
        """Wait until the checkpoint that is being written is whole; return its step, None where there was none.

        Raises:
            TlaunchError: it could not be written, on every rank alike.
        """
        writing, self._writing = self._writing, None
        if writing is None:
            return None
        failure: TlaunchError | None = None
        try:
            self._world.while_others_wait(writing.wait_written)
        except TlaunchError as error:
            failure = error
        writing.nobody_writes(failed=failure is not None)
        try:
            self._world.while_others_wait(writing.wait_committed if self._world.is_first else None)
        except TlaunchError as error:
            failure = failure or error
        if failure is not None:
            writing.remove()
            raise TlaunchError(f"the checkpoint of step {writing.step} could not be written: {failure.message}")
        return writing.step


def _prepare(directory: Path) -> bytes:
    """Make the directory without what a killed writer has left, and in it a file that other ranks are to see; return its name."""
    directory.mkdir(parents=True, exist_ok=True)
    for path in partials_in(directory):
        shutil.rmtree(path, ignore_errors=True)
    token = os.urandom(4).hex()
    (directory / token).touch()
    return token.encode()


def _see(probe: Path) -> None:
    deadline_s = time.monotonic() + SEEN_WITHIN_S
    while not probe.exists():
        if time.monotonic() > deadline_s:
            raise UsageError(
                f"{probe.parent} of rank 0 is not seen by other ranks, and checkpoints belong into one directory",
                hint="a directory that all servers share, by --runs-dir",
            )
        getting_on()
        time.sleep(LOOK_S)


def _tidy(probe: Path) -> bytes:
    probe.unlink()
    return b""


class _Writing:
    """One checkpoint, written by a thread."""

    def __init__(
        self, plan: _Plan, step: int, boxes: list[NamedBox], buffer_KN: Tensor, validation_loss: float | None
    ) -> None:
        self.step, self._plan, self._validation_loss = step, plan, validation_loss
        self._aside = plan.directory / partial_name(step, plan.token)
        self._boxes, self._buffer_KN = boxes, buffer_KN
        self._failure: str | None = f"rank {plan.rank} has not written its part"  # None once it has
        self._end: str | None = "its writing has not ended"  # of rank 0: why there is no checkpoint; None once there is
        self._is_written = threading.Event()
        self._gives_up = threading.Event()  # another rank has failed
        self._all_written = threading.Event()  # what is not seen now is on another server
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"checkpoint of step {step}")
        self._thread.start()

    def wait_written(self) -> None:
        """Wait until this rank has written its file.

        Raises:
            TlaunchError: it could not.
        """
        while not self._is_written.wait(LIFE_SIGN_S):
            getting_on()
        if self._failure is not None:
            raise TlaunchError(self._failure)

    def nobody_writes(self, *, failed: bool) -> None:
        """Take note that all ranks have written, or given up."""
        (self._gives_up if failed else self._all_written).set()

    def wait_committed(self) -> None:
        """Wait until the directory has its name.

        Raises:
            TlaunchError: it gets none.
        """
        while self._thread.is_alive():
            self._thread.join(LIFE_SIGN_S)
            getting_on()
        if self._end is not None:
            raise TlaunchError(self._end)

    def remove(self) -> None:
        """Remove what there is of a checkpoint that did not come about: every server may have its part."""
        shutil.rmtree(self._aside, ignore_errors=True)

    def _run(self) -> None:
        try:
            self._write_own()
            self._failure = None
        except OSError as error:
            self._failure = f"rank {self._plan.rank} could not write to {self._aside}: {error.strerror or error}"
        finally:
            self._is_written.set()
        if self._plan.rank == 0:
            try:
                self._end = self._commit()
            except OSError as error:
                self._end = f"{error.filename or self._aside}: {error.strerror or error}"

    def _write_own(self) -> None:
        self._aside.mkdir(exist_ok=True)
        name = _name_of_rank(self._plan.rank)
        file = write_tensors(self._aside / name, self._boxes, self._buffer_KN)
        write_text(self._aside / f"{name}.json", json.dumps(encode(file)))

    def _commit(self) -> str | None:
        """Make a checkpoint of the files of all ranks; return why there is none."""
        missing = dict.fromkeys(range(self._plan.ranks))
        deadline_s = None
        while missing := {rank: None for rank in missing if not (self._aside / f"{_name_of_rank(rank)}.json").exists()}:
            if self._gives_up.is_set():
                return "another rank has failed"
            if deadline_s is None and self._all_written.is_set():
                deadline_s = time.monotonic() + SEEN_WITHIN_S
            if deadline_s is not None and time.monotonic() > deadline_s:
                return (
                    f"{self._aside} has no file of rank {next(iter(missing))} here: do all servers see that directory?"
                )
            time.sleep(LOOK_S)
        training, files = self._plan.training, {}
        for name in map(_name_of_rank, range(self._plan.ranks)):
            files[name] = decode(PartFile, json.loads((self._aside / f"{name}.json").read_bytes()))
        _write_synced(self._aside / TOKENIZER, training.tokenizer)
        files[TOKENIZER] = PartFile(len(training.tokenizer), training.tokenizer_digest)
        index = Index(
            step=self.step,
            program=training.program,
            settings=training.settings,
            layout=training.layout,
            text=training.text,
            data=training.data,
            dtype=DTYPES[self._buffer_KN.dtype],
            shapes=training.shapes,
            files=files,
            validation_loss=self._validation_loss,
        )
        content = index_text(index).encode()
        index_of(content, self._aside / INDEX)  # raises if an element has no box, or two
        _write_synced(self._aside / INDEX, content)
        for rank in range(self._plan.ranks):
            (self._aside / f"{_name_of_rank(rank)}.json").unlink()
        _sync(self._aside)
        final = self._plan.directory / name_of(self.step)
        if final.exists():  # a run that went on from an older one comes here again
            final.rename(self._aside.with_name(f".{final.name}.{self._plan.token}.old.partial"))
        self._aside.rename(final)
        _sync(self._plan.directory)
        self._remove_others()
        return None

    def _remove_others(self) -> None:
        """Remove those of later steps, from which no rank could go on, and of earlier ones all but the newest, and the best."""
        found = checkpoints_in(self._plan.directory)
        here = next(place for place, path in enumerate(found) if path.name == name_of(self.step))
        older = found[here + self._plan.keep :]
        best = best_of(readable(found[here:])) if self._plan.keep_best and older else None
        for path in [*found[:here], *(path for path in older if path != best)]:
            with suppress(OSError):  # its name goes first: nobody takes it for whole while its files go
                path.rename(path.with_name(f".{path.name}.{self._plan.token}.old.partial"))
        for path in partials_in(self._plan.directory):
            shutil.rmtree(path, ignore_errors=True)


def write_tensors(path: Path, boxes: list[NamedBox], buffer_KN: Tensor) -> PartFile:
    """Write a safetensors file of the boxes, of which row k of `buffer_KN` holds the values of KINDS[k], one after another.

    Its data are on the disk afterwards.
    """
    item, dtype = buffer_KN.dtype.itemsize, DTYPES[buffer_KN.dtype]
    header: dict[str, Any] = {}
    at = 0
    for kind in KINDS:
        for number, each in enumerate(boxes):
            stop = at + each.box.count * item
            shape = list(each.box.size)
            header[f"{kind}/{each.name}/{number}"] = {"dtype": dtype, "shape": shape, "data_offsets": [at, stop]}
            at = stop
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for content in (len(text).to_bytes(8, "little"), text, buffer_KN.numpy().reshape(-1).view(np.uint8).data):
            for start in range(0, len(content), BLOCK_BYTES):
                block = content[start : start + BLOCK_BYTES]
                file.write(block)
                digest.update(block)
        file.flush()
        os.fsync(file.fileno())
    data_start = 8 + len(text)
    return PartFile(data_start + at, digest.hexdigest(), data_start, tuple(boxes))


def _name_of_rank(rank: int) -> str:
    return f"rank{rank}.safetensors"


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    """Have the names in a directory reach the disk, where its file system knows how."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP}:
            raise
    finally:
        os.close(descriptor)
