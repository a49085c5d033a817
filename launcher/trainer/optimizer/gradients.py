"""The gradients of a rank in one flat tensor, and their sum over the data-parallel ranks.

A rank receives only its own slice of the sum, by reduce_scatter. gloo implements reduce_scatter as an all_reduce. So
with gloo the ranks exchange slices by all_to_all and add them in rank order, which sends half the bytes. Ranks with
shared memory keep their gradients in it and read each other's slices directly. If optimizer state is not sharded, every
rank receives the full sum by all_reduce.

A group of gradients is complete after the last backward pass of each of its parameters in the step. Then its sum
starts. The backend computes it while backward continues; in shared memory it is computed at once, and backward waits.
If backward does not reach a parameter on some rank, its group stays incomplete there, and `reduce` sums it. Every rank
starts the groups in the same order, and exchanges nothing else meanwhile, because collectives have no message tags.
"""

from __future__ import annotations

from collections import Counter
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
from launcher.trainer.telemetry import recording
from launcher.trainer.telemetry.step_time import waiting

# A contiguous piece of the gradient of a part that a rank owns: elements of the part, and their values, of one dim.
GradientPiece = tuple[slice, Tensor]


class SeparateGradients:
    """The gradients of a rank without data parallelism. Each gradient is a separate tensor, as autograd creates it.

    Nothing is sent to other ranks, so copying into a flat tensor would only cost time.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], layout: FlatLayout) -> None:
        self._parameters = dict(parameters)
        self._layout = layout
        for parameter in parameters.values():
            parameter.grad = torch.zeros_like(parameter)

    def zero(self, *, backward_passes: int = 0) -> None:
        del backward_passes
        for parameter in self._parameters.values():
            parameter.grad = None

    def reduce(self) -> None:
        """Create a zero gradient for each parameter that no backward pass has reached."""
        for parameter in self._parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    @property
    def held(self) -> list[Tensor]:
        return [parameter.grad for parameter in self._parameters.values() if parameter.grad is not None]

    def of(self, part: OwnPart) -> list[GradientPiece]:
        """Return the gradients of the parameters in `part`, in memory order."""
        pieces = []
        for name, elements in self._layout.elements.items():
            if part.flat.start <= elements.start < part.flat.stop:
                gradient = self._parameters[name].grad
                assert gradient is not None, "`reduce` has set it"
                start = elements.start - part.flat.start
                pieces.append((slice(start, start + len(elements)), gradient.view(-1)))
        return pieces


class Gradients:
    """A flat tensor that stores the gradients of `parameters` in `dtype` on `device`.

    The first backward pass of a step creates each gradient as a new tensor, which is copied to the flat tensor. This
    touches less memory than adding to zeros. If the parameters have the type `dtype`, `grad` then becomes a view of the
    flat tensor, to which autograd adds. Otherwise later gradients are added to the flat tensor and removed from `grad`.
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
        """Allocate the flat tensor and register hooks on `parameters`.

        `layout` is for all ranks of `dp`, or for one rank if optimizer state is not sharded. `awaited` is the parameter
        shared with another stage. Call `add_awaited` for it once per step, after all backward passes.
        """
        self._layout, self._dp = layout, dp
        self._owns_all = layout.dp < dp.size
        self._shared_RN = shared_tensor(dp.size, layout.size, dtype, dp) if layout.size else None
        if self._shared_RN is not None:
            self.flat = self._shared_RN[dp.index]
        else:
            self.flat = torch.zeros(layout.size, device=device, dtype=dtype)
        # `_own`: this rank's slices of the sum. `_received`: the slices from every rank, if the backend cannot add
        # them.
        sums_in_place = dp.size == 1 or (self._owns_all and self._shared_RN is None)
        self._own = self.flat if sums_in_place else self.flat.new_empty(layout.state_size)
        exchanges = not sums_in_place and not dp.scatters and self._shared_RN is None
        self._received = torch.empty_like(self.flat) if exchanges else None
        self._passes_left: list[int] | None = None  # of each group; None: sum all groups in `reduce`
        self._reductions: list[dist.Work | None] = []  # of the groups whose sum has started
        self._parameters, self._awaited = tuple(parameters.values()), awaited
        self._unfilled: dict[str, Tensor] = {}  # views of gradients that are still empty in this step
        self._views: dict[str, Tensor] = {}  # of all gradients
        for name, parameter in parameters.items():
            self._views[name] = view_of(self.flat, layout.elements[name], parameter.shape)
            if parameter.dtype == dtype:
                parameter.grad = self._views[name]
            parameter.register_post_accumulate_grad_hook(partial(self._take, name))

    def zero(self, *, backward_passes: int = 0) -> None:
        """Discard all gradients, and start a new step.

        The sum of a group starts after `backward_passes` passes over it. With 0, `reduce` computes all sums.
        """
        for parameter in self._parameters:
            parameter.grad = None
        self._unfilled = dict(self._views)
        self._reductions = []
        self._passes_left = None
        # A single group is complete only when backward ends.
        if backward_passes and self._dp.size > 1 and len(self._layout.groups) > 1:
            counts = Counter(self._layout.group_of.values())
            self._passes_left = [backward_passes * counts[number] for number in range(len(self._layout.groups))]
            if self._awaited is not None:
                self._passes_left[self._layout.group_of[self._awaited]] += 1

    def reduce(self) -> None:
        """Sum gradients over the data-parallel ranks, and keep this rank's slices. Blocks until they all call it."""
        for view in self._unfilled.values():  # backward has not reached these parameters
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
            barrier(self._dp)  # other ranks may still read this rank's gradients

    @property
    def held(self) -> list[Tensor]:
        """The gradients, this rank's slices of their sum, and the buffer for other ranks' slices."""
        return [self.flat, self._own, *([] if self._received is None else [self._received])]

    def of(self, part: OwnPart) -> list[GradientPiece]:
        """Return the gradient of `part`, summed over the data-parallel ranks, as a list with one element."""
        return [(slice(0, part.state.stop - part.state.start), self._own[part.state])]

    def add_awaited(self, gradient: Tensor) -> None:
        """Add the gradient from another stage to the gradient of the `awaited` parameter."""
        assert self._awaited is not None, "its parameter is among these"
        self._add(self._awaited, gradient)
        self._count(self._awaited)

    def _take(self, name: str, parameter: Tensor) -> None:
        view, gradient = self._views[name], parameter.grad
        assert gradient is not None, "autograd has just computed it"
        if gradient is not view:  # a new one
            self._add(name, gradient)
            parameter.grad = view if parameter.dtype == view.dtype else None
        self._count(name)

    def _add(self, name: str, gradient: Tensor) -> None:
        """Add `gradient` to the gradient of a parameter. The first gradient in a step replaces the old value."""
        if self._unfilled.pop(name, None) is not None:
            self._views[name].copy_(gradient)
        else:
            self._views[name].add_(gradient)

    def _count(self, name: str) -> None:
        """Count a new gradient of a parameter, and start to sum each group whose gradients are now complete."""
        if self._passes_left is None:
            return
        group = self._layout.group_of[name]
        if group < len(self._reductions):
            raise RuntimeError(
                "there were more backward passes than `backward_passes`: a gradient changed after its reduction started"
            )
        self._passes_left[group] -= 1
        while len(self._reductions) < len(self._passes_left) and self._passes_left[len(self._reductions)] == 0:
            self._begin_next()

    def _begin_next(self) -> None:
        group = self._layout.groups[len(self._reductions)]
        tensor, own = self.flat[group.start : group.stop], self._own[self._layout.state_of(group)]
        work: dist.Work | None = None
        with recording.within("optimizer", "optimizer"):  # backward may still be running
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
