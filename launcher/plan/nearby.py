"""Corrects a prediction by measured layouts near it.

A model of a few numbers leaves residuals that are the layout's own. Measured residuals, as logarithms of measured over
predicted time, are interpolated by a Gaussian process (Rasmussen and Williams 2006, section 2.2):

    correction(x) = k(x)ᵀ (K + noise² I)⁻¹ residuals        k(x, y) = SIGNAL² exp(-|x - y|² / 2)

The distance |x - y| counts doublings of dp, mp, pp, micro batch, layers and weights of a layer: a layout two doublings away
keeps 14 % of a correction. Far from every measured row the correction is 0, and the numbers alone decide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.core.codec import real_number
from launcher.core.frozen import frozen
from launcher.plan.configuration import Configuration
from launcher.plan.least_squares import solved
from launcher.plan.model_shape import ModelShape

SIGNAL, NOISE = 0.10, 0.03  # standard deviations of residuals: of a layout, and of measuring it again
Position = tuple[float, ...]


@frozen
class Observation:
    """A measured layout. `weight` is its entry of (K + noise² I)⁻¹ residuals."""

    position: Position
    weight: float


def position_of(model: ModelShape, configuration: Configuration) -> Position:
    """Return the doublings that distances count."""
    layout = configuration.layout
    sizes = (layout.dp, layout.mp, layout.pp, configuration.micro_batch, len(model.stack), model.decoder_layer.weights)
    return tuple(math.log2(size) for size in sizes)


def observations_of(positions: Sequence[Position], residuals: Sequence[float]) -> tuple[Observation, ...]:
    """Return the measured layouts with their weights."""
    matrix = [
        [_kernel(one, other) + (NOISE**2 if row == column else 0) for column, other in enumerate(positions)]
        for row, one in enumerate(positions)
    ]
    weights = solved(matrix, residuals)
    return tuple(Observation(position, weight) for position, weight in zip(positions, weights, strict=True))


def correction(observations: Sequence[Observation], position: Position) -> float:
    """Return the factor by which measured layouts nearby correct a predicted time."""
    return math.exp(math.fsum(each.weight * _kernel(each.position, position) for each in observations))


def observation_from(values: Mapping[str, Any]) -> Observation:
    """Return an observation from its JSON object. Raises ValueError, KeyError or TypeError."""
    numbers = [real_number(value) for value in (*values["position"], values["weight"])]
    found = [number for number in numbers if number is not None]
    if len(found) != len(numbers) or len(found) != 7:
        raise ValueError("an observation has six numbers as its position, and a weight")
    return Observation(tuple(found[:-1]), found[-1])


def _kernel(one: Position, other: Position) -> float:
    return SIGNAL**2 * math.exp(-sum((x - y) ** 2 for x, y in zip(one, other, strict=True)) / 2)
