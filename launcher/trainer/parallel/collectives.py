"""Collectives over torch.distributed or shared memory, without message tags.

In a group of one rank, `all_reduce` and `shared_tensor` do nothing; the other functions here must not be called.
Functions named `start_*` use the backend even if the group has shared memory. All ranks must call them in the same
order. Call the handle's `wait` inside `with waiting`, which measures the time. Other collectives block on CPU backends.
The argument `what` names the purpose of a collective in strategy reports (telemetry/recording.py).

A training step reads numbers from a device only in `host_values` and `host_value`, after such a collective. An accelerator
works in the background; reading a value waits for it. `launcher/trainer/simulate` answers these reads.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from launcher.core.frozen import frozen
from launcher.trainer.parallel.shared_memory import SharedMemory
from launcher.trainer.telemetry import recording
from launcher.trainer.telemetry.step_time import waiting


@frozen
class Group:
    """An ordered group of ranks that communicate with each other, such as the ranks along one axis of the layout."""

    ranks: tuple[int, ...]
    index: int  # of this rank in `ranks`
    handle: dist.ProcessGroup | None = None  # None: a group of one never communicates
    shared_memory: SharedMemory | None = None  # used by blocking collectives; None: the backend, as for all `start_*`

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def scatters(self) -> bool:
        """True if reduce_scatter sends each rank only its slice. The gloo backend runs a full all_reduce instead."""
        return self.handle is not None and dist.get_backend(self.handle) != "gloo"


ALONE = Group(ranks=(0,), index=0)


def all_reduce(tensor: Tensor, group: Group, operation: Literal["sum", "max"] = "sum", *, what: str = "sum") -> Tensor:
    """Replace a contiguous `tensor` by its sum or maximum over the group, and return it."""
    if group.size > 1:
        recording.communicated("all_reduce", group.ranks, tensor.nbytes, what)
        with waiting:
            if group.shared_memory is not None:
                group.shared_memory.all_reduce(tensor, operation)
            else:
                dist.all_reduce(tensor, op=_OPERATIONS[operation], group=group.handle)
    return tensor


def start_all_reduce(tensor: Tensor, group: Group, *, what: str = "sum") -> dist.Work:
    """Start an asynchronous all_reduce that sums `tensor` over the group, and return its handle."""
    recording.communicated("all_reduce", group.ranks, tensor.nbytes, what)
    work = dist.all_reduce(tensor, group=group.handle, async_op=True)
    assert work is not None, "it is asynchronous, and this rank is in the group"
    return work


def start_reduce_scatter(output: Tensor, tensor: Tensor, group: Group, *, what: str = "sum") -> dist.Work:
    """Start an asynchronous reduce_scatter that sets `output` to this rank's slice of the sum. Return its handle."""
    recording.communicated("reduce_scatter", group.ranks, tensor.nbytes, what)
    return _REDUCE_SCATTER(output, tensor, group=group.handle, async_op=True)


def start_exchange(output: Tensor, tensor: Tensor, group: Group, *, what: str = "slices") -> dist.Work:
    """Start an asynchronous all_to_all of `tensor` into `output`, and return its handle."""
    recording.communicated("all_to_all", group.ranks, tensor.nbytes, what)
    return dist.all_to_all_single(output, tensor, group=group.handle, async_op=True)


def shared_tensor(rows: int, columns: int, dtype: torch.dtype, group: Group) -> Tensor | None:
    """Return a tensor of zeros in the group's shared memory, or None if there is not enough shared memory.

    All ranks must call it with the same arguments; the result is None on all or on no rank. If there is not enough
    memory, the first rank prints a line.
    """
    if group.shared_memory is None:
        return None
    shared = group.shared_memory.tensor(rows, columns, dtype)
    if shared is None and group.index == 0:
        ranks, backend = ", ".join(map(str, group.ranks)), dist.get_backend(group.handle)
        size = rows * columns * dtype.itemsize >> 20
        print(f"ranks {ranks} use {backend}: not enough shared memory for {size} MiB", flush=True)
    return shared


def barrier(group: Group) -> None:
    """Wait until all ranks have called this. Afterwards each rank sees the other ranks' writes to shared memory."""
    assert group.shared_memory is not None, "shared_tensor has created one"
    with waiting:
        group.shared_memory.barrier()


def reduce_scatter_shared(
    output: Tensor, shared_RM: Tensor, columns: slice, group: Group, *, what: str = "sum"
) -> None:
    """Wait for all ranks. Then sum the given columns of `shared_RM` over all rows into `output`.

    Each rank fills its row of `shared_RM` before. Ranks may pass different columns. Do not change a row before the next
    `barrier`.
    """
    assert group.shared_memory is not None, "shared_tensor has created one"
    # Count the columns of all ranks; each rank has the same number.
    recording.communicated("reduce_scatter", group.ranks, output.nbytes * group.size, what)
    with waiting:
        group.shared_memory.reduce_scatter(output, shared_RM, columns)


def all_gather(output: Tensor, part: Tensor, group: Group, *, what: str = "parts") -> None:
    """Gather `part` from every rank into `output`, in rank order.

    `part` may be a view of its slice of `output`.
    """
    recording.communicated("all_gather", group.ranks, output.nbytes, what)
    with waiting:
        if group.shared_memory is not None:
            group.shared_memory.all_gather(output, part)
        else:
            _ALL_GATHER(output, part, group=group.handle)


def all_to_all(output: Tensor, tensor: Tensor, group: Group) -> None:
    """Gather this rank's slice of every rank's `tensor` into `output`. Both tensors must be contiguous."""
    with waiting:
        if group.shared_memory is not None:
            group.shared_memory.all_to_all(output, tensor)
        else:
            dist.all_to_all_single(output, tensor, group=group.handle)


_OPERATIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}
# torch 2.13 renamed both and warns about the old names.
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class _EnterModelParallel(torch.autograd.Function):
    """An autograd function that is the identity in forward, and sums the gradient over the ranks in backward."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Group) -> Tensor:
        ctx.group, ctx.operator = group, recording.operator()
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        gradient = upstream[0].clone(memory_format=torch.contiguous_format)
        with recording.within(ctx.operator):
            return all_reduce(gradient, ctx.group, what="gradient of input 0"), None


class _LeaveModelParallel(torch.autograd.Function):
    """An autograd function that sums the ranks' partial results in forward, and is the identity in backward."""

    @staticmethod
    def forward(ctx: Any, partial: Tensor, group: Group) -> Tensor:
        ctx.mark_dirty(partial)
        return all_reduce(partial, group, what="output")

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return upstream[0], None


def enter_model_parallel(tensor: Tensor, group: Group) -> Tensor:
    """Return `tensor`, and make backward sum its gradient over the ranks (operator f of arXiv:1909.08053)."""
    if recording.active is None:
        return _EnterModelParallel.apply(tensor, group)
    return recording.active.applied("enter", lambda: _EnterModelParallel.apply(tensor, group), [tensor], own="enter")


def leave_model_parallel(partial: Tensor, group: Group) -> Tensor:
    """Return the sum of the ranks' partial results of a sharded computation (operator g of arXiv:1909.08053).

    Overwrites `partial`, which must be a contiguous, computed tensor without other uses.
    """
    return _LeaveModelParallel.apply(partial, group)


def host_values(vector: Tensor) -> list[float]:
    """Return the values of a one-dimensional tensor as Python numbers."""
    values: list[float] = vector.tolist()
    return values


def host_value(scalar: Tensor) -> float:
    return float(scalar)
