"""The files of a checkpoint, by the setting `checkpoint.files`: who writes each, and of whose parts.

A rank's part is what its optimizer owns: the data-parallel ranks share the state of their slice of the model (ZeRO-1).

    files        who writes                          what a file holds                        each element stands
    owned        every rank                          its part                                 once
    slices       every rank                          the slice of its (pp, mp) place, whole   dp times
    one_copy     the ranks of data-parallel copy 0   the slice of its (pp, mp) place, whole   once
    integrated   rank 0                              the model                                once

What model parallelism does not cut is in the slices of all model-parallel ranks, so of these weights (norms, some biases)
`slices` and `one_copy` hold mp times as many.
"""

from __future__ import annotations

import re

from launcher.core.frozen import frozen
from launcher.core.records import Layout
from launcher.mesh.coordinates import groups

WAYS = OWNED, SLICES, ONE_COPY, INTEGRATED = "owned", "slices", "one_copy", "integrated"
MODEL = "model.safetensors"
_OF_RANK = re.compile(r"rank(0|[1-9][0-9]*)\.safetensors")


@frozen
class PlannedFile:
    name: str
    writer: int  # a rank
    sources: tuple[int, ...]  # the ranks whose parts it holds

    @property
    def is_a_part(self) -> bool:
        """True if it holds the writer's own part and nothing else."""
        return self.sources == (self.writer,)


def planned_files(way: str, layout: Layout) -> list[PlannedFile]:
    """Return the files of tensors, in the order of their writers.

    >>> [(file.name, file.sources) for file in planned_files("one_copy", Layout(dp=2, mp=2))]
    [('rank0.safetensors', (0, 2)), ('rank1.safetensors', (1, 3))]
    """
    ranks = range(layout.world_size)
    if way == INTEGRATED:
        return [PlannedFile(MODEL, 0, tuple(ranks))]
    if way == OWNED:
        return [PlannedFile(name_of_rank(rank), rank, (rank,)) for rank in ranks]
    peers = {rank: group for group in groups("dp", layout) for rank in group}
    writers = [rank for rank in ranks if way == SLICES or rank == peers[rank][0]]
    return [PlannedFile(name_of_rank(rank), rank, peers[rank]) for rank in writers]


def keeps_replicas(way: str) -> bool:
    """Return whether files also hold what other model-parallel ranks own, too."""
    return way in {SLICES, ONE_COPY}


def name_of_rank(rank: int) -> str:
    return f"rank{rank}.safetensors"


def rank_of(name: str) -> int | None:
    """Return the rank whose part or slice a file holds; None if it is of the whole model, or holds no tensors."""
    match = _OF_RANK.fullmatch(name)
    return int(match[1]) if match else None
