"""Import a MindSpore checkpoint: one file with the full model and its optimizer state."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from launcher.checkpoint.mindspore import POWERS, PREFIXES, STEP, Value, read_values
from launcher.trainer.checkpoint.foreign.state import ForeignState, ForeignTensor

# Other values of MindSpore's optimizers and callbacks, which the trainer keeps in its settings.
LEFT_OUT = frozenset({"learning_rate", "weight_decay", "epoch_num", "step_num"})
TYPES = {
    "Float16": torch.float16,
    "BFloat16": torch.bfloat16,
    "Float32": torch.float32,
    "Float64": torch.float64,
    "Int32": torch.int32,
    "Int64": torch.int64,
}


def read_mindspore(path: Path) -> ForeignState:
    """Read a training state from a MindSpore checkpoint file.

    Raises:
        UnreadableError: the file is not a MindSpore checkpoint, or is truncated or modified.
    """
    values = read_values(path)
    left_out = tuple(name for name, value in values.items() if value.type in {"", "str"} or name in LEFT_OUT)
    state = ForeignState(path, left_out=left_out)
    prefixes = [(kind, prefix) for names in PREFIXES.values() for kind, prefix in enumerate(names) if prefix]
    for name, value in values.items():
        if name in left_out or name in POWERS:
            continue
        if value.type not in TYPES:
            state.unknown.append(f"{name} of {value.type}")
            continue
        found = ForeignTensor(value.shape, TYPES[value.type], partial(_read, path, value))
        if name == STEP:
            state.number = found
            continue
        kind, prefix = next(((kind, prefix) for kind, prefix in prefixes if name.startswith(prefix)), (0, ""))
        state.add(kind, name.removeprefix(prefix), found, called=name)
    return state


def _read(path: Path, value: Value) -> Tensor:
    found = torch.empty(value.shape, dtype=TYPES[value.type])
    bytes_N = found.reshape(-1).view(torch.uint8)
    content = np.memmap(path, dtype=np.uint8, mode="c")
    at = 0
    for piece in value.pieces:
        bytes_N[at : at + len(piece)] = torch.from_numpy(content[piece.start : piece.stop])
        at += len(piece)
    return found
