"""AdamW whose state is sharded over the data-parallel ranks (ZeRO stage 1; Rajbhandari et al. 2020, arXiv:1910.02054).

All parameters of a rank live in one flat tensor, their gradients in another. A step has four phases, each a method:

    1. _reduce_gradients    sum the gradients over the data-parallel ranks; each rank goes on with its own slice
    2. _clip_factor         the norm of the whole model's gradient, from the slices of all ranks
    3. _update              AdamW on the slice (Loshchilov and Hutter 2019, arXiv:1711.05101)
    4. _gather_parameters   every rank gets the slices of the others
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from launcher.core.frozen import frozen
from launcher.recipes.train import TrainConfig
from launcher.trainer.parallel.collectives import Group, all_gather, all_reduce, reduce_scatter
from launcher.trainer.parallel.placement import Placement


@frozen
class Region:
    """A run of the flat tensors whose parameters are all treated alike."""

    start: int
    stop: int
    decays: bool  # matrices decay; norms and biases do not
    is_sharded: bool  # held in parts by the model-parallel ranks; otherwise each of them holds the same values


class ShardedAdamW:
    """Owns the storage of `parameters` from now on: they and their gradients become views of two flat tensors."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        placed: Mapping[str, Placement],
        config: TrainConfig,
        *,
        dp: Group,
        mp: Group,
        pp: Group,
    ) -> None:
        self._config, self._dp, self._mp, self._pp = config, dp, mp, pp
        ordered = sorted(parameters, key=lambda name: (decays(placed[name]), placed[name].dim is not None))
        count = sum(parameters[name].numel() for name in ordered)
        padded = -(-count // dp.size) * dp.size  # every rank gets an equal slice
        first = parameters[ordered[0]]
        self._parameters = torch.zeros(padded, device=first.device, dtype=first.dtype)
        self._gradients = torch.zeros_like(self._parameters)
        self.regions = self._adopt(ordered, parameters, placed)
        slice_size = padded // dp.size
        self._slice = slice(dp.index * slice_size, (dp.index + 1) * slice_size)
        self._first_moment = torch.zeros(slice_size, device=first.device, dtype=first.dtype)
        self._second_moment = torch.zeros_like(self._first_moment)
        self._steps = 0

    def zero_gradients(self) -> None:
        self._gradients.zero_()

    def step(self, learning_rate: float) -> float:
        """Take one step; give the norm of the whole gradient before clipping. All ranks of the run must call it."""
        gradient = self._reduce_gradients()
        norm = self._norm(gradient)
        gradient *= self._clip_factor(norm)
        self._update(gradient, learning_rate)
        self._gather_parameters()
        return norm

    def _adopt(
        self, ordered: list[str], parameters: Mapping[str, nn.Parameter], placed: Mapping[str, Placement]
    ) -> list[Region]:
        """Move every parameter into the flat tensors, and note the regions of like treatment."""
        regions: list[Region] = []
        offset = 0
        for name in ordered:
            parameter, end = parameters[name], offset + parameters[name].numel()
            self._parameters[offset:end] = parameter.detach().reshape(-1)
            parameter.data = self._parameters[offset:end].view(parameter.shape)
            # Autograd adds to a gradient that exists, so it writes into the flat tensor.
            parameter.grad = self._gradients[offset:end].view(parameter.shape)
            regions.append(Region(offset, end, decays(placed[name]), placed[name].dim is not None))
            offset = end
        return _joined(regions)

    def _reduce_gradients(self) -> Tensor:
        if not self._dp.scatters:
            return all_reduce(self._gradients, self._dp)[self._slice]
        own = torch.empty_like(self._first_moment)
        reduce_scatter(own, self._gradients, self._dp)
        return own

    def _norm(self, gradient: Tensor) -> float:
        """Return the norm over all parameters of the model, each counted once although mp ranks repeat some."""
        squares = torch.zeros(1, device=gradient.device, dtype=gradient.dtype)
        for region, part in self._slices_of_regions():
            square = gradient[part].square().sum()
            squares += square if region.is_sharded else square / self._mp.size
        for group in (self._mp, self._dp, self._pp):
            all_reduce(squares, group)
        return float(squares.sqrt())

    def _clip_factor(self, norm: float) -> float:
        limit = self._config.clip_norm
        return 1.0 if limit == 0 or norm <= limit else limit / norm

    def _update(self, gradient: Tensor, learning_rate: float) -> None:
        config = self._config
        self._steps += 1
        own = self._parameters[self._slice]
        for region, part in self._slices_of_regions():
            if region.decays:
                own[part] *= 1 - learning_rate * config.weight_decay
        self._first_moment.lerp_(gradient, 1 - config.beta1)
        self._second_moment.mul_(config.beta2).addcmul_(gradient, gradient, value=1 - config.beta2)
        deviation = (self._second_moment / (1 - config.beta2**self._steps)).sqrt_().add_(config.epsilon)
        own.addcdiv_(self._first_moment, deviation, value=-learning_rate / (1 - config.beta1**self._steps))

    def _gather_parameters(self) -> None:
        if self._dp.size > 1:
            own = self._parameters[self._slice].clone()
            all_gather(self._parameters, own, self._dp)

    def _slices_of_regions(self) -> list[tuple[Region, slice]]:
        """Each region's overlap with this rank's slice, as a slice of that slice."""
        start, stop = self._slice.start, self._slice.stop
        return [
            (region, slice(max(region.start, start) - start, min(region.stop, stop) - start))
            for region in self.regions
            if region.start < stop and region.stop > start
        ]


def decays(placement: Placement) -> bool:
    """Weight decay is for matrices: norms and biases, which have one dim, are left alone."""
    return len(placement.full_shape) > 1


def _joined(regions: list[Region]) -> list[Region]:
    """Neighbours of like treatment as one region."""
    joined: list[Region] = []
    for region in regions:
        last = joined[-1] if joined else None
        if last is not None and (last.decays, last.is_sharded) == (region.decays, region.is_sharded):
            joined[-1] = Region(last.start, region.stop, region.decays, region.is_sharded)
        else:
            joined.append(region)
    return joined
