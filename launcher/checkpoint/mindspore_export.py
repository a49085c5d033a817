"""Export a checkpoint to a MindSpore file: all weights, then first moments, then second moments, then counters."""

from __future__ import annotations

import struct
from pathlib import Path

from launcher.checkpoint.index import ITEM_BYTES
from launcher.checkpoint.mindspore import POWERS, PREFIXES, STEP, value_head
from launcher.checkpoint.tensors import StoredBoxes, pieces
from launcher.core.atomic import replacing
from launcher.mesh.boxes import full_box

PIECE_BYTES = 512 << 20  # limit of a value; MindSpore splits larger tensors in the same way
TYPES = {"F32": "Float32", "F64": "Float64"}


def write_mindspore(stored: StoredBoxes, output: Path) -> None:
    """Atomically write a checkpoint as a file that `mindspore.load_checkpoint` can read, one block at a time.

    Raises DamagedError if the checkpoint lacks an element, and OSError if `output` exists, or for example the disk is
    full.
    """
    index, train = stored.index, stored.index.settings["train"]
    most = PIECE_BYTES // ITEM_BYTES[index.dtype]
    output.parent.mkdir(parents=True, exist_ok=True)
    with replacing(output, replace=False) as aside, aside.open("wb") as file:
        for kind, prefix in enumerate(PREFIXES[train["optimizer"]]):
            for name, shape in index.shapes.items():
                for piece in pieces(full_box(shape), most):
                    size_bytes = piece.count * ITEM_BYTES[index.dtype]
                    file.write(value_head(prefix + name, TYPES[index.dtype], shape, size_bytes))
                    for block in stored.blocks(kind, name, piece):
                        file.write(block)
        # MindSpore's own step counter has 32 bits.
        integer, code = ("Int32", "<i") if index.step < 1 << 31 else ("Int64", "<q")
        content = struct.pack(code, index.step)
        file.write(value_head(STEP, integer, (1,), len(content)) + content)
        if train["optimizer"] == "adamw":
            for name, beta in zip(POWERS, (train["beta1"], train["beta2"]), strict=True):
                file.write(value_head(name, "Float32", (), 4) + struct.pack("<f", beta**index.step))
