"""The self-check before the first step: the loss of a batch must be the mean of the losses of its parts.

Training on several parts minimises that mean. The two differ if the network combines rows (a batch norm), if the loss
is a sum, or if the loss divides by a mask's sum. A trace of arbitrary code cannot show this, so the check calls the
network. It compares gradients on request.

The check calls a copy of the network on the CPU, without dropout, in float64 if the code allows it. It uses the
network's weights first, then the weights plus noise. Without noise, an output layer of zeros would give all positions
the same loss and hide a difference.

The check does not change torch's default dtype. Code may cache tables of the default dtype, and training would then
use them in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress

import torch
from torch import Tensor, nn

from launcher.core.errors import RefusedLayoutError
from launcher.core.frozen import frozen
from launcher.trainer.own.divide import Division, Rows
from launcher.trainer.own.trial import (
    Loss,
    Outcome,
    Precision,
    copied,
    generators,
    kept_generators,
    outcome_of,
    turn_off_dropout,
)

NOISE = 0.05  # relative standard deviation of the noise that is added to weights
CALLS_THAT_DRAW = 8  # repeated calls that show whether the loss depends on random numbers
EQUAL_PARTS = (
    "return a mean over rows (`launcher.trainer.api.CrossEntropyLoss` counts over the full batch), register tensors "
    "that are not a batch as buffers, pass `batch_norm_is_shared=False` to `sharded`, use `--dp 1 --micro-batches 1`, "
    "or pass `parts_may_differ=True` to train on the mean over the parts"
)


class NotComparedError(Exception):
    """The losses cannot be compared, because the network raises an error or its loss is random."""


def called(network: nn.Module, rows: Rows, batch: Rows | None) -> Tensor:
    """Call the network with `rows` and return its loss."""
    del batch
    return network(*rows)


@frozen
class Comparison:
    """Options for comparing the loss of a batch with the losses of its parts."""

    loss: Loss = called
    keeps_norms: bool = False  # put batch norms into evaluation mode, so that parts are not normalised separately
    is_validated: bool = False  # also compare in evaluation mode
    gradients: bool = False  # also compare gradients


PLAIN = Comparison()


def checked_division(
    network: nn.Module,
    divisions: Iterable[Division],
    how: Comparison = PLAIN,
    *,
    layout: str,
    may_differ: bool,
    remarks: Sequence[str] = (),
) -> list[str]:
    """Check that the network's loss does not depend on how a batch is divided, and return remarks for the log.

    With `may_differ` a difference does not raise; it is added to the remarks. The result starts with `remarks`.

    Raises:
        RefusedLayoutError: the losses differ. The message has the layout, the remarks and both losses.
    """
    try:
        words = difference(network, divisions, how)
    except NotComparedError as error:
        return [*remarks, f"the loss of a batch was not compared with the losses of its parts: {error}"]
    if words and not may_differ:
        raise RefusedLayoutError("; ".join((layout, *remarks, words)), hint=EQUAL_PARTS)
    return [*remarks, f"{words}; training minimises the mean over the parts"] if words else list(remarks)


def difference(network: nn.Module, divisions: Iterable[Division], how: Comparison = PLAIN) -> str:
    """Describe the first batch whose loss differs from the mean loss of its parts.

    Return "" if the losses of all batches agree, except for rounding. Buffers, and gradients on request, must agree
    too.

    Raises:
        NotComparedError: the network fails on the first batch, or its loss depends on random numbers.
    """
    words = ""
    with kept_generators():
        for number, division in enumerate(divisions):
            for is_evaluated in (False, True) if how.is_validated else (False,):
                # The network may fail with the noisy weights of later batches.
                with suppress(NotComparedError) if number else nullcontext():
                    words = words or _of_trial(
                        network, division, how, NOISE if number else 0.0, is_evaluated=is_evaluated
                    )
    return words


def _of_trial(
    network: nn.Module,
    division: Division,
    how: Comparison,
    noise: float,
    dtype: torch.dtype = torch.float64,
    *,
    is_evaluated: bool,
) -> str:
    """Compare the losses of a copy of the network in `dtype`. If this raises, repeat it in the network's own dtype."""
    try:
        trial = copied(network, dtype, noise)
        turn_off_dropout(trial, with_norms=how.keeps_norms)
        return _compared(trial.eval() if is_evaluated else trial, _of_type(division, dtype), how)
    except NotComparedError:
        raise
    except Exception as error:  # the network's code may raise anything
        own = next((each.dtype for each in network.parameters() if each.is_floating_point()), dtype)
        if own == dtype:
            first = str(error).partition("\n")[0]
            raise NotComparedError(f"{type(error).__name__}: {first}") from error
        return _of_trial(network, division, how, noise, own, is_evaluated=is_evaluated)


