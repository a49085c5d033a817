"""An optimizer whose state is split over the data-parallel ranks (ZeRO stage 1; Rajbhandari et al. 2020, arXiv:1910.02054).

A step has four phases:

    1. reduce     sum the gradients over the data-parallel ranks; each rank goes on with the elements that it owns
                  (a weight that two stages share: over these first, `shared_weight.py`)
    2. norm       the norm of the whole model's gradient, from what all ranks own
    3. update     the rule (`rules.py`) on what this rank owns, unless the norm is not finite
    4. publish    every rank gets what the others have updated

Data-parallel ranks that share memory have their parameters there, once for all of them: what one updates, all have.

If state is not to be sharded, every rank owns all of it in the phases 1 to 3, and there is nothing to publish. Checkpoints are
written and read as if it were sharded.

`launcher/recipes/transformer/memory.py` says how many bytes all of this takes. Besides, a backward pass whose gradients are kept as
shards has up to three times the gradients of one group for a time.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from launcher.core.frozen import frozen
from launcher.mesh.boxes import Box
from launcher.trainer.optimizer.flat import OwnPart, arrange, move_into_flat
from launcher.trainer.optimizer.gradient_shards import GradientShards
from launcher.trainer.optimizer.gradients import Gradients, SeparateGradients
from launcher.trainer.optimizer.shared_weight import SharedWeight
from launcher.trainer.optimizer.update_rules import Rule, Step, Tensors
from launcher.trainer.parallel.collectives import Group, all_gather, all_reduce, barrier, shared_tensor
from launcher.trainer.parallel.placement import Placement

NORM_ROW = 16_384  # elements


@frozen
class Shards:
    """The choice of what each data-parallel rank keeps of its share of the weights only."""

    state: bool = True  # else every rank updates all weights
    gradients: bool = False  # between the backward passes of a step; only with `state`


SHARDS = Shards()


@frozen
class OwnedBox:
    """The state of a part of a parameter that this rank owns: views, each of the box's size."""

    name: str
    box: Box  # of the single-device model's parameter
    values: tuple[Tensor, ...]  # of each of the optimizer's `kinds`, in float32 at least
    is_replica: bool  # another model-parallel rank owns the same


