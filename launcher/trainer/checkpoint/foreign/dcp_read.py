"""A checkpoint of torch.distributed.checkpoint (DCP) is read without trust in it: `launcher/checkpoint/dcp.py` reads its metadata.

Each chunk was written by torch.save. What torch.load makes of that with weights_only is no program any more, but may
still take any amount of memory, so only what a plain tensor of that size is written as gets there.
"""

from __future__ import annotations

import io
import os
import pickletools
import zipfile
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from launcher.checkpoint.dcp import Chunk, StoredTensor, read_metadata
from launcher.core.errors import UnreadableError
from launcher.core.regular_files import open_regular
from launcher.mesh.boxes import full_box
from launcher.trainer.checkpoint.foreign.dcp_write import MODEL, MOMENTS, OPTIMIZER, STATE, STEP
from launcher.trainer.checkpoint.foreign.state import ForeignState, ForeignTensor

MAX_ADDED_BYTES = 64 << 10  # that torch.save adds to those of a tensor
_STORAGES = ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
_NAMED = frozenset(
    {"torch._utils _rebuild_tensor_v2", "collections OrderedDict", *(f"torch {kind}Storage" for kind in _STORAGES)}
)
_NAMING = frozenset({"GLOBAL", "STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4"})


def read_dcp(directory: Path) -> ForeignState:
    """Return the state in a directory: as `dcp_write` describes it, or the weights alone, by their names.

    Raises:
        UnreadableError: it is no such directory, or was cut or changed.
    """
    stored = read_metadata(directory)
    state = ForeignState(directory, left_out=stored.others)
    has_model = any(name.startswith(f"{MODEL}.") for name in stored.tensors)
    for name, tensor in stored.tensors.items():
        found = ForeignTensor(tensor.shape, getattr(torch, tensor.dtype), partial(_read, directory, name, tensor))
        kind, parameter = _place(name, has_model=has_model)
        if kind is not None:
            state.add(kind, parameter, found, called=name)
        elif parameter != STEP:
            state.unknown.append(name)
        elif name == STEP or state.number is None:  # each parameter's says the same
            state.number = found
    return state


def _place(name: str, *, has_model: bool) -> tuple[int | None, str]:
    """Return the place in KINDS and the parameter that an entry is of; None and the last word of its name if of none."""
    model, state = f"{MODEL}.", f"{OPTIMIZER}.{STATE}."
    if name.startswith(state):
        parameter, _, what = name.removeprefix(state).rpartition(".")
        return (1 + MOMENTS.index(what), parameter) if what in MOMENTS else (None, what)
    if name == STEP:
        return None, STEP
    if not has_model:
        return 0, name
    return (0, name.removeprefix(model)) if name.startswith(model) else (None, "")


def _read(directory: Path, name: str, stored: StoredTensor) -> Tensor:
    """Return a tensor, made of its chunks.

    Raises:
        UnreadableError: an element stands in none of them, or in two; or one is no plain tensor.
    """
    found = torch.empty(stored.shape, dtype=getattr(torch, stored.dtype))
    is_read = torch.zeros(stored.shape, dtype=torch.bool)
    for chunk in stored.chunks:
        here = chunk.box.within(full_box(stored.shape))
        if is_read[here].any():
            raise UnreadableError(f"{directory}: two chunks of {name} hold the same elements")
        is_read[here] = True
        found[here] = _chunk(directory / chunk.file, name, chunk, found.dtype)
    if missing := int((~is_read).sum()):
        raise UnreadableError(f"{directory}: {missing} of {found.numel()} elements of {name} are in no chunk")
    return found


def _chunk(path: Path, name: str, chunk: Chunk, dtype: torch.dtype) -> Tensor:
    where = f"{path}: bytes {chunk.bytes.start} to {chunk.bytes.stop}, {name}"
    expected = chunk.box.count * dtype.itemsize
    if not expected <= len(chunk.bytes) <= expected + MAX_ADDED_BYTES:
        raise UnreadableError(f"{where}: they are not what a tensor of {expected} bytes is written as")
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            file.seek(chunk.bytes.start)
            content = file.read(len(chunk.bytes)) or b""
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror}") from None
    if len(content) < len(chunk.bytes):
        raise UnreadableError(f"{where}: the file ends after {len(content)} of them")
    if problem := _problem_of(content):
        raise UnreadableError(f"{where}: {problem}")
    try:
        tensor = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001 - of many kinds, where a file is damaged
        raise UnreadableError(f"{where}: torch.load ends with {type(error).__name__}") from None
    if not isinstance(tensor, Tensor) or tensor.shape != chunk.box.size or tensor.dtype != dtype:
        raise UnreadableError(f"{where}: they are no tensor of {list(chunk.box.size)} in {dtype}")
    return tensor


def _problem_of(content: bytes) -> str | None:
    """Return why torch.load must not get this; None if it is what a plain tensor is written as."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
                return "they are compressed"
            [pickled] = [entry for entry in entries if entry.filename.endswith("/data.pkl")]
            if pickled.file_size > MAX_ADDED_BYTES:
                return f"their pickle has {pickled.file_size} bytes"
            if archive.testzip() is not None:  # torch.load does not look at it
                return "their CRC is another one"
            operations = [*pickletools.genops(archive.read(pickled))]
    except Exception as error:  # noqa: BLE001 - as above
        return f"they are not what torch.save writes: {type(error).__name__}"
    for operation, argument, _ in operations:
        if operation.name in _NAMING and argument not in _NAMED:
            return f"their pickle names {argument}, which is no part of a tensor; nothing of it was run"
    return None
