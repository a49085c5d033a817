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

from launcher.core.frozen import frozen
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


@frozen
class GradientPiece:
    """A part of the gradient of what a rank owns."""

    elements: slice  # of the part
    values: Tensor  # of one dim


class SeparateGradients:
    """The gradients of a rank that no other one shares its parameters with: a tensor for each, as autograd has made it.

    Nothing is sent, so that a copy in a flat tensor would take time and serve nobody.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], layout: FlatLayout) -> None:
        self._parameters = dict(parameters)
        self._layout = layout
        for parameter in parameters.values():
            parameter.grad = torch.zeros_like(parameter)

    def zero(self, *, backward_passes: int = 0) -> None:
        """Begin a step, without gradients."""
        del backward_passes
        for parameter in self._parameters.values():
            parameter.grad = None

    def reduce(self) -> None:
        """Make zeros of the gradients of parameters that no backward pass has reached."""
        for parameter in self._parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    def of(self, part: OwnPart) -> list[GradientPiece]:
        """Return the gradients of the parameters of a part, in their order."""
        pieces = []
        for name, elements in self._layout.elements.items():
            if part.flat.start <= elements.start < part.flat.stop:
                gradient = self._parameters[name].grad
                assert gradient is not None, "`reduce` has seen to it"
                start = elements.start - part.flat.start
                pieces.append(GradientPiece(slice(start, start + len(elements)), gradient.view(-1)))
        return pieces

    def bytes_held(self) -> int:
        """Return the bytes of this rank's gradients."""
        return sum(parameter.grad.nbytes for parameter in self._parameters.values() if parameter.grad is not None)


class Gradients:
    """Owns the storage of the gradients of `parameters`, in `dtype` on `device`.

    The first backward pass of a step makes each gradient anew, and it is copied to the flat tensor as soon as it is there:
    that passes over less memory than to add it to zeros. Where the flat tensor is of the parameters' own type, `grad` is a
    view of it from then on, to which autograd adds; otherwise later gradients are added to it, and not kept in `grad`.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        layout: FlatLayout,
        *,
        device: torch.device,
        dtype: torch.dtype,
        dp: Group,
        awaited: str | None = None,
    ) -> None:
        """Take a `layout` for as many ranks as `dp` has, or for one, if each of them owns everything.

        `awaited`: the parameter to whose gradient `add_awaited` adds once in every step, after all backward passes.
        """
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
        self._parameters = tuple(parameters.values())
        self._unfilled: dict[int, Tensor] = {}  # the views of gradients that have got nothing in this step yet
        self._views: dict[int, Tensor] = {}  # of all, by the parameters' numbers
        self._awaited: tuple[int, int] | None = None  # its number, and its group
        for index, (name, parameter) in enumerate(parameters.items()):
            elements = layout.elements[name]
            view = view_of(self.flat, elements, parameter.shape)
            [group] = [number for number, each in enumerate(layout.groups) if elements.start in each]
            self._parameter_counts[group] += 1
            self._views[index] = view
            if name == awaited:
                self._awaited = index, group
            if parameter.dtype == dtype:
                parameter.grad = view
            parameter.register_post_accumulate_grad_hook(partial(self._take, index, group))

    def zero(self, *, backward_passes: int = 0) -> None:
        """Begin a step, without gradients. The sum of a group begins after so many backward passes, or in `reduce` where 0."""
        for parameter in self._parameters:
            parameter.grad = None
        self._unfilled = dict(self._views)
        self._reductions = []
        self._passes_left = None
        if self._overlaps and backward_passes:
            self._passes_left = [backward_passes * count for count in self._parameter_counts]
            if self._awaited is not None:
                self._passes_left[self._awaited[1]] += 1

    def reduce(self) -> None:
        """Sum over the data-parallel ranks, of which each gets what it owns. Blocks until all have called it."""
        for view in self._unfilled.values():  # of parameters that no backward pass has reached
            view.zero_()
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

    def of(self, part: OwnPart) -> list[GradientPiece]:
        """Return the reduced gradient of a part that this rank owns, in one piece."""
        return [GradientPiece(slice(0, part.state.stop - part.state.start), self._own[part.state])]

    def bytes_held(self) -> int:
        """Return the bytes of this rank's gradients, with the buffers that they are summed in."""
        buffers = {tensor.data_ptr(): tensor for tensor in (self.flat, self._own, self._received) if tensor is not None}
        return sum(tensor.nbytes for tensor in buffers.values())

    @property
    def _overlaps(self) -> bool:
        """True if groups may be summed before backward ends: a single group is complete only at its end."""
        return self._dp.size > 1 and len(self._layout.groups) > 1

    def add_awaited(self, gradient: Tensor) -> None:
        """Add another stage's part to the gradient that waits for it."""
        assert self._awaited is not None, "its parameter is among these"
        index, group = self._awaited
        self._add(index, gradient)
        self._count(group)

    def _take(self, index: int, group: int, parameter: Tensor) -> None:
        """Take the gradient that a backward pass has made, or added to, for one parameter of `group`."""
        view, gradient = self._views[index], parameter.grad
        assert gradient is not None, "autograd has just made it"
        if gradient.data_ptr() != view.data_ptr():  # a new one
            self._add(index, gradient)
            parameter.grad = view if parameter.dtype == view.dtype else None
        self._count(group)

    def _add(self, index: int, gradient: Tensor) -> None:
        """Add a part to a parameter's gradient, or make it the gradient where there is none yet."""
        if self._unfilled.pop(index, None) is not None:
            self._views[index].copy_(gradient)
        else:
            self._views[index].add_(gradient)

    def _count(self, group: int) -> None:
        """Take note that a gradient of `group` has got one of its parts; begin the sums of the groups that have all now."""
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
