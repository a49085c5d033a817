"""The training state in another tool's files, and its conversion to a trainer checkpoint.

Settings, tokenizer and training data are not in such files. They come from a checkpoint of the same model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from launcher.checkpoint.file_layout import MODEL
from launcher.checkpoint.finish import finish
from launcher.checkpoint.index import (
    KINDS,
    TOKENIZER,
    DamagedError,
    Index,
    NamedBox,
    damage_of,
    hinted,
    name_of,
    step_named,
)
from launcher.checkpoint.tensors import write_digested
from launcher.core.atomic import new_directory
from launcher.core.errors import RefusedError, UsageError
from launcher.core.frozen import frozen
from launcher.core.records import Layout
from launcher.core.text import counted, some_of
from launcher.mesh.boxes import full_box
from launcher.trainer.checkpoint.checkpoint_files import NUMPY_DTYPES, write_tensors
from launcher.trainer.checkpoint.foreign.progress import Progress

SHOWN = 5  # names per fault in a message
NARROW = (torch.float16, torch.bfloat16, torch.float32)  # every checkpoint dtype can represent their values
MAX_STEP = 1 << 53  # up to which floats represent every integer


@frozen
class ForeignTensor:
    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]


class ForeignState:
    """A training state from another tool's files. Each parameter has one tensor per kind (weight, moments)."""

    def __init__(self, path: Path, *, left_out: Sequence[str]) -> None:
        self.path, self.left_out = path, left_out
        # For each of KINDS, by parameter name
        self.tensors: tuple[dict[str, ForeignTensor], ...] = tuple({} for _ in KINDS)
        self.number: ForeignTensor | None = None  # the step of the state
        self.unknown: list[str] = []

    def add(self, kind: int, parameter: str, found: ForeignTensor, *, called: str) -> None:
        """Add a tensor of KINDS[kind] to `parameter`, or add `called` to `unknown` if the parameter already has one."""
        if parameter in self.tensors[kind]:
            self.unknown.append(called)
        else:
            self.tensors[kind][parameter] = found

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of values in the state: all of KINDS, or only weights."""
        return KINDS if any(self.tensors[1:]) else KINDS[:1]

    def step(self) -> int:
        """Return the training step. Raise UsageError if it is missing, or RefusedError if it is invalid."""
        hint = "set it with `--step N`"
        if self.number is None:
            raise UsageError(f"{self.path} does not contain the training step", hint=hint)
        if self.number.shape not in {(), (1,)}:
            raise RefusedError(
                f"{self.path}: the step must be a number, not a tensor of {_words(self.number.shape)}", hint=hint
            )
        step = float(self.number.read())
        if not 1 <= step < MAX_STEP or not step.is_integer():
            raise RefusedError(f"{self.path}: the state is of step {step:g}, but steps count from 1", hint=hint)
        return int(step)


def check_fits(state: ForeignState, like: Index, like_path: Path) -> None:
    """Check that a state has the tensor names, shapes and dtypes of the checkpoint `like`.

    Raises:
        RefusedError: a tensor is missing, unknown, or has another shape or dtype. The message lists all faults.
    """
    faults = [
        f"{kind.replace('_', ' ')}s: {fault}"
        for kind, found in zip(state.kinds, state.tensors, strict=False)
        for fault in _faults(found, like)
    ]
    if state.unknown:
        faults.append(f"{counted(len(state.unknown), 'unknown tensor')}: {some_of(state.unknown, SHOWN)}")
    if faults:
        raise RefusedError(
            f"{state.path} does not match the model of {like_path}: {'; '.join(faults)}",
            hint="run `tlaunch ckpt show` to list the names and shapes of a checkpoint's tensors",
        )


def _faults(found: Mapping[str, ForeignTensor], like: Index) -> Iterator[str]:
    expected, dtype = like.shapes, dtype_of(like)
    of = f"of {counted(len(expected), 'parameter')}"
    if missing := [name for name in expected if name not in found]:
        yield f"{len(missing)} {of} are missing: {some_of(missing, SHOWN)}"
    if unknown := [name for name in found if name not in expected]:
        yield f"{len(unknown)} have unknown names: {some_of(unknown, SHOWN)}"
    known = {name: tensor for name, tensor in found.items() if name in expected}
    if shaped := [
        f"{name} is {_words(tensor.shape)} instead of {_words(expected[name])}"
        for name, tensor in known.items()
        if tensor.shape != expected[name]
    ]:
        yield f"{len(shaped)} {of} have another shape: {some_of(shaped, SHOWN)}"
    if typed := [f"{name} in {tensor.dtype}" for name, tensor in known.items() if tensor.dtype not in {*NARROW, dtype}]:
        yield f"{len(typed)} {of} do not fit into {dtype}: {some_of(typed, SHOWN)}"


def write_checkpoint(
    output: Path, state: ForeignState, like: Index, like_path: Path, step: int, progress: Progress
) -> None:
    """Write `state` as a checkpoint with the settings and tokenizer of the checkpoint `like`. Missing moments are zero.

    Raises:
        UsageError: the directory's name contains another step.
        DamagedError: the tokenizer of `like_path` is damaged.
        UnreadableError: a tensor cannot be read.
        OSError: `output` exists, or for example the disk is full.
    """
    if step_named(output.name) not in {None, step}:
        raise UsageError(
            f"{output}: the state is of step {step}", hint=f"use `--output {output.with_name(name_of(step))}`"
        )
    if problem := damage_of(like_path, TOKENIZER, like.files[TOKENIZER]):
        with hinted(like_path):
            raise DamagedError(problem)
    boxes = [NamedBox(name, full_box(shape)) for name, shape in like.shapes.items()]
    with new_directory(output) as aside:
        tokenizer = write_digested(aside / TOKENIZER, [(like_path / TOKENIZER).read_bytes()], synced=False)
        tensors = write_tensors(aside / MODEL, boxes, like.dtype, _values(state, like, progress), synced=False)
        files = {MODEL: tensors, TOKENIZER: tokenizer}
        # The validation loss of this state is unknown.
        finish(
            aside,
            dataclasses.replace(
                like, step=step, layout=Layout(), files=files, validation_loss=None, validation_bleu=None
            ),
        )


def _values(state: ForeignState, like: Index, progress: Progress) -> Iterator[NDArray[Any]]:
    """Yield all tensors, ordered by kind and then by parameter. Read one tensor at a time."""
    dtype = NUMPY_DTYPES[like.dtype]
    for kind, found in zip(KINDS, state.tensors, strict=True):
        for name, shape in like.shapes.items():
            yield found[name].read().to(dtype_of(like)).numpy() if kind in state.kinds else np.zeros(shape, dtype)
            progress.add(prod(shape) * dtype.itemsize)


def dtype_of(index: Index) -> torch.dtype:
    return torch.from_numpy(np.empty(0, NUMPY_DTYPES[index.dtype])).dtype


def _words(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "a number"
