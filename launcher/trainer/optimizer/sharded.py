"""An optimizer with sharded state (ZeRO stage 1; Rajbhandari et al. 2020, arXiv:1910.02054).

A step has four phases:

    1. reduce     sum the gradients over the data-parallel ranks; each rank receives its slices
                  (before it, the stages add the gradients of a shared weight, `shared_weight.py`)
    2. norm       compute the gradient norm of the full model from the slices of all ranks
    3. update     apply the rule (`update_rules.py`) to this rank's slices, unless the norm is not finite
    4. publish    gather the updated weights on every rank

Data-parallel ranks with shared memory store their parameters there once. Then an update is visible to all of them.

If state is not sharded, every rank owns all of it in phases 1 to 3, and nothing is published. Checkpoints have the same
files in both cases.

`tests/programs/rank_memory.py` computes the memory of all this. In addition, a backward pass with sharded
gradients temporarily needs up to three times the gradients of one group.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from launcher.core.frozen import frozen
from launcher.mesh.boxes import Box
from launcher.trainer.optimizer.flat import arrange, move_into_flat
from launcher.trainer.optimizer.gradient_shards import GradientShards
from launcher.trainer.optimizer.gradients import Gradients, SeparateGradients
from launcher.trainer.optimizer.shared_weight import SharedWeight
from launcher.trainer.optimizer.update_rules import Rule, Step, Tensors
from launcher.trainer.parallel.collectives import Group, all_gather, all_reduce, barrier, host_values, shared_tensor
from launcher.trainer.parallel.placement import Placement

NORM_ROW = 16_384  # elements


@frozen
class OwnedBox:
    """A box (a part) of a parameter that this rank owns, with views of its weight and optimizer state."""

    name: str
    box: Box  # of the single-device model's parameter
    values: tuple[Tensor, ...]  # in the order of the optimizer's `kinds`, in float32 or wider
    is_replica: bool  # an earlier model-parallel rank owns the same box


class ShardedOptimizer:
    """An optimizer that keeps `parameters` and their gradients in its own flat tensors.

    If parameters are less precise than float32, each rank keeps float32 master weights of its slices, so that updates
    below the rounding error add up. Gradients and the rule's state are then float32, too.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        placed: Mapping[str, Placement],
        rule: Rule,
        *,
        clip_norm: float = 0.0,
        gradient_groups: int = 1,
        shards_state: bool = True,
        shards_gradients: bool = False,
        empty: Tensor | None = None,
        dp: Group,
        mp: Group,
        pp: Group,
        shared: SharedWeight | None = None,
    ) -> None:
        """Create the optimizer. `parameters` are in the model's order, and `placed` has the placement of each.

        A gradient with a norm above `clip_norm` is scaled down to that norm; 0 disables clipping. `empty` gives the
        type and device if `parameters` may be empty. `shared` is the weight that another stage uses, too. Only the
        stage that owns it has it in `parameters`. With `shards_gradients`, gradients are sharded between the backward
        passes of a step, which requires `shards_state`; without that, every rank updates all weights.
        """
        self._rule, self._clip_norm = rule, clip_norm
        self._dp, self._mp, self._pp = dp, mp, pp
        self._placed, self._shared_weight = placed, shared
        self.layout = arrange({name: placed[name] for name in parameters}, dp=dp.size, groups=gradient_groups)
        self._copies = 1 if shards_state else dp.size  # number of data-parallel ranks that update the same elements
        self._updated = self.layout if shards_state else dataclasses.replace(self.layout, dp=1)
        self._parts = self._updated.own_parts(dp.index if shards_state else 0)
        first = next(iter(parameters.values())) if empty is None else empty
        shared_1N = shared_tensor(1, self.layout.size, first.dtype, dp) if shards_state and self.layout.size else None
        self._is_shared = shared_1N is not None
        self._parameters = first.new_zeros(self.layout.size) if shared_1N is None else shared_1N[0]
        move_into_flat(parameters, self.layout, self._parameters)
        self._like = first.new_empty(0, dtype=torch.promote_types(first.dtype, torch.float32))
        self._gradients = self._gradients_of(parameters, are_sharded=shards_gradients)
        self._state = tuple(self._like.new_zeros(self._updated.state_size) for _ in rule.state)
        self._master: Tensor | None = None
        if self._like.dtype != self._parameters.dtype:
            self._master = self._like.new_empty(self._updated.state_size)
            for part in self._parts:
                self._master[part.state] = self._parameters[part.flat]
        self._steps = 0
        self.votes: tuple[float, ...] = ()  # of the last step, summed over all ranks

    def _gradients_of(
        self, parameters: Mapping[str, nn.Parameter], *, are_sharded: bool
    ) -> SeparateGradients | GradientShards | Gradients:
        """Create the gradient storage. If no gradient is summed or converted, each parameter has its own tensor."""
        dp, shared, dtype, device = self._dp, self._shared_weight, self._like.dtype, self._like.device
        if dp.size == 1 and dtype == self._parameters.dtype and shared is None and parameters:
            return SeparateGradients(parameters, self.layout)
        awaited = shared.name if shared is not None and shared.is_owner else None
        if are_sharded and dp.size > 1:
            return GradientShards(parameters, self.layout, dtype=dtype, device=device, dp=dp, awaited=awaited)
        return Gradients(parameters, self._updated, dtype=dtype, device=device, dp=dp, awaited=awaited)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of the tensors in `OwnedBox.values`: "weight", then the state of the update rule."""
        return ("weight", *self._rule.state)

    @property
    def state_dtype(self) -> torch.dtype:
        """The dtype of the update rule's state, and of the weights in a checkpoint."""
        return self._like.dtype

    @property
    def held(self) -> dict[str, list[Tensor]]:
        """The tensors that this rank keeps: weights, gradients, and moments with float32 copies of weights.

        Several of them may share memory.
        """
        moments = [*self._state, *([] if self._master is None else [self._master])]
        shared = [] if self._shared_weight is None else [self._shared_weight]
        return {
            "weights": [self._parameters, *(each.parameter.detach() for each in shared)],
            "gradients": [*self._gradients.held, *(each.gradient for each in shared)],
            "moments": moments,
        }

    def zero_gradients(self, *, backward_passes: int = 0) -> None:
        """Start a step with `backward_passes` backward passes. Each group of gradients is summed when it is complete.

        The sum is over the data-parallel ranks. With 0, only `step` sums gradients.
        """
        self._gradients.zero(backward_passes=backward_passes)
        if self._shared_weight is not None:
            self._shared_weight.zero_gradient()

    def collect_shared(self) -> None:
        """After all backward passes, send the gradient of a shared weight to the stage that owns the weight.

        `step` calls it. All ranks of the run must call it.
        """
        if self._shared_weight is not None:
            assert not isinstance(self._gradients, SeparateGradients), "a shared weight has other gradients"
            self._shared_weight.collect(self._gradients.add_awaited)

    def step(self, learning_rate: float, votes: Callable[[], tuple[float, ...]] = tuple) -> float:
        """Update the weights, and return the gradient norm of the full model before clipping. All ranks must call it.

        If the norm, which is the same on all ranks, is not finite, no rank changes its weights or state. `votes`
        returns numbers to be summed over all ranks together with the norm. It is called as late as possible, and must
        return the same number of values on all ranks.
        """
        self.collect_shared()
        self._gradients.reduce()
        norm, *counts = self._norm_and(votes())
        self.votes = tuple(counts)
        if math.isfinite(norm):
            self._update(learning_rate, norm)
            self._publish()
        return norm

    def owned_boxes(self) -> Iterator[OwnedBox]:
        """Yield all boxes that this rank owns, in memory order."""
        for part in self.layout.own_parts(self._dp.index):
            at = part.state if self._updated is self.layout else part.flat
            weights = self._parameters[part.flat] if self._master is None else self._master[at]
            state = [values[at] for values in self._state]
            for name, box, here in self.layout.boxes_of(part, self._placed):
                views = tuple(values[here].view(box.size) for values in (weights, *state))
                yield OwnedBox(name, box, views, is_replica=not self._placed[name].is_first)

    def restored(self, steps: int) -> None:
        """Finish a restore after the values of `owned_boxes` were overwritten. All ranks of the run must call it.

        `steps` is the number of steps taken before the state was saved.
        """
        self._steps = steps
        if self._is_shared:
            barrier(self._dp)
        if self._updated is not self.layout:
            kept = self._parameters if self._master is None else self._master
            for values in (kept, *self._state):
                self._gather(values)
        self._publish()

    def not_finite(self) -> list[str]:
        """Return the names of parameters with a non-finite gradient norm in this rank's slices in the last step."""
        found = set()
        for part in self._parts:
            for here, values in self._gradients.of(part):
                begins = part.flat.start + here.start
                for name, elements in self.layout.elements.items():
                    own = values[max(elements.start - begins, 0) : max(elements.stop - begins, 0)]
                    if not math.isfinite(norm_of(own)):
                        found.add(name)
        return [name for name in self.layout.elements if name in found]

    def _norm_and(self, votes: tuple[float, ...]) -> list[float]:
        """Return the gradient norm of the full model, and the sum of each vote over all ranks.

        Parameters replicated over model-parallel ranks count once. Blocks until all ranks have finished backward, so
        parameters in shared memory can be changed afterwards.
        """
        sums = self._like.new_tensor([0.0, *votes])
        squares = sums[:1]
        for part in self._parts:
            norms = [norm_of(values) for _, values in self._gradients.of(part)]
            squares += torch.stack(norms).square().sum() / (part.copies * self._copies)
        for group in (self._mp, self._dp, self._pp):
            all_reduce(sums, group, what="norm of the gradient, votes")
        squares.sqrt_()
        return host_values(sums)

    def _update(self, learning_rate: float, norm: float) -> None:
        self._steps += 1
        divisor = norm / self._clip_norm if 0 < self._clip_norm < norm else None
        step = Step(self._steps, learning_rate, divisor)
        for decays in (True, False):
            parts = [part for part in self._parts if part.decays == decays]
            pieces = [(part, here, values) for part in parts for here, values in self._gradients.of(part)]
            weights = [
                (self._parameters[part.flat] if self._master is None else self._master[part.state])[here]
                for part, here, _ in pieces
            ]
            state = tuple([values[part.state][here] for part, here, _ in pieces] for values in self._state)
            self._rule.update(Tensors(weights, [each for *_, each in pieces], state), step, decays=decays)

    def _publish(self) -> None:
        """Distribute the updated weights to every data-parallel rank, in the model's precision."""
        if self._master is not None:
            for part in self._parts:
                self._parameters[part.flat].copy_(self._master[part.state])
        if self._is_shared:
            barrier(self._dp)
        elif self._updated is self.layout:
            self._gather(self._parameters)
        if self._shared_weight is not None:
            self._shared_weight.publish()

    def _gather(self, flat: Tensor) -> None:
        """Gather a flat tensor on every data-parallel rank. Each rank contributes its slices in `layout`."""
        for group in self.layout.groups if self._dp.size > 1 else ():
            owned = self.layout.owned(group, self._dp.index)
            all_gather(flat[group.start : group.stop], flat[owned.start : owned.stop], self._dp, what="weights")


def norm_of(vector: Tensor) -> Tensor:
    """Return the Euclidean norm of a one-dimensional tensor.

    Computed as the norm of the norms of rows, for accuracy. On the CPU, torch's norm of 5 million float32 elements has
    an error of 1e-4, and of 50 million 4e-3, because it adds small squares to a large sum.
    """
    if vector.numel() <= NORM_ROW:
        return torch.linalg.vector_norm(vector)
    rows = vector.numel() // NORM_ROW
    norms_R = torch.linalg.vector_norm(vector[: rows * NORM_ROW].view(rows, NORM_ROW), dim=1)
    rest_1 = torch.linalg.vector_norm(vector[rows * NORM_ROW :], dim=0, keepdim=True)
    return torch.linalg.vector_norm(torch.cat([norms_R, rest_1]))
