"""Division of a batch into the parts that ranks compute: equal micro batches, or one share for each replica."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from launcher.core.errors import RefusedLayoutError
from launcher.core.frozen import frozen
from launcher.core.records import Layout
from launcher.mesh.coordinates import Coordinate

Rows = tuple[Tensor, ...]  # a batch: the network's inputs, with rows as the first dim
CHECKED_ROWS = 32  # rows of the first checked batch, or more if two parts are larger
SMALL_BATCHES, SMALL_ROWS = 6, 8  # further batches to check, and their rows


@frozen
class Division:
    """A batch and its parts. `parts[rank]` lists the parts of one rank in the order of computation."""

    whole: Rows
    parts: Sequence[Sequence[Rows]]


def check_layout(layout: Layout, batch_size: int) -> None:
    """Check that a batch can be divided into equal micro batches for the data-parallel ranks.

    Raises:
        RefusedLayoutError: it does not. The hint has the nearest valid batch sizes.
    """
    parts = layout.dp * layout.micro_batches
    if batch_size % parts:
        below = batch_size - batch_size % parts
        near = " or ".join(str(size) for size in (below, below + parts) if size)
        raise RefusedLayoutError(
            f"batch_size = {batch_size} is not divisible by dp * micro batches = {layout.dp} * {layout.micro_batches}",
            hint=f"set batch_size = {near}",
        )


def micro_batches(rows: int, layout: Layout, coordinate: Coordinate) -> list[slice]:
    """Return this rank's micro batches as slices of the global batch.

    All micro batches have the same size, and are assigned to the data-parallel ranks in turn.
    """
    size = rows // (layout.dp * layout.micro_batches)
    return [
        slice(part * size, (part + 1) * size)
        for part in range(coordinate.dp, layout.dp * layout.micro_batches, layout.dp)
    ]


def divisions_to_check(
    samples: int, batch_size: int, layout: Layout, collate: Callable[[Sequence[int]], Rows]
) -> Iterator[Division]:
    """Yield batches and their parts, to check that the loss of a batch is the mean loss of its parts.

    The parts of the first batch have the size of the training's micro batches; other batches are small. To save time,
    a batch may have fewer parts than in training. Rows are chosen at random, since neighbouring ones may be similar.
    """
    size = batch_size // (layout.dp * layout.micro_batches)
    for number in range(1 + SMALL_BATCHES):
        wanted = SMALL_ROWS if number else CHECKED_ROWS
        part = min(size, wanted // 2) if number else size
        count = max(2, wanted // part)
        of_rank = min(layout.micro_batches, max(2, count // layout.dp))
        divided = Layout(dp=min(layout.dp, max(1, count // of_rank)), micro_batches=of_rank)
        rows = part * divided.dp * divided.micro_batches
        whole = collate(random.Random(number).sample(range(samples), rows))
        own = [micro_batches(rows, divided, Coordinate(pp=0, dp=dp, mp=0)) for dp in range(divided.dp)]
        yield Division(whole, [[tuple(each[part] for each in whole) for part in parts] for parts in own])


def share_of_copy(inputs: Sequence[Tensor], copies: int, copy: int = 0) -> Rows:
    """Return one replica's share of the inputs. Inputs without a batch dim are returned in full.

    Raises:
        RefusedLayoutError: the batch size, the first dim of the first input, is not divisible by `copies`.
    """
    if copies == 1:
        return tuple(inputs)
    first = inputs[0] if inputs else torch.empty(())
    rows = first.shape[0] if first.dim() else 0
    if not rows or rows % copies:
        raise RefusedLayoutError(
            f"the first input has shape {tuple(first.shape)}, but {rows} rows are not divisible by {copies} replicas",
            hint=f"pass a batch whose size is a multiple of {copies} as the first input",
        )

    def share(each: Tensor) -> Tensor:
        is_batch = each.dim() > 0 and len(each) > 0 and len(each) % rows == 0
        return each.chunk(copies)[copy] if is_batch else each

    return tuple(map(share, inputs))


def of_rank_0(tensor: Tensor, device: torch.device) -> Tensor:
    """Return rank 0's tensor on `device`. All ranks must call this with tensors of the same shape and dtype."""
    value = tensor.detach().to(device, copy=True).contiguous()
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.broadcast(value, src=0)
    return value
