"""Groups the ranks of a layout whose steps have the same shapes, so that one of each group is simulated.

Ranks differ by their pipeline stage, by the shapes of their micro batches (over dp), and by the number of vocabulary
rows that they hold (over mp). Other dimensions are divided evenly.
"""

from __future__ import annotations

from collections.abc import Sequence

from launcher.core.records import Layout
from launcher.mesh.coordinates import coordinate_of
from launcher.recipes.transformer.transformer_settings import TransformerSettings
from launcher.trainer.data.order import cut_by_cost
from launcher.trainer.data.tokens import Example, TokenizedPairs
from launcher.trainer.parallel.collectives import Group
from launcher.trainer.parallel.styles import part_bounds

Shapes = tuple[tuple[int, ...], ...]


def distinct_ranks(
    settings: TransformerSettings, layout: Layout, examples: Sequence[Example]
) -> list[tuple[int, tuple[int, ...]]]:
    """Return the lowest rank of each group of equal ranks, and all ranks of the group."""
    batches, rows = _batch_shapes(layout, examples), _vocabulary_rows(settings, layout)
    found: dict[object, list[int]] = {}
    for rank in range(layout.world_size):
        at = coordinate_of(rank, layout)
        found.setdefault((at.pp, batches[at.dp], rows[at.mp]), []).append(rank)
    return [(same[0], tuple(same)) for same in found.values()]


def _batch_shapes(layout: Layout, examples: Sequence[Example]) -> list[Shapes]:
    """Return the shapes of the micro batches of each data-parallel rank, as in `own_micro_batches`."""
    pairs = TokenizedPairs.of(examples)
    source_B, target_B = pairs.lengths()
    shapes = [
        (len(part_B), int(source_B[part_B].max()), int(target_B[part_B].max()), int(target_B[part_B].sum()))
        if len(part_B)
        else ()
        for part_B in cut_by_cost(pairs, layout.dp * layout.micro_batches)
    ]
    return [tuple(shapes[index :: layout.dp]) for index in range(layout.dp)]


def _vocabulary_rows(settings: TransformerSettings, layout: Layout) -> list[int]:
    ranks = tuple(range(layout.mp))
    bounds = (part_bounds(settings.model.vocabulary_size, Group(ranks, index)) for index in ranks)
    return [stop - start for start, stop in bounds]
