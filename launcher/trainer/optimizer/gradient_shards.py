"""Gradients that stay sharded over the data-parallel ranks between the backward passes of a step.

Each backward pass collects the gradients of a group in a tensor. Once it is complete, it is summed over the
data-parallel ranks and freed. Each rank adds its slice of the sum to its slices from earlier passes. So gradients are
summed once per micro batch (MindSpore's `gradient_accumulation_shard`).

Every rank sums the groups in the same order. If backward does not reach a parameter on some rank, its group stays
incomplete there. Then `reduce` makes up for that sum and all later ones. A gradient may be included in any of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from launcher.trainer.optimizer.flat import FlatLayout, OwnPart, view_of
from launcher.trainer.optimizer.gradients import GradientPiece
from launcher.trainer.parallel.collectives import Group, all_to_all, start_reduce_scatter
from launcher.trainer.telemetry import recording
from launcher.trainer.telemetry.step_time import waiting


class GradientShards:
    """A data-parallel rank's shard of the gradients of `parameters`, accumulated in `dtype`."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        layout: FlatLayout,
        *,
        dtype: torch.dtype,
        device: torch.device,
        dp: Group,
        awaited: str | None = None,
    ) -> None:
        """Register hooks on `parameters`.

        `awaited` is the parameter shared with another stage. Call `add_awaited` for it once per step, after all
        backward passes.
        """
        self._parameters, self._layout, self._dp = parameters, layout, dp
        self._own = torch.zeros(layout.state_size, device=device, dtype=dtype)
        self._full: dict[int, Tensor] = {}  # by group number: gradients that are not summed yet
        self._parameter_counts = Counter(layout.group_of.values())  # by group number
        self._taken: Counter[int] = Counter()  # gradients of each group in this step
        self._awaited = awaited
        self._late: Tensor | None = None  # the gradient from `add_awaited`
        self._sums, self._expected = 0, 0  # number of group sums in this step: started, and total
        for name, parameter in parameters.items():
            parameter.register_post_accumulate_grad_hook(partial(self._passed, name))

    def zero(self, *, backward_passes: int = 0) -> None:
        """Set all gradients to zero, and prepare a step with `backward_passes` backward passes.

        With 0, `grad` accumulates the gradients and `reduce` sums them.
        """
        self._own.zero_()
        self._full.clear()
        self._taken.clear()
        self._sums, self._expected = 0, backward_passes * len(self._layout.groups)
        self._late = None
        for parameter in self._parameters.values():
            parameter.grad = None

    def add_awaited(self, gradient: Tensor) -> None:
        assert self._awaited is not None, "its parameter is among these"
        if self._expected:
            self._late = gradient
        else:
            parameter = self._parameters[self._awaited]
            parameter.grad = gradient.clone() if parameter.grad is None else parameter.grad + gradient

    def reduce(self) -> None:
        """Sum the remaining gradients over the data-parallel ranks. Blocks until all of these ranks call it."""
        if not self._expected:
            self._expected = len(self._layout.groups)
            for name, parameter in self._parameters.items():
                if parameter.grad is not None:
                    self._take(name, parameter)
        while self._sums < self._expected:
            self._sum_next()
        if self._late is not None:
            assert self._awaited is not None, "add_awaited requires it"
            self._put(self._awaited, self._late)
            self._sum(self._layout.group_of[self._awaited])

    @property
    def held(self) -> list[Tensor]:
        return [self._own, *self._full.values()]

    def of(self, part: OwnPart) -> list[GradientPiece]:
        return [(slice(0, part.state.stop - part.state.start), self._own[part.state])]

    def _passed(self, name: str, parameter: Tensor) -> None:
        """Collect the gradient of a parameter after a backward pass, and sum the gradient groups that are complete."""
        if not self._expected:
            return
        self._take(name, parameter)
        self._taken[self._layout.group_of[name]] += 1
        while self._sums < self._expected:
            passes, group = divmod(self._sums, len(self._layout.groups))
            if self._taken[group] < (passes + 1) * self._parameter_counts[group]:
                return
            self._sum_next()

    def _take(self, name: str, parameter: Tensor) -> None:
        assert parameter.grad is not None, "autograd has just computed it"
        self._put(name, parameter.grad)
        parameter.grad = None

    def _put(self, name: str, gradient: Tensor) -> None:
        number = self._layout.group_of[name]
        group, elements = self._layout.groups[number], self._layout.elements[name]
        if number not in self._full:
            self._full[number] = self._own.new_zeros(len(group))
        here = range(elements.start - group.start, elements.stop - group.start)
        view_of(self._full[number], here, gradient.shape).add_(gradient)

    def _sum_next(self) -> None:
        self._sums += 1
        self._sum((self._sums - 1) % len(self._layout.groups))

    def _sum(self, number: int) -> None:
        """Sum the gradients of a group over the data-parallel ranks, and add this rank's slice to its shard."""
        group = self._layout.groups[number]
        full, own = self._full.pop(number, None), self._own[self._layout.state_of(group)]
        full = own.new_zeros(len(group)) if full is None else full
        with recording.within("optimizer", "optimizer"):  # backward may still be running
            if self._dp.scatters:
                share = full.new_empty(len(own))
                work = start_reduce_scatter(share, full, self._dp, what="gradients")
                with waiting:
                    work.wait()
                own += share
            else:
                recording.communicated("all_to_all", self._dp.ranks, full.nbytes, "gradients")
                received_RN = full.new_empty(self._dp.size, len(own))
                all_to_all(received_RN.view(-1), full, self._dp)
                own += received_RN.sum(dim=0)
