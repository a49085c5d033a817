"""Divides a batch into the parts that ranks compute: micro batches of equally many rows, or the shares of copies."""

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

Rows = tuple[Tensor, ...]  # of a batch: the inputs of a network, each with the rows as its first dim
CHECKED_ROWS = 32  # of the first batch that is checked, unless two parts have more
SMALL_BATCHES, SMALL_ROWS = 6, 8  # that are checked after it


@frozen
class Division:
    """A batch, and its parts: those of each rank, in the order in which it computes them."""

    whole: Rows
    parts: Sequence[Sequence[Rows]]


def check_layout(layout: Layout, batch_size: int) -> None:
    """Refuse batches that cannot be cut into parts of equally many rows.

    Raises:
        RefusedLayoutError: with the nearest sizes that can.
    """
    parts = layout.dp * layout.micro_batches
    if batch_size % parts:
        below = batch_size - batch_size % parts
        near = " or ".join(str(size) for size in (below, below + parts) if size)
        raise RefusedLayoutError(
            f"batch_size = {batch_size} cannot be divided by dp * micro batches = {layout.dp} * {layout.micro_batches}",
            hint=f"batch_size = {near}",
        )


def micro_batches(rows: int, layout: Layout, coordinate: Coordinate) -> list[slice]:
    """Return the rows of a global batch that are this rank's micro batches: parts of equally many rows, dealt to dp ranks in turn."""
    size = rows // (layout.dp * layout.micro_batches)
    return [
        slice(part * size, (part + 1) * size)
        for part in range(coordinate.dp, layout.dp * layout.micro_batches, layout.dp)
    ]


def divisions_to_check(
    samples: int, batch_size: int, layout: Layout, collate: Callable[[Sequence[int]], Rows]
) -> Iterator[Division]:
    """Yield a batch in parts of as many rows as in training, then small batches; together they cost no more than one step.

    Rows are drawn at random, since neighbouring samples may be alike. Of a large batch only some parts are taken.
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
    """Return what one of the copies takes of each input: its rows of a batch, or the whole input if that is not a batch.

    Raises:
        RefusedLayoutError: the copies do not divide the rows of the first input.
    """
    if copies == 1:
        return tuple(inputs)
    first = inputs[0] if inputs else torch.empty(())
    rows = first.shape[0] if first.dim() else 0
    if not rows or rows % copies:
        raise RefusedLayoutError(
            f"the first input has the shape {tuple(first.shape)}, and {copies} copies share its rows",
            hint=f"a batch that {copies} divides, as the first input",
        )

    def share(each: Tensor) -> Tensor:
        is_batch = each.dim() > 0 and len(each) > 0 and len(each) % rows == 0
        return each.chunk(copies)[copy] if is_batch else each

    return tuple(map(share, inputs))


def of_rank_0(tensor: Tensor, device: torch.device) -> Tensor:
    """Return rank 0's tensor on every rank, on its device. All ranks must call it, with tensors of one shape and type."""
    value = tensor.detach().to(device, copy=True).contiguous()
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.broadcast(value, src=0)
    return value