class ShardedOptimizer:
    """Owns the storage of `parameters` and of their gradients from now on.

    Of parameters that are less precise than float32 each rank keeps a float32 copy of what it owns, so that steps that
    are smaller than their rounding add up. Gradients and what the rule keeps are float32 then as well.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        placed: Mapping[str, Placement],
        rule: Rule,
        *,
        clip_norm: float = 0.0,
        gradient_groups: int = 1,
        shards: Shards = SHARDS,
        empty: Tensor | None = None,
        dp: Group,
        mp: Group,
        pp: Group,
        shared: SharedWeight | None = None,
    ) -> None:
        """Take `parameters` in the model's order, each with its placement in `placed`.

        A gradient whose norm is above `clip_norm` is made so long; 0 stands for no limit. `empty` has the type and the device
        of the parameters, where there may be none. `shared` is the weight that another stage computes with as well, of which
        it is among `parameters` on the stage that owns it alone.
        """
        self._rule, self._clip_norm = rule, clip_norm
        self._dp, self._mp, self._pp = dp, mp, pp
        self._placed, self._shared_weight = placed, shared
        self.layout = arrange({name: placed[name] for name in parameters}, dp=dp.size, groups=gradient_groups)
        self._copies = 1 if shards.state else dp.size  # the data-parallel ranks that update the same
        self._updated = self.layout if shards.state else dataclasses.replace(self.layout, dp=1)
        self._parts = self._updated.own_parts(dp.index if shards.state else 0)
        first = next(iter(parameters.values())) if empty is None else empty
        shared_1N = shared_tensor(1, self.layout.size, first.dtype, dp) if shards.state and self.layout.size else None
        self._is_shared = shared_1N is not None
        self._parameters = first.new_zeros(self.layout.size) if shared_1N is None else shared_1N[0]
        move_into_flat(parameters, self.layout, self._parameters)
        self._like = first.new_empty(0, dtype=torch.promote_types(first.dtype, torch.float32))
        self._gradients = self._gradients_of(parameters, are_sharded=shards.gradients)
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
        """Return what holds the gradients: each by itself where nothing is summed or converted, else in a flat tensor."""
        dp, shared, dtype, device = self._dp, self._shared_weight, self._like.dtype, self._like.device
        if dp.size == 1 and dtype == self._parameters.dtype and shared is None and parameters:
            return SeparateGradients(parameters, self.layout)
        awaited = shared.name if shared is not None and shared.is_owner else None
        if are_sharded and dp.size > 1:
            return GradientShards(parameters, self.layout, dtype=dtype, device=device, dp=dp, awaited=awaited)
        return Gradients(parameters, self._updated, dtype=dtype, device=device, dp=dp, awaited=awaited)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of the values that there are of each element, in the order of `OwnedBox.values`."""
        return ("weight", *self._rule.state)

    @property
    def state_dtype(self) -> torch.dtype:
        """The type of what the rule keeps, and of the weights that a checkpoint keeps."""
        return self._like.dtype

    def zero_gradients(self, *, backward_passes: int = 0) -> None:
        """Begin a step of so many backward passes; a group of gradients is summed as soon as the last has filled it.

        Where 0, all groups are summed in `step`: until then gradients are those of this rank alone.
        """
        self._gradients.zero(backward_passes=backward_passes)
        if self._shared_weight is not None:
            self._shared_weight.zero_gradient()

    def collect_shared(self) -> None:
        """Have the owner of a shared weight add the other stage's gradient to its own, once after all backward passes.

        `step` does so itself. All ranks of the run must call it.
        """
        if self._shared_weight is not None:
            assert not isinstance(self._gradients, SeparateGradients), "they are not awaited by another stage"
            self._shared_weight.collect(self._gradients.add_awaited)

    def step(self, learning_rate: float, votes: Callable[[], tuple[float, ...]] = tuple) -> float:
        """Take one step; return the norm of the whole gradient before clipping. All ranks of the run must call it.

        Where the norm is not finite, neither weights nor what the rule keeps change on any rank: all ranks get the same norm. What `votes`
        returns, as late as can be, is summed over all ranks with it, on each of which it is as long.
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
        """Yield all that this rank owns, the state of its part of the model, in the order in which it lies in memory."""
        for part in self.layout.own_parts(self._dp.index):
            at = part.state if self._updated is self.layout else part.flat
            weights = self._parameters[part.flat] if self._master is None else self._master[at]
            state = [values[at] for values in self._state]
            for each in self.layout.boxes_of(part, self._placed):
                here, size = each.elements, each.box.size
                yield OwnedBox(
                    each.name,
                    each.box,
                    tuple(values[here].view(size) for values in (weights, *state)),
                    is_replica=not self._placed[each.name].is_first,
                )

    def restored(self, steps: int) -> None:
        """Take what was written to `owned_boxes` for the state after so many steps. All ranks of the run must call it."""
        self._steps = steps
        if self._is_shared:
            barrier(self._dp)
        if self._updated is not self.layout:
            kept = self._parameters if self._master is None else self._master
            for values in (kept, *self._state):
                self._gather(values)
        self._publish()

    def bytes_held(self) -> dict[str, int]:
        """Return the bytes of this rank's tensors: weights (which ranks may share), gradients with their buffers, and state."""
        kept = (*self._state, *([] if self._master is None else [self._master]))
        return {
            "weights": self._parameters.nbytes,
            "gradients": self._gradients.bytes_held(),
            "state": sum(values.nbytes for values in kept),
        }

    def not_finite(self) -> list[str]:
        """Return the parameters whose gradient, as far as this rank owns it, has no finite norm in the last step."""
        found = set()
        for part in self._parts:
            for piece in self._gradients.of(part):
                begins = part.flat.start + piece.elements.start
                for name, elements in self.layout.elements.items():
                    own = piece.values[max(elements.start - begins, 0) : max(elements.stop - begins, 0)]
                    if not math.isfinite(norm_of(own)):
                        found.add(name)
        return [name for name in self.layout.elements if name in found]

    def _norm_and(self, votes: tuple[float, ...]) -> list[float]:
        """Return the norm over all parameters of the model, each counted once although model-parallel ranks repeat some; then sums of `votes`.

        No rank gets it before all have ended backward, so that parameters which they share may be changed then.
        """
        sums = self._like.new_tensor([0.0, *votes])
        squares = sums[:1]
        for part in self._parts:
            norms = [norm_of(piece.values) for piece in self._gradients.of(part)]
            squares += torch.stack(norms).square().sum() / (part.copies * self._copies)
        for group in (self._mp, self._dp, self._pp):
            all_reduce(sums, group, what="norm of the gradient, votes")
        squares.sqrt_()
        return sums.tolist()

    def _update(self, learning_rate: float, norm: float) -> None:
        self._steps += 1
        divisor = norm / self._clip_norm if 0 < self._clip_norm < norm else None
        step = Step(self._steps, learning_rate, divisor)
        for decays in (True, False):
            parts = [part for part in self._parts if part.decays == decays]
            pieces = [(part, piece) for part in parts for piece in self._gradients.of(part)]
            tensors = Tensors(
                [self._own_weights(part)[piece.elements] for part, piece in pieces],
                [piece.values for _, piece in pieces],
                tuple([values[part.state][piece.elements] for part, piece in pieces] for values in self._state),
            )
            self._rule.update(tensors, step, decays=decays)

    def _own_weights(self, part: OwnPart) -> Tensor:
        return self._parameters[part.flat] if self._master is None else self._master[part.state]

    def _publish(self) -> None:
        """Have every data-parallel rank get what the others have updated, in the model's own precision."""
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
        """Set a flat tensor to the slices that the data-parallel ranks own of it in `layout`."""
        for group in self.layout.groups if self._dp.size > 1 else ():
            owned = self.layout.owned(group, self._dp.index)
            all_gather(flat[group.start : group.stop], flat[owned.start : owned.stop], self._dp, what="weights")


def norm_of(vector: Tensor) -> Tensor:
    """Return the Euclidean norm of a tensor of one dim.

    It is that of the norms of its rows: on the CPU, torch's sum of 5 million squares in float32 is wrong by 1e-4, of 50
    million by 4e-3, since each is added to a sum that has grown large.
    """
    if vector.numel() <= NORM_ROW:
        return torch.linalg.vector_norm(vector)
    rows = vector.numel() // NORM_ROW
    norms_R = torch.linalg.vector_norm(vector[: rows * NORM_ROW].view(rows, NORM_ROW), dim=1)
    rest_1 = torch.linalg.vector_norm(vector[rows * NORM_ROW :], dim=0, keepdim=True)
    return torch.linalg.vector_norm(torch.cat([norms_R, rest_1]))
