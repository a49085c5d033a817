"""The self-check before the first step: the loss of a batch must be the mean of the losses of its parts.

Training on several parts minimises that mean. The two differ if rows meet, as in a batch norm, if the loss is a sum, and if it
divides by what a mask counts. No trace of arbitrary code shows that, so the network is called. Gradients are compared on request.

The comparison calls a copy, on the CPU, without dropout, and in float64 if its code allows that. It uses the network's weights, then
weights with noise added: with a head of zeros, for instance, all positions have the same loss.

The default type of torch stays: code may cache tables that it makes, and the training would find them in float64.
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
    Precision,
    copied,
    generators,
    kept_generators,
    outcome_of,
    turn_off_dropout,
)

NOISE = 0.05  # standard deviation by which weights are moved
CALLS_THAT_DRAW = 8  # after the first, to see whether the loss depends on what is drawn
EQUAL_PARTS = (
    "return a mean over rows (launcher.trainer.api.CrossEntropyLoss counts over the whole batch), hold what is not a batch as a buffer, "
    "have `sharded` normalise by each copy's rows with batch_norm_is_shared=False, use --dp 1 --micro-batches 1, or pass parts_may_differ=True to train on the mean over the parts"
)


class NotComparedError(Exception):
    """The network could not be called as the comparison needs it."""


def called(network: nn.Module, rows: Rows, batch: Rows | None) -> Tensor:
    """Call the network with `rows`."""
    del batch
    return network(*rows)


@frozen
class Comparison:
    """How a network is compared on a batch and its parts."""

    loss: Loss = called
    keeps_norms: bool = False  # puts batch norms in evaluation: they may normalise by each part
    is_validated: bool = False  # compares in evaluation, too
    gradients: bool = False  # compares these, too


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
    """Refuse a network whose loss depends on how a batch is divided. Return `remarks`, and that it does if it `may_differ`.

    Raises:
        RefusedLayoutError: with the layout, the remarks, and both losses.
    """
    try:
        words = difference(network, divisions, how)
    except NotComparedError as error:
        return [*remarks, f"a batch was not compared with its parts: {error}"]
    if words and not may_differ:
        raise RefusedLayoutError("; ".join((layout, *remarks, words)), hint=EQUAL_PARTS)
    return [*remarks, f"{words}; the mean over the parts is trained"] if words else list(remarks)


def difference(network: nn.Module, divisions: Iterable[Division], how: Comparison = PLAIN) -> str:
    """Describe how the loss of a batch differs from that of its parts, for the first batch that differs by more than rounding.

    Return "" if none does.

    Raises:
        NotComparedError: the network fails when it is called with the whole first batch, or draws random numbers.
    """
    words = ""
    with kept_generators():
        for number, division in enumerate(divisions):
            for is_evaluated in (False, True) if how.is_validated else (False,):
                # Moved weights may be none that the network can be called with.
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
    """Return how a batch and its parts differ for a copy of the network of this type, or of its own if that fails."""
    try:
        trial = copied(network, dtype, noise)
        turn_off_dropout(trial, with_norms=how.keeps_norms)
        return _compared(trial.eval() if is_evaluated else trial, _of_type(division, dtype), how)
    except NotComparedError:
        raise
    except Exception as error:  # whatever the network's own code raises
        own = next((each.dtype for each in network.parameters() if each.is_floating_point()), dtype)
        if own == dtype:
            first = str(error).partition("\n")[0]
            raise NotComparedError(f"{type(error).__name__}: {first}") from error
        return _of_trial(network, division, how, noise, own, is_evaluated=is_evaluated)


def _compared(network: nn.Module, division: Division, how: Comparison) -> str:
    """Return how a batch and its parts differ, in the network's mode, or in evaluation if that draws random numbers."""
    words = _difference(network, division, how)
    if words and _draws(network, division, how):
        words = _difference(network.eval(), division, how)
        if words and _draws(network, division, how):
            raise NotComparedError("its losses of the same batch differ from one call to the next")
    return words


