"""`python -m launcher.trainer.checkpoint.owners`: which box of which parameter the files of a checkpoint hold on some layout.

It reads `{"settings": ..., "layout": ...}` from stdin, and writes a `launcher.checkpoint.reshard.Plan` to stdout, both as JSON, the plan after
PLAN_MARK. No tensor is made, and no other rank is needed: `launcher/trainer/plan.py` and `optimizer/flat.py` decide it by names and shapes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from functools import cache

from launcher.checkpoint.index import NamedBox
from launcher.checkpoint.reshard import PLAN_MARK, FilePlan, Plan
from launcher.checkpoint.ways import PlannedFile, keeps_replicas, planned_files
from launcher.core.codec import decode, encode
from launcher.core.errors import EXIT_OK, TlaunchError
from launcher.core.records import Layout
from launcher.mesh.boxes import Box, bounding
from launcher.mesh.coordinates import coordinate_of
from launcher.recipes.load import recorded_settings
from launcher.recipes.transformer.config import TransformerSettings
from launcher.recipes.transformer.cost import pipeline_stages
from launcher.trainer.optimizer.flat import FlatLayout, arrange
from launcher.trainer.parallel.collectives import Group
from launcher.trainer.parallel.placement import Placement
from launcher.trainer.plan import keep_stage, placements
from launcher.trainer.session import meta_model


def plan_of(settings: TransformerSettings, layout: Layout) -> Plan:
    """Return the files that a training with these settings writes on this layout, which fits the model."""
    shapes = {name: tuple(parameter.shape) for name, parameter in meta_model(settings).named_parameters()}
    way = settings.checkpoint.files
    owned = [list(_owned(settings, layout, rank, replicas=keeps_replicas(way))) for rank in range(layout.world_size)]

    def boxes_of(file: PlannedFile) -> list[NamedBox]:
        if file.is_a_part:
            return owned[file.writer]
        boxes: dict[str, list[Box]] = {}
        for rank in file.sources:
            for each in owned[rank]:
                boxes.setdefault(each.name, []).append(each.box)
        return [NamedBox(name, bounding(boxes[name])) for name in shapes if name in boxes]

    return Plan(tuple(FilePlan(file.name, tuple(boxes_of(file))) for file in planned_files(way, layout)))


def _owned(settings: TransformerSettings, layout: Layout, rank: int, *, replicas: bool) -> Iterator[NamedBox]:
    """Yield the boxes of a rank's part in their order; without `replicas` not those that another rank owns as well."""
    place = coordinate_of(rank, layout)
    placed, flat = _arranged(settings, layout, place.pp, place.mp)
    for part in flat.own_parts(place.dp):
        for each in flat.boxes_of(part, placed):
            if replicas or placed[each.name].is_first:
                yield NamedBox(each.name, each.box)


@cache
def _arranged(
    settings: TransformerSettings, layout: Layout, stage: int, mp_index: int
) -> tuple[Mapping[str, Placement], FlatLayout]:
    """Return what ShardedOptimizer arranges on the data-parallel ranks of a stage and a model-parallel place."""
    model = meta_model(settings)
    keep_stage(model, pipeline_stages(settings, layout.pp)[stage])
    placed = placements(model, Group(ranks=tuple(range(layout.mp)), index=mp_index))
    return placed, arrange(placed, dp=layout.dp, groups=settings.parallel.gradient_groups)


def main() -> int:
    """Answer; the exit code is 0, or that of the TlaunchError that says why there is no plan."""
    asked = json.load(sys.stdin)
    try:
        settings = recorded_settings(TransformerSettings, asked["settings"], where="the checkpoint")
        plan = plan_of(settings, decode(Layout, asked["layout"]))
        print(f"\n{PLAN_MARK}{json.dumps(encode(plan))}")  # whatever has begun a line before
    except TlaunchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
