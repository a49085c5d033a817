"""`python -m launcher.trainer.checkpoint.owners`: which box of which parameter the files of a checkpoint hold on some layout.

It reads `{"program": ..., "settings": ..., "layout": ...}` from stdin, and writes a `launcher.checkpoint.reshard.Plan` to stdout, both as JSON, the plan after
PLAN_MARK. No tensor is made, and no other rank is needed: the program's module and `optimizer/flat.py` decide it by names and shapes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from importlib import import_module
from typing import Any, Protocol, cast

from launcher.checkpoint.index import NamedBox
from launcher.checkpoint.reshard import PLAN_MARK, FilePlan, Plan
from launcher.checkpoint.ways import PlannedFile, keeps_replicas, planned_files
from launcher.core.codec import decode, encode
from launcher.core.errors import EXIT_OK, TlaunchError
from launcher.core.records import Layout
from launcher.mesh.boxes import Box, bounding
from launcher.mesh.coordinates import Coordinate, coordinate_of
from launcher.recipes.catalog import recipe_named
from launcher.recipes.load import recorded_settings
from launcher.trainer.optimizer.flat import FlatLayout, arrange
from launcher.trainer.parallel.placement import Placement

Arranged = tuple[Mapping[str, Placement], FlatLayout]


class Placing(Protocol):
    """What the module of a bundled program says of its parameters before there are any."""

    def model_shapes(self, settings: Any) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of every parameter of the single-device model, in its order."""

    def placements_at(self, settings: Any, layout: Layout, coordinate: Coordinate) -> Mapping[str, Placement]:
        """Return the placements of the parameters that the rank at a coordinate holds, in its model's order."""


def plan_of(program: Placing, settings: Any, layout: Layout) -> Plan:
    """Return the files that a training of a program with these settings writes on this layout, which fits the model."""
    shapes = program.model_shapes(settings)
    way = settings.checkpoint.files
    arranged = cache(partial(_arranged, program, settings, layout))
    owned = [list(_owned(arranged, layout, rank, replicas=keeps_replicas(way))) for rank in range(layout.world_size)]

    def boxes_of(file: PlannedFile) -> list[NamedBox]:
        if file.is_a_part:
            return owned[file.writer]
        boxes: dict[str, list[Box]] = {}
        for rank in file.sources:
            for each in owned[rank]:
                boxes.setdefault(each.name, []).append(each.box)
        return [NamedBox(name, bounding(boxes[name])) for name in shapes if name in boxes]

    return Plan(tuple(FilePlan(file.name, tuple(boxes_of(file))) for file in planned_files(way, layout)))


def _owned(
    arranged: Callable[[int, int], Arranged], layout: Layout, rank: int, *, replicas: bool
) -> Iterator[NamedBox]:
    """Yield the boxes of a rank's part in their order; without `replicas` not those that another rank owns as well.

    `arranged` is asked by stage and model-parallel place.
    """
    place = coordinate_of(rank, layout)
    placed, flat = arranged(place.pp, place.mp)
    for part in flat.own_parts(place.dp):
        for each in flat.boxes_of(part, placed):
            if replicas or placed[each.name].is_first:
                yield NamedBox(each.name, each.box)


def _arranged(program: Placing, settings: Any, layout: Layout, stage: int, mp_index: int) -> Arranged:
    """Return what ShardedOptimizer arranges on the data-parallel ranks of a stage and a model-parallel place."""
    placed = program.placements_at(settings, layout, Coordinate(pp=stage, dp=0, mp=mp_index))
    return placed, arrange(placed, dp=layout.dp, groups=settings.parallel.gradient_groups)


def main() -> int:
    """Answer; the exit code is 0, or that of the TlaunchError that says why there is no plan."""
    asked = json.load(sys.stdin)
    try:
        recipe = recipe_named(asked["program"])
        settings = recorded_settings(recipe.settings, asked["settings"], where="the checkpoint")
        plan = plan_of(cast("Placing", import_module(recipe.program)), settings, decode(Layout, asked["layout"]))
        print(f"\n{PLAN_MARK}{json.dumps(encode(plan))}")  # whatever has begun a line before
    except TlaunchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