def _draws(network: nn.Module, division: Division, how: Comparison) -> bool:
    """Return whether the loss of the same batch differs from one call to the next. What is drawn may change few of them."""
    before = generators()
    first = outcome_of(network, [division.whole], how.loss).losses
    more = 1 if generators() == before else CALLS_THAT_DRAW
    return any(outcome_of(network, [division.whole], how.loss).losses != first for _ in range(more))


def _difference(network: nn.Module, division: Division, how: Comparison) -> str:
    gradients = how.gradients and network.training
    with Precision() as precision:
        whole = outcome_of(network, [division.whole], how.loss, gradients=gradients)
        of_ranks = [outcome_of(network, own, how.loss, division.whole, gradients=gradients) for own in division.parts]
    losses = [each for outcome in of_ranks for each in outcome.losses]
    mean, rows, tolerance = sum(losses) / len(losses), len(division.whole[0]), precision.tolerance
    parts = f"{len(losses)} parts of {len(division.parts[0][0][0])}"
    if not _is_close(whole.losses[0], mean, tolerance * max(1.0, *map(abs, losses))):
        one, other = _shown(whole.losses[0], mean)
        return f"the loss of {rows} rows is {one}; the mean over {parts} is {other}: this loss is not a mean over rows"
    largest = max((float(each.abs().max()) for each in whole.gradients.values()), default=0.0)
    for name, slope in whole.gradients.items():
        of_parts = torch.stack([each.gradients.get(name, torch.zeros_like(slope)) for each in of_ranks]).sum(0) / len(
            losses
        )
        ours, theirs = _furthest(slope, of_parts)
        if not _is_close(ours, theirs, tolerance * largest):
            one, other = _shown(ours, theirs)
            return (
                f"the gradient of {name} over {rows} rows is {one}; the mean over {parts} is {other}: "
                "this gradient is not a mean over rows"
            )
    for name, before, after in _pairs(network, whole.buffers, of_ranks[0].buffers):  # of rank 0, whose buffers are kept
        ours, theirs = _furthest(before, after)
        if not _is_close(ours, theirs, tolerance * max(1.0, abs(ours))):
            one, other = _shown(ours, theirs)
            return (
                f"its code changes the buffer {name} in each part: {rows} rows at once leave {one} there, and "
                f"{len(division.parts[0])} of {parts} leave {other}"
            )
    return ""


def _furthest(one: Tensor, other: Tensor) -> tuple[float, float]:
    """Return the elements of two flat tensors that differ most."""
    at = int((one - other).abs().nan_to_num().argmax())
    return float(one[at]), float(other[at])


def _shown(one: float, other: float) -> tuple[str, str]:
    """Return two numbers with as few digits as show that they differ, 4 at least."""
    digits = next((each for each in range(4, 17) if f"{one:.{each}g}" != f"{other:.{each}g}"), 17)
    return f"{one:.{digits}g}", f"{other:.{digits}g}"


def _is_close(expected: float, found: float, tolerance: float) -> bool:
    """Return whether two numbers are close; True if `expected` is not finite."""
    return not math.isfinite(expected) or abs(expected - found) <= tolerance


def _pairs(network: nn.Module, *buffers: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield name and both states of each buffer, flat; skip empty buffers and those whose shape changed."""
    for name, before in network.state_dict().items():
        one, other = (each.get(name) for each in buffers)
        if one is not None and other is not None and before.numel() and before.shape == one.shape == other.shape:
            yield name, _numbers(one), _numbers(other)


def _numbers(buffer: Tensor) -> Tensor:
    """Return the numbers in a buffer, flat, in float64; those of a complex one in pairs."""
    return (torch.view_as_real(buffer) if buffer.is_complex() else buffer).double().flatten()


def _of_type(division: Division, dtype: torch.dtype) -> Division:
    def converted(rows: Rows) -> Rows:
        return tuple(each.detach().cpu().to(dtype if each.is_floating_point() else each.dtype) for each in rows)

    return Division(converted(division.whole), [[converted(rows) for rows in each] for each in division.parts])
