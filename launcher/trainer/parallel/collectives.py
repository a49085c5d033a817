"""Collectives over torch.distributed or shared memory, without message tags.

In a group of one rank, `all_reduce` and `shared_tensor` do nothing; the other functions here must not be called.
The argument `what` names the purpose of a collective in strategy reports (telemetry/recording.py).
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
    """Ranks that communicate with each other, in order: for example the ranks along one axis of the layout."""

    ranks: tuple[int, ...]
    index: int  # of this rank in `ranks`
    handle: dist.ProcessGroup | None = None  # None: a group of one never communicates
    shared_memory: SharedMemory | None = None  # used by blocking collectives; None: the backend, as for all `start_*`

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def scatters(self) -> bool:
        """True if reduce_scatter sends each rank only its slice. gloo runs an all_reduce and copies the slice."""
        return self.handle is not None and dist.get_backend(self.handle) != "gloo"


ALONE = Group(ranks=(0,), index=0)


def all_reduce(tensor: Tensor, group: Group, operation: Literal["sum", "max"] = "sum", *, what: str = "sum") -> Tensor:
    """Set a contiguous `tensor` to its sum or maximum over the group; return it. Blocks on CPU backends."""
    if group.size > 1:
        recording.communicated("all_reduce", group.ranks, tensor.nbytes, what)
        with waiting:
            if group.shared_memory is not None:
                group.shared_memory.all_reduce(tensor, operation)
            else:
                dist.all_reduce(tensor, op=_OPERATIONS[operation], group=group.handle)
    return tensor


def start_all_reduce(tensor: Tensor, group: Group, *, what: str = "sum") -> dist.Work:
    """Start an asynchronous all_reduce (sum) of `tensor`; return its handle. See `start_reduce_scatter` for rules."""
    recording.communicated("all_reduce", group.ranks, tensor.nbytes, what)
    work = dist.all_reduce(tensor, group=group.handle, async_op=True)
    assert work is not None, "it is asynchronous, and this rank is in the group"
    return work


def start_reduce_scatter(output: Tensor, tensor: Tensor, group: Group, *, what: str = "sum") -> dist.Work:
    """Start an asynchronous reduce_scatter, which sets `output` to this rank's slice of the sum; return its handle.

    All ranks must start a group's collectives in the same order. Call the handle's `wait` inside `with waiting`, which
    measures the time. The backend transfers the data even if the group has shared memory.
    """
    recording.communicated("reduce_scatter", group.ranks, tensor.nbytes, what)
    return _REDUCE_SCATTER(output, tensor, group=group.handle, async_op=True)


def start_exchange(output: Tensor, tensor: Tensor, group: Group, *, what: str = "slices") -> dist.Work:
    """Start an asynchronous all_to_all into `output`; return its handle. See `start_reduce_scatter` for rules."""
    recording.communicated("all_to_all", group.ranks, tensor.nbytes, what)
    return dist.all_to_all_single(output, tensor, group=group.handle, async_op=True)


def shared_tensor(rows: int, columns: int, dtype: torch.dtype, group: Group) -> Tensor | None:
    """Return a tensor of zeros in the memory that the group's ranks share, or None if they share none or too little.

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
    """Wait until all ranks of the group have called this. Then each sees the others' writes to shared memory."""
    assert group.shared_memory is not None, "shared_tensor has created one"
    with waiting:
        group.shared_memory.barrier()


def reduce_scatter_shared(
    output: Tensor, shared_RM: Tensor, columns: slice, group: Group, *, what: str = "sum"
) -> None:
    """Wait for all ranks, then set `output` to the sum over ranks of some columns of a `shared_tensor`.

    Each rank fills its row of `shared_RM` before. Ranks may pass different columns. Do not change a row before the next
    `barrier`.
    """
    assert group.shared_memory is not None, "shared_tensor has created one"
    # Count the columns of all ranks; each rank has the same number.
    recording.communicated("reduce_scatter", group.ranks, output.nbytes * group.size, what)
    with waiting:
        group.shared_memory.reduce_scatter(output, shared_RM, columns)


def all_gather(output: Tensor, part: Tensor, group: Group, *, what: str = "parts") -> None:
    """Gather `part` from every rank into `output`, in rank order. Blocks on CPU backends.

    `part` may be a view of its slice of `output`.
    """
    recording.communicated("all_gather", group.ranks, output.nbytes, what)
    with waiting:
        if group.shared_memory is not None:
            group.shared_memory.all_gather(output, part)
        else:
            _ALL_GATHER(output, part, group=group.handle)


def all_to_all(output: Tensor, tensor: Tensor, group: Group) -> None:
    """Gather this rank's slice of every rank's `tensor` into `output`; both are contiguous. Blocks on CPU backends."""
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
    """The identity in forward. Backward sums the gradient over the ranks, since each computes a part of the result."""

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
    """The sum of the ranks' partial results in forward, and the identity in backward."""

    @staticmethod
    def forward(ctx: Any, partial: Tensor, group: Group) -> Tensor:
        ctx.mark_dirty(partial)
        return all_reduce(partial, group, what="output")

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return upstream[0], None


def enter_model_parallel(tensor: Tensor, group: Group) -> Tensor:
    """Return the input `tensor` of a sharded computation; backward sums its gradient ("f" in arXiv:1909.08053)."""
    if recording.active is None:
        return _EnterModelParallel.apply(tensor, group)
    return recording.active.applied("enter", lambda: _EnterModelParallel.apply(tensor, group), [tensor], own="enter")


def leave_model_parallel(partial: Tensor, group: Group) -> Tensor:
    """Return the sum of the partial results of a sharded computation, on every rank ("g" in arXiv:1909.08053).

    Overwrites `partial`, which must be a contiguous, computed tensor without other uses.
    """
    return _LeaveModelParallel.apply(partial, group)
