"""strategy.json of a checkpoint: for people, how every parameter is cut, and which file holds which box.

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

`cut` tells in which axes of the layout files differ in what they hold of the parameter: model parallelism cuts along a dim,
data parallelism into runs of consecutive elements in row-major order, wherever that is (dim null). Nothing is read from this
file: all of it follows from the index.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.checkpoint.file_layout import rank_of
from launcher.checkpoint.index import BUFFERS, Index
from launcher.core.frozen import frozen
from launcher.mesh.boxes import Box, bounding
from launcher.mesh.coordinates import Coordinate, coordinate_of


@frozen
class _Held:
    """A box of a parameter, and the place of the rank that has written it; None where that file is of the whole model."""

    file: str
    box: Box
    place: Coordinate | None


def strategy_of(index: Index) -> dict[str, Any]:
    """Return what strategy.json says, as `json.loads` returns it."""
    held: dict[str, list[_Held]] = {name: [] for name in index.shapes}
    for name, file in index.files.items():
        rank = rank_of(name)
        is_known = rank is not None and rank < index.layout.world_size
        place = coordinate_of(rank, index.layout) if rank is not None and is_known else None
        for each in file.boxes if name != BUFFERS else ():
            held[each.name].append(_Held(name, each.box, place))
    return {
        "step": index.step,
        "layout": {axis: getattr(index.layout, axis) for axis in ("dp", "mp", "pp")},
        "parameters": {name: _parameter(index.shapes[name], held[name]) for name in index.shapes},
    }


def strategy_text(index: Index) -> str:
    """Return the content of strategy.json: JSON, with a line for each box."""
    found = strategy_of(index)
    parameters = found.pop("parameters")
    head = "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in found.items())
    body = ",\n".join(f"    {json.dumps(name)}: {_text_of(facts)}" for name, facts in parameters.items())
    return f'{{\n{head}  "parameters": {{\n{body}\n  }}\n}}\n'


def _text_of(facts: Mapping[str, Any]) -> str:
    short = "".join(f"      {json.dumps(key)}: {json.dumps(facts[key])},\n" for key in facts if key != "boxes")
    boxes = ",\n".join(f"        {json.dumps(each)}" for each in facts["boxes"])
    return f'{{\n{short}      "boxes": [\n{boxes}\n      ]\n    }}'


def _parameter(shape: Sequence[int], held: Sequence[_Held]) -> dict[str, Any]:
    stages = {each.place.pp for each in held if each.place is not None}
    return {
        "shape": list(shape),
        "stage": stages.pop() if len(stages) == 1 else None,  # None: the file is of the whole model
        "cut": _cuts(held),
        "boxes": [{"file": each.file, "start": list(each.box.start), "size": list(each.box.size)} for each in held],
    }


def _cuts(held: Sequence[_Held]) -> list[dict[str, Any]]:
    """Return how the parameter is cut, each cut as an axis of the layout, a dim of the tensor and the number of parts."""
    by_place: dict[int, dict[int, list[Box]]] = defaultdict(lambda: defaultdict(list))  # by mp, then by dp
    for each in held:
        if each.place is not None:
            by_place[each.place.mp][each.place.dp].append(each.box)
    # What the data-parallel ranks of a model-parallel place hold is together a box.
    slices = [bounding([box for boxes in by_dp.values() for box in boxes]) for by_dp in by_place.values()]
    dims = range(len(slices[0].size) if slices else 0)
    parts = [len({(each.start[dim], each.size[dim]) for each in slices}) for dim in dims]
    found: list[dict[str, Any]] = [
        {"axis": "mp", "dim": dim, "parts": count} for dim, count in enumerate(parts) if count > 1
    ]
    runs = max((len({frozenset(boxes) for boxes in by_dp.values()}) for by_dp in by_place.values()), default=1)
    return [*found, {"axis": "dp", "dim": None, "parts": runs}] if runs > 1 else found
