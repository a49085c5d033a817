"""Convert a checkpoint of any layout into one model, as the training's `model` directory holds it.

<output>/
    model.safetensors      weights as the optimizer keeps them, named as in the single-device model, and buffers
    config.json            the recipe, the step and the layout; for an average, all steps
    tokenizer.model        if the program has a tokenizer
    optimizer.safetensors  on request: first_moment/NAME and second_moment/NAME of every weight (`Index.kinds`)

Weights are float32 if the training computes in bfloat16: the master weights before rounding.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.checkpoint.file_layout import MODEL
from launcher.checkpoint.index import TOKENIZER
from launcher.checkpoint.tensors import Bytes, StoredBoxes, header, write_digested
from launcher.core.atomic import new_directory
from launcher.core.codec import encode, read_json
from launcher.core.errors import UnreadableError
from launcher.mesh.boxes import full_box

if TYPE_CHECKING:
    from launcher.checkpoint.average import AveragedBoxes  # imports numpy

CONFIG, OPTIMIZER = "config.json", "optimizer.safetensors"
ALIGNMENT = 8  # bytes; with sorted names, the file is identical to one that safetensors writes


def merge(
    stored: StoredBoxes | AveragedBoxes, output: Path, *, moments: bool, averaged_steps: Sequence[int] = ()
) -> None:
    """Atomically write the full model of a checkpoint, and optionally the optimizer's moments, to a new directory.

    `averaged_steps`: steps of the averaged checkpoints, newest first. Raises DamagedError if the checkpoint lacks an
    element, and OSError if `output` exists, or for example the disk is full.
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


def read_config(model: Path) -> tuple[str, Mapping[str, Mapping[str, Any]]]:
    """Return the program and the settings of a model. Raise UnreadableError if its config.json is missing or invalid."""
    path = model / CONFIG
    try:
        found = read_json(path)
        return str(found["program"]), {section: dict(values) for section, values in found["recipe"].items()}
    except OSError as error:
        raise UnreadableError(f"cannot read the trained model's file {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UnreadableError(f"{path} has no valid entries `program` and `recipe`") from None


def _write(path: Path, stored: StoredBoxes | AveragedBoxes, tensors: Sequence[tuple[str, int, str]]) -> None:
    """Write full tensors to a safetensors file. Each entry is (name in the file, index of the kind, parameter name)."""
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

    write_digested(path, contents(), synced=False)  # `new_directory` syncs all files before it renames the directory
