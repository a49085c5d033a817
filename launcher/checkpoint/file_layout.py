"""Plan the files of a checkpoint: their writers and their content, for each value of the setting `checkpoint.files`.

A rank's part is the state its optimizer owns: data-parallel ranks share the state of their model slice (ZeRO-1).

    files        written by                       content of a file                replicas of an element
    owned        every rank                       its part                         1
    slices       every rank                       full slice of its (pp, mp)       dp
    one_copy     ranks of data-parallel copy 0    full slice of its (pp, mp)       1
    integrated   rank 0                           the model                        1

Parameters that model parallelism does not split (norms, some biases) are in the slices of all model-parallel ranks, so
`slices` and `one_copy` store them mp times as often.
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
    sources: tuple[int, ...]  # the ranks whose parts it contains

    @property
    def is_a_part(self) -> bool:
        return self.sources == (self.writer,)


def planned_files(way: str, layout: Layout) -> list[PlannedFile]:
    """Return the tensor files of a checkpoint with the file layout `way`, sorted by the rank that writes them.

    >>> [(file.name, file.sources) for file in planned_files("one_copy", Layout(dp=2, mp=2))]
    [('rank0.safetensors', (0, 2)), ('rank1.safetensors', (1, 3))]
    """
    ranks = range(layout.world_size)
    if way == INTEGRATED:
        return [PlannedFile(MODEL, 0, tuple(ranks))]
    if way == OWNED:
        peers: dict[int, tuple[int, ...]] = {rank: (rank,) for rank in ranks}
    else:
        peers = {rank: group for group in groups("dp", layout) for rank in group}
    writers = [rank for rank in ranks if way == SLICES or rank == peers[rank][0]]
    return [PlannedFile(f"rank{rank}.safetensors", rank, peers[rank]) for rank in writers]


def keeps_replicas(way: str) -> bool:
    """Return True if the file of a rank also contains parameters, such as norms, that another rank owns."""
    return way in {SLICES, ONE_COPY}


def rank_of(name: str) -> int | None:
    """Return the rank in a file name such as rank3.safetensors, or None for other file names."""
    match = _OF_RANK.fullmatch(name)
    return int(match[1]) if match else None
