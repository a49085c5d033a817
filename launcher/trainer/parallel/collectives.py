"""Collectives over torch.distributed or shared memory, without message tags.

In a group of one, `all_reduce` and `shared_tensor` do nothing, and other functions that communicate must not be called.
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
    """The ranks that differ along one axis only, in the order of their coordinate on that axis."""

    ranks: tuple[int, ...]
    index: int  # of this rank in `ranks`
    handle: dist.ProcessGroup | None = None  # None: a group of one never communicates
    shared_memory: SharedMemory | None = None  # used by blocking collectives; None: the backend, as for all `start_*`

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def scatters(self) -> bool:
        """True if reduce_scatter sends each rank only its slice. gloo's is an all_reduce and a copy."""
        return self.handle is not None and dist.get_backend(self.handle) != "gloo"


ALONE = Group(ranks=(0,), index=0)


def all_reduce(tensor: Tensor, group: Group, operation: Literal["sum", "max"] = "sum", *, what: str = "sum") -> Tensor:
    """Set a contiguous `tensor` to its sum or maximum over the group, and return it. Blocks on CPU backends."""
    if group.size > 1:
        recording.communicated("all_reduce", group.ranks, tensor.nbytes, what)
        with waiting:
            if group.shared_memory is not None:
                group.shared_memory.all_reduce(tensor, operation)
            else:
                dist.all_reduce(tensor, op=_OPERATIONS[operation], group=group.handle)
    return tensor


def start_all_reduce(tensor: Tensor, group: Group, *, what: str = "sum") -> dist.Work:
    """Start an all_reduce of `tensor` by the backend. See `start_reduce_scatter`."""
    recording.communicated("all_reduce", group.ranks, tensor.nbytes, what)
    work = dist.all_reduce(tensor, group=group.handle, async_op=True)
    assert work is not None, "it is asynchronous, and this rank is in the group"
    return work


def start_reduce_scatter(output: Tensor, tensor: Tensor, group: Group, *, what: str = "sum") -> dist.Work:
    """Start a reduce_scatter by the backend: set `output` to this rank's slice of the sum of `tensor`.

    All ranks must start the collectives of a group in the same order. Wait for the result inside `with waiting`.
    """
    recording.communicated("reduce_scatter", group.ranks, tensor.nbytes, what)
    return _REDUCE_SCATTER(output, tensor, group=group.handle, async_op=True)


def start_exchange(output: Tensor, tensor: Tensor, group: Group, *, what: str = "slices") -> dist.Work:
    """Start to gather this rank's slice of every rank's `tensor` into `output`. See `start_reduce_scatter`."""
    recording.communicated("all_to_all", group.ranks, tensor.nbytes, what)
    return dist.all_to_all_single(output, tensor, group=group.handle, async_op=True)


def shared_tensor(rows: int, columns: int, dtype: torch.dtype, group: Group) -> Tensor | None:
    """Return a tensor of zeros in shared memory, or None on all ranks of the group if they do not share memory.

    All ranks must call it with the same arguments. If there is not enough memory, the first rank prints a line.
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
    """Wait for all ranks of a group with shared memory. Then all see what each wrote to it before."""
    assert group.shared_memory is not None, "shared_tensor has created one"
    with waiting:
        group.shared_memory.barrier()


def reduce_scatter_shared(
    output: Tensor, shared_RM: Tensor, columns: slice, group: Group, *, what: str = "sum"
) -> None:
    """Set `output` to the sum over rows of some columns of a `shared_tensor` with one row per rank.

    Ranks may pass different columns. Do not change a row before the next `barrier`.
    """
    assert group.shared_memory is not None, "shared_tensor has created one"
    # The columns of all ranks are counted, which are equally many.
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
    """Gather this rank's slice of every rank's `tensor` into `output`. Both are contiguous. Blocks on CPU backends."""
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
    """Identity in forward. Backward sums the gradients because every rank used the tensor for a different part."""

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
    """The sum of the ranks' partial results in forward. Backward returns the gradient unchanged."""

    @staticmethod
    def forward(ctx: Any, partial: Tensor, group: Group) -> Tensor:
        ctx.mark_dirty(partial)
        return all_reduce(partial, group, what="output")

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return upstream[0], None


def enter_model_parallel(tensor: Tensor, group: Group) -> Tensor:
    """Return `tensor` as the input of a sharded computation; backward sums its gradient ("f" of Megatron-LM).

    See arXiv:1909.08053.
    """
    if recording.active is None:
        return _EnterModelParallel.apply(tensor, group)
    return recording.active.applied("enter", lambda: _EnterModelParallel.apply(tensor, group), [tensor], own="enter")


def leave_model_parallel(partial: Tensor, group: Group) -> Tensor:
    """Return the sum of the partial results of a sharded computation, on every rank ("g" of Megatron-LM).

    Overwrites `partial`, which must be a contiguous, computed tensor without other uses.
    """
    return _LeaveModelParallel.apply(partial, group)
