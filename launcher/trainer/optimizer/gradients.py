"""The gradients of a rank in one flat tensor, and their sum over the data-parallel ranks.

A rank gets only what it owns of the sum: by reduce_scatter, or, on gloo, whose reduce_scatter is an all_reduce, from the
slices of all ranks, which it adds in their order. That sends half as much. Ranks that share memory have their gradients
there, and each reads those of the others where they are. Where every rank owns everything, it gets all of the sum.

A group of gradients is complete once each of its parameters has had its last backward pass of the step. Its sum begins
then: by the backend while backward goes on to fill other groups, in shared memory at once, so that backward waits for it. A parameter that backward does not reach on some rank leaves its
group incomplete there; such a group begins in `reduce`. Groups begin in their order on every rank, whenever that is, and
nothing else is exchanged by these ranks meanwhile: collectives have no tags by which messages could be told apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from launcher.trainer.optimizer.flat import FlatLayout, OwnPart, view_of
from launcher.trainer.parallel.collectives import (
    Group,
    barrier,
    reduce_scatter_shared,
    shared_tensor,
    start_all_reduce,
    start_exchange,
    start_reduce_scatter,
)
from launcher.trainer.parallel.waiting import waiting
from launcher.trainer.telemetry import recording


class Gradients:
    """Owns the storage of the gradients of `parameters`, in `dtype`.

    Where that is the parameters' own type, their `grad` is a view of the flat tensor, to which autograd adds. Otherwise
    each gradient is added to the flat tensor as soon as autograd has made it, and not kept in `grad`.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        layout: FlatLayout,
        *,
        dtype: torch.dtype,
        device: torch.device,
        dp: Group,
    ) -> None:
        """Take a `layout` for as many ranks as `dp` has, or for one, if each of them owns everything."""
        self._layout, self._dp = layout, dp
        self._owns_all = layout.dp < dp.size
        self._shared_RN = shared_tensor(dp.size, layout.size, dtype, dp) if layout.size else None
        if self._shared_RN is not None:
            self.flat = self._shared_RN[dp.index]
        else:
            self.flat = torch.zeros(layout.size, device=device, dtype=dtype)
        # What this rank owns of the sum; and of every rank's gradients, where the backend does not add them on the way.
        sums_in_place = dp.size == 1 or (self._owns_all and self._shared_RN is None)
        self._own = self.flat if sums_in_place else self.flat.new_empty(layout.state_size)
        exchanges = not sums_in_place and not dp.scatters and self._shared_RN is None
        self._received = torch.empty_like(self.flat) if exchanges else None
        self._parameter_counts = [0] * len(layout.groups)
        self._passes_left: list[int] | None = None  # of each group; None: no group begins before `reduce`
        self._reductions: list[dist.Work | None] = []  # of the groups that have begun
        for name, parameter in parameters.items():
            elements = layout.elements[name]
            view = view_of(self.flat, elements, parameter.shape)
            [group] = [index for index, group in enumerate(layout.groups) if elements.start in group]
            self._parameter_counts[group] += 1
            if parameter.dtype == dtype:
                parameter.grad = view
            if parameter.dtype != dtype or self._overlaps:
                parameter.register_post_accumulate_grad_hook(partial(self._take, group, view))

    def zero(self, *, backward_passes: int = 0) -> None:
        """Set all gradients to zero. The sum of a group begins after so many backward passes, or in `reduce` where 0."""
        self.flat.zero_()
        self._reductions = []
        self._passes_left = None
        if self._overlaps and backward_passes:
            self._passes_left = [backward_passes * count for count in self._parameter_counts]

    def reduce(self) -> None:
        """Sum over the data-parallel ranks, of which each gets what it owns. Blocks until all have called it."""
        if self._dp.size == 1:
            return
        while len(self._reductions) < len(self._layout.groups):
            self._begin_next()
        for group, work in zip(self._layout.groups, self._reductions, strict=True):
            if work is not None:
                with waiting:
                    work.wait()
            if self._received is not None:
                received_RN = self._received[group.start : group.stop].view(self._dp.size, -1)
                torch.sum(received_RN, dim=0, out=self._own[self._layout.state_of(group)])
        if self._shared_RN is not None:
            barrier(self._dp)  # nobody changes gradients that others still read

    def of(self, part: OwnPart) -> Tensor:
        """Return the reduced gradient of a part that this rank owns."""
        return self._own[part.state]

    def bytes_held(self) -> int:
        """Return the bytes of this rank's gradients, with the buffers that they are summed in."""
        buffers = {tensor.data_ptr(): tensor for tensor in (self.flat, self._own, self._received) if tensor is not None}
        return sum(tensor.nbytes for tensor in buffers.values())

    @property
    def _overlaps(self) -> bool:
        """True if groups may be summed before backward ends: a single group is complete only at its end."""
        return self._dp.size > 1 and len(self._layout.groups) > 1

    def _take(self, group: int, view: Tensor, parameter: Tensor) -> None:
        """Take note of the gradient that a backward pass has added for one parameter of `group`."""
        if parameter.dtype != view.dtype:
            assert parameter.grad is not None, "autograd has just made it"
            view.add_(parameter.grad)
            parameter.grad = None
        if self._passes_left is None:
            return
        if group < len(self._reductions):
            raise RuntimeError("a gradient has changed after its group was complete: there are more backward passes")
        self._passes_left[group] -= 1
        while len(self._reductions) < len(self._passes_left) and self._passes_left[len(self._reductions)] == 0:
            self._begin_next()

    def _begin_next(self) -> None:
        group = self._layout.groups[len(self._reductions)]
        tensor, own = self.flat[group.start : group.stop], self._own[self._layout.state_of(group)]
        work: dist.Work | None = None
        with recording.within("optimizer", "optimizer"):  # also where backward goes on
            if self._shared_RN is not None:
                owned = self._layout.owned(group, 0 if self._owns_all else self._dp.index)
                columns = slice(owned.start, owned.stop)
                reduce_scatter_shared(own, self._shared_RN, columns, self._dp, what="gradients")
            elif self._owns_all:
                work = start_all_reduce(tensor, self._dp, what="gradients")
            elif self._received is None:
                work = start_reduce_scatter(own, tensor, self._dp, what="gradients")
            else:
                received = self._received[group.start : group.stop]
                work = start_exchange(received, tensor, self._dp, what="gradients")
        self._reductions.append(work)
