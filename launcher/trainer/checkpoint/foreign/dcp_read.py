"""Import a checkpoint of torch.distributed.checkpoint (DCP) without trusting it.

`launcher/checkpoint/dcp.py` reads the metadata. Each chunk was written by torch.save. torch.load with weights_only
executes no code, but may use any amount of memory. Therefore only content in the format of a plain tensor of the
expected size is passed to it.
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

MAX_ADDED_BYTES = 64 << 10  # overhead of torch.save for a tensor
_STORAGES = ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
_NAMED = frozenset(
    {"torch._utils _rebuild_tensor_v2", "collections OrderedDict", *(f"torch {kind}Storage" for kind in _STORAGES)}
)
_NAMING = frozenset({"GLOBAL", "STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4"})


def read_dcp(directory: Path) -> ForeignState:
    """Read a training state from a DCP directory that has the layout of `write_dcp` or contains only a model's weights.

    Raises:
        UnreadableError: the directory is not a checkpoint, or is truncated or modified.
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
        elif name == STEP or state.number is None:  # the step of each parameter is the same
            state.number = found
    return state


def _place(name: str, *, has_model: bool) -> tuple[int | None, str]:
    """Return the kind (an index in KINDS) and the parameter of a DCP entry. For unknown entries, the kind is None."""
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
    """Assemble a tensor from its chunks. They must be plain tensors, and cover each element exactly once."""
    found = torch.empty(stored.shape, dtype=getattr(torch, stored.dtype))
    is_read = torch.zeros(stored.shape, dtype=torch.bool)
    for chunk in stored.chunks:
        here = chunk.box.within(full_box(stored.shape))
        if is_read[here].any():
            raise UnreadableError(f"{directory}: two chunks of {name} hold the same elements")
        is_read[here] = True
        found[here] = _chunk(directory / chunk.file, name, chunk, found.dtype)
    if missing := int((~is_read).sum()):
        raise UnreadableError(f"{directory}: no chunk contains {missing} of {found.numel()} elements of {name}")
    return found


def _chunk(path: Path, name: str, chunk: Chunk, dtype: torch.dtype) -> Tensor:
    where = f"{path}: bytes {chunk.bytes.start} to {chunk.bytes.stop}, {name}"
    expected = chunk.box.count * dtype.itemsize
    if not expected <= len(chunk.bytes) <= expected + MAX_ADDED_BYTES:
        raise UnreadableError(f"{where}: the tensor has {expected} bytes, but the file has {len(chunk.bytes)}")
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            file.seek(chunk.bytes.start)
            content = file.read(len(chunk.bytes)) or b""
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror}") from None
    if len(content) < len(chunk.bytes):
        raise UnreadableError(f"{where}: the file ends after {len(content)} of these bytes")
    if problem := _problem_of(content):
        raise UnreadableError(f"{where}: {problem}")
    try:
        tensor = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001 - a damaged file causes many kinds of errors
        raise UnreadableError(f"{where}: torch.load raised {type(error).__name__}") from None
    if not isinstance(tensor, Tensor) or tensor.shape != chunk.box.size or tensor.dtype != dtype:
        raise UnreadableError(f"{where}: not a tensor of {list(chunk.box.size)} in {dtype}")
    return tensor


def _problem_of(content: bytes) -> str | None:
    """Return why `content` is unsafe for torch.load, or None if it has the format of a plain tensor."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
                return "the content is compressed"
            [pickled] = [entry for entry in entries if entry.filename.endswith("/data.pkl")]
            if pickled.file_size > MAX_ADDED_BYTES:
                return f"the pickle has {pickled.file_size} bytes"
            if archive.testzip() is not None:  # torch.load does not check it
                return "the CRC does not match"
            operations = [*pickletools.genops(archive.read(pickled))]
    except Exception as error:  # noqa: BLE001 - as above
        return f"not in the format of torch.save: {type(error).__name__}"
    for operation, argument, _ in operations:
        if operation.name in _NAMING and argument not in _NAMED:
            return f"the pickle names {argument}, which does not belong to a tensor; none of it was executed"
    return None
