"""Complete a checkpoint: write index.json and strategy.json, which describe the tensor files. Remove unknown files.

strategy.json describes for people how every parameter is partitioned and which file holds each box:

    {
      "step": 40,
      "layout": {"dp": 2, "mp": 2, "pp": 1},
      "parameters": {
        "head.weight": {
          "shape": [1200, 128],
          "stage": 0,
          "cut": [{"axis": "mp", "dim": 0, "parts": 2}, {"axis": "dp", "dim": null, "parts": 2}],
          "boxes": [
            {"file": "rank0.safetensors", "start": [0, 0], "size": [300, 128]},
            ...

`cut` lists the layout axes along which the files' parts of the parameter differ. Model parallelism splits a dim. Data
parallelism splits the elements in row-major order into consecutive ranges, so its dim is null. tlaunch never reads this
file, because the index contains the same information.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.checkpoint.file_layout import rank_of
from launcher.checkpoint.index import (
    BUFFERS,
    INDEX,
    STRATEGY,
    Index,
    Validations,
    checkpoints_in,
    index_of,
    index_text,
    name_of,
    read_index,
    with_schema,
)
from launcher.checkpoint.tensors import write_digested
from launcher.core.atomic import write_text
from launcher.core.frozen import frozen
from launcher.mesh.boxes import Box, bounding
from launcher.mesh.coordinates import Coordinate, coordinate_of


def finish(directory: Path, index: Index) -> None:
    """Complete a checkpoint: write strategy.json and index.json, and remove files that the index does not list.

    Both files are synced to disk. Their directory entries are not: call `launcher.core.atomic.name_directory` next.
    Raises DamagedError if an element is in no box, or boxes overlap, and OSError, for example if the disk is full.
    """
    strategy = write_digested(directory / STRATEGY, [strategy_text(index).encode()], synced=True)
    files = {**index.files, STRATEGY: strategy}
    content = index_text(with_schema(dataclasses.replace(index, files=files))).encode()
    index_of(content, directory / INDEX)  # raises
    write_digested(directory / INDEX, [content], synced=True)
    for path in list(directory.iterdir()):
        if path.name != INDEX and path.name not in files:
            path.unlink()


def record_validation(checkpoint: Path, loss: float | None, bleu: float | None, validations: Validations) -> None:
    """Replace the validation loss, BLEU and counters in a checkpoint's index. A non-finite loss is recorded as None.

    Raises UnreadableError if the index is missing, damaged or of another version, and OSError, for example if the disk
    is full.
    """
    known = loss if loss is not None and math.isfinite(loss) else None
    index = dataclasses.replace(
        read_index(checkpoint), validation_loss=known, validation_bleu=bleu, validations=validations
    )
    write_text(checkpoint / INDEX, index_text(with_schema(index)))


def set_aside(directory: Path, step: int) -> Path | None:
    """Rename the checkpoint of `step` to `step-N.not-finite`, and return its new path.

    Only the newest checkpoint is renamed, and only if an older one is left. Otherwise return None. `--resume` ignores a
    renamed checkpoint unless it is named. Raises OSError if the directory cannot be read or written.
    """
    newest, *older = checkpoints_in(directory) or [directory]
    if newest.name != name_of(step) or not older:
        return None
    aside = newest.with_name(f"{newest.name}.not-finite")
    if aside.exists():
        shutil.rmtree(aside)
    return newest.rename(aside)


# --- strategy.json ---


@frozen
class _Held:
    """A box (a part of a parameter) in a file. `place` is the writing rank's coordinate, or None for a full model."""

    file: str
    box: Box
    place: Coordinate | None


def strategy_text(index: Index) -> str:
    """Return the content of strategy.json, with one line per box."""
    held: dict[str, list[_Held]] = {name: [] for name in index.shapes}
    for name, file in index.files.items():
        rank = rank_of(name)
        is_known = rank is not None and rank < index.layout.world_size
        place = coordinate_of(rank, index.layout) if rank is not None and is_known else None
        for each in file.boxes if name != BUFFERS else ():
            held[each.name].append(_Held(name, each.box, place))
    layout = {axis: getattr(index.layout, axis) for axis in ("dp", "mp", "pp")}
    body = ",\n".join(f"    {json.dumps(name)}: {_parameter(index.shapes[name], held[name])}" for name in index.shapes)
    head = f'  "step": {index.step},\n  "layout": {json.dumps(layout)},\n'
    return f'{{\n{head}  "parameters": {{\n{body}\n  }}\n}}\n'


def _parameter(shape: Sequence[int], held: Sequence[_Held]) -> str:
    stages = {each.place.pp for each in held if each.place is not None}
    facts = {
        "shape": list(shape),
        "stage": stages.pop() if len(stages) == 1 else None,  # None: the file holds the full model
        "cut": _cuts(held),
    }
    short = "".join(f"      {json.dumps(key)}: {json.dumps(value)},\n" for key, value in facts.items())
    boxes = ({"file": each.file, "start": list(each.box.start), "size": list(each.box.size)} for each in held)
    lines = ",\n".join(f"        {json.dumps(each)}" for each in boxes)
    return f'{{\n{short}      "boxes": [\n{lines}\n      ]\n    }}'


def _cuts(held: Sequence[_Held]) -> list[dict[str, Any]]:
    """Return the partition of a parameter: for each split, the layout axis, the tensor dim and the number of parts."""
    by_place: dict[int, dict[int, list[Box]]] = defaultdict(lambda: defaultdict(list))  # by mp, then by dp
    for each in held:
        if each.place is not None:
            by_place[each.place.mp][each.place.dp].append(each.box)
    # The boxes of all data-parallel ranks at a model-parallel coordinate form one box.
    slices = [bounding([box for boxes in by_dp.values() for box in boxes]) for by_dp in by_place.values()]
    dims = range(len(slices[0].size) if slices else 0)
    parts = [len({(each.start[dim], each.size[dim]) for each in slices}) for dim in dims]
    found: list[dict[str, Any]] = [
        {"axis": "mp", "dim": dim, "parts": count} for dim, count in enumerate(parts) if count > 1
    ]
    runs = max((len({frozenset(boxes) for boxes in by_dp.values()}) for by_dp in by_place.values()), default=1)
    return [*found, {"axis": "dp", "dim": None, "parts": runs}] if runs > 1 else found