def _compared(network: nn.Module, division: Division, how: Comparison) -> str:
    """Return the first difference between a batch and its parts. If the loss is random, try evaluation mode."""
    words = _difference(network, division, how)
    if words and _draws(network, division, how):
        words = _difference(network.eval(), division, how)
        if words and _draws(network, division, how):
            raise NotComparedError("the network returned different losses for two calls with the same batch")
    return words


def _draws(network: nn.Module, division: Division, how: Comparison) -> bool:
    """Return True if the loss of the same batch differs between calls.

    A network that uses a random generator is called several times, since only some of its losses may differ.
    """
    before = generators()
    first = outcome_of(network, [division.whole], how.loss).losses
    more = 1 if generators() == before else CALLS_THAT_DRAW
    return any(outcome_of(network, [division.whole], how.loss).losses != first for _ in range(more))


def _difference(network: nn.Module, division: Division, how: Comparison) -> str:
    """Describe the first loss, gradient or buffer that differs between a batch and its parts, or return ""."""
    gradients = how.gradients and network.training
    with Precision() as precision:
        whole = outcome_of(network, [division.whole], how.loss, gradients=gradients)
        of_ranks = [outcome_of(network, own, how.loss, division.whole, gradients=gradients) for own in division.parts]
    for before, one, between, other, after, tolerance in _values(network, division, whole, of_ranks):
        if math.isfinite(one) and not abs(one - other) <= precision.tolerance * tolerance:
            # At least 4 digits, and enough to show that they differ.
            digits = next((each for each in range(4, 17) if f"{one:.{each}g}" != f"{other:.{each}g}"), 17)
            return f"{before} is {one:.{digits}g}{between} {other:.{digits}g}{after}"
    return ""


def _values(
    network: nn.Module, division: Division, whole: Outcome, of_ranks: Sequence[Outcome]
) -> Iterator[tuple[str, float, str, float, str, float]]:
    """Yield the pairs of numbers to compare, each with a tolerance and the text of the error message."""
    losses = [each for outcome in of_ranks for each in outcome.losses]
    rows, parts = len(division.whole[0]), f"{len(losses)} parts of {len(division.parts[0][0][0])}"
    mean, no_mean, largest_loss = f"; the mean over {parts} is", "is not a mean over rows", max(1.0, *map(abs, losses))
    loss = sum(losses) / len(losses)
    yield f"the loss of {rows} rows", whole.losses[0], mean, loss, f": this loss {no_mean}", largest_loss
    largest = max((float(each.abs().max()) for each in whole.gradients.values()), default=0.0)
    for name, slope in whole.gradients.items():
        of_parts = torch.stack([each.gradients.get(name, torch.zeros_like(slope)) for each in of_ranks]).sum(0)
        one, other = _furthest(slope, of_parts / len(losses))
        yield f"the gradient of {name} over {rows} rows", one, mean, other, f": this gradient {no_mean}", largest
    after = f" after {len(division.parts[0])} of {parts}"
    # Training keeps rank 0's buffers.
    for name, at_once, in_turn in _pairs(network, whole.buffers, of_ranks[0].buffers):
        one, other = _furthest(at_once, in_turn)
        changes = f"the network changes the buffer {name} in each part: its value"
        yield changes, one, f" after {rows} rows at once, and", other, after, max(1.0, abs(one))


def _furthest(one: Tensor, other: Tensor) -> tuple[float, float]:
    """Return the elements of two flat tensors at the index where they differ most."""
    at = int((one - other).abs().nan_to_num().argmax())
    return float(one[at]), float(other[at])


def _pairs(network: nn.Module, *buffers: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the name of each buffer and its values in two states, as flat tensors. Skip empty and reshaped buffers."""
    for name, before in network.state_dict().items():
        states = [each[name] for each in buffers if name in each and each[name].shape == before.shape]
        if len(states) == 2 and before.numel():
            # Complex numbers as pairs.
            one, other = (torch.view_as_real(each) if each.is_complex() else each for each in states)
            yield name, one.double().flatten(), other.double().flatten()


def _of_type(division: Division, dtype: torch.dtype) -> Division:
    def converted(rows: Rows) -> Rows:
        return tuple(each.detach().cpu().to(dtype if each.is_floating_point() else each.dtype) for each in rows)

    return Division(converted(division.whole), [[converted(rows) for rows in each] for each in division.parts])
