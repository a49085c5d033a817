"""A checkpoint of any layout as one model: the files that a training leaves in its `model` directory.

<output>/
    model.safetensors      the weights, under the names of the single-device model, as the optimizer keeps them, and the buffers
    config.json            the recipe, and after which step and on which layout that was; of an average, all steps
    tokenizer.model        of a program that has one
    optimizer.safetensors  where it is asked for: first_moment/NAME and second_moment/NAME of every weight (`Index.kinds`)

Weights are float32 where the training computes in bfloat16: those from which it would go on, and not yet rounded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.checkpoint.file_layout import MODEL
from launcher.checkpoint.index import TOKENIZER
from launcher.checkpoint.tensors import Bytes, StoredBoxes, header, write_digested
from launcher.core.atomic import new_directory
from launcher.core.codec import encode
from launcher.mesh.boxes import full_box

if TYPE_CHECKING:
    from launcher.checkpoint.average import AveragedBoxes  # imports numpy

CONFIG, OPTIMIZER = "config.json", "optimizer.safetensors"
ALIGNMENT = 8  # bytes; with the names in order, this makes the file that safetensors itself would write


def merge(
    stored: StoredBoxes | AveragedBoxes, output: Path, *, moments: bool, averaged_steps: Sequence[int] = ()
) -> None:
    """Write the model to a new directory, which is whole or not there; with `moments`, those of the optimizer, too.

    `averaged_steps`: steps of the averaged checkpoints, newest first.

    Raises:
        DamagedError: the checkpoint lacks some element.
        OSError: `output` exists, the disk is full, ...
    """
    index = stored.index
    training = {"step": index.step, "layout": encode(index.layout)}
    if averaged_steps:
        training["averaged_steps"] = list(averaged_steps)
    config = {"program": index.program, "recipe": encode(index.settings), "training": training}
    with new_directory(output) as aside:
        (aside / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        if TOKENIZER in index.files:
            (aside / TOKENIZER).write_bytes((stored.path / TOKENIZER).read_bytes())
        _write(aside / MODEL, stored, [(name, 0, name) for name in sorted(index.tensors)])
        if moments:
            names = [
                (f"{kind}/{name}", number, name)
                for number, kind in enumerate(index.kinds)
                if number > 0
                for name in sorted(index.shapes)
            ]
            _write(aside / OPTIMIZER, stored, names)


def _write(path: Path, stored: StoredBoxes | AveragedBoxes, tensors: Sequence[tuple[str, int, str]]) -> None:
    """Write whole tensors, each a name, the number of its kind, and the name of its parameter or buffer."""
    index, shapes = stored.index, stored.index.tensors

    def contents() -> Iterator[Bytes]:
        yield header(
            ((name, shapes[parameter]) for name, _, parameter in tensors),
            index.dtype,
            alignment=ALIGNMENT,
            metadata={"format": "pt"},
        )
        for _, kind, parameter in tensors:
            yield from stored.blocks(kind, parameter, full_box(shapes[parameter]))

    write_digested(path, contents(), synced=False)  # all files of a new directory reach the disk before its name does
