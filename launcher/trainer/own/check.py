"""Compares the loss of a batch with the mean of the losses of its parts.

Training on several parts minimises that mean. The two differ if rows meet, as in a batch norm, if the loss is a sum, and if it
divides by what a mask counts. No trace of arbitrary code shows that, so the network is called, before the first step.

The comparison calls a copy, on the CPU, without dropout, and in float64 if its code allows that. It uses the network's weights, then
weights with noise added: with a head of zeros, for instance, all positions have the same loss.

The default type of torch stays: code may cache tables that it makes, and the training would find them in float64.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from launcher.core.frozen import frozen
from launcher.trainer.telemetry.heartbeat import getting_on

Rows = tuple[Tensor, ...]  # the inputs of a network
# Returns the loss of some rows. The last argument is the batch of which they are a part; None if they are all of it.
Loss = Callable[[nn.Module, Rows, Rows | None], Tensor]
NOISE = 0.05  # standard deviation by which weights are moved
CALLS_THAT_DRAW = 8  # after the first, to see whether the loss depends on what is drawn
DROPOUTS = frozenset(
    (
        functional.dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d, functional.alpha_dropout,
        functional.feature_alpha_dropout, torch.dropout, torch.alpha_dropout, torch.feature_dropout, torch.feature_alpha_dropout,
    )
)  # fmt: skip


class NotComparedError(Exception):
    """The network could not be called as the comparison needs it."""


@frozen
class Division:
    """A batch, and its parts: those of each rank, in the order in which it computes them."""

    whole: Rows
    parts: Sequence[Sequence[Rows]]


def called(network: nn.Module, rows: Rows, batch: Rows | None) -> Tensor:
    """Call the network with `rows`."""
    del batch
    return network(*rows)


def difference(
    network: nn.Module,
    divisions: Iterable[Division],
    loss: Loss = called,
    *,
    keeps_norms: bool = False,
    is_validated: bool = False,
) -> str:
    """Describe how the loss of a batch differs from that of its parts, for the first batch that differs by more than rounding.

    Return "" if none does. A network that `is_validated` is compared in evaluation, too. `keeps_norms` puts batch norms in
    evaluation: they may normalise by each part.

    Raises:
        NotComparedError: the network fails when it is called with the whole first batch, or draws random numbers.
    """
    words = ""
    with _kept_generators():
        for number, division in enumerate(divisions):
            for is_evaluated in (False, True) if is_validated else (False,):
                # Moved weights may be none that the network can be called with.
                with suppress(NotComparedError) if number else nullcontext():
                    noise = NOISE if number else 0.0
                    words = words or _of_trial(
                        network, division, loss, noise, keeps_norms=keeps_norms, is_evaluated=is_evaluated
                    )
    return words


def _of_trial(
    network: nn.Module,
    division: Division,
    loss: Loss,
    noise: float,
    dtype: torch.dtype = torch.float64,
    *,
    keeps_norms: bool,
    is_evaluated: bool,
) -> str:
    """Return how a batch and its parts differ for a copy of the network of this type, or of its own if that fails."""
    try:
        trial = _copied(network, dtype, noise)
        _turn_off_dropout(trial, with_norms=keeps_norms)
        return _compared(trial.eval() if is_evaluated else trial, _of_type(division, dtype), loss)
    except NotComparedError:
        raise
    except Exception as error:  # whatever the network's own code raises
        own = next((each.dtype for each in network.parameters() if each.is_floating_point()), dtype)
        if own == dtype:
            first = str(error).partition("\n")[0]
            raise NotComparedError(f"{type(error).__name__}: {first}") from error
        options = {"keeps_norms": keeps_norms, "is_evaluated": is_evaluated}
        return _of_trial(network, division, loss, noise, own, **options)


def _compared(network: nn.Module, division: Division, loss: Loss) -> str:
    """Return how a batch and its parts differ, in the network's mode, or in evaluation if that draws random numbers."""
    words = _difference(network, division, loss)
    if words and _draws(network, division, loss):
        words = _difference(network.eval(), division, loss)
        if words and _draws(network, division, loss):
            raise NotComparedError("its losses of the same batch differ from one call to the next")
    return words


def _difference(network: nn.Module, division: Division, loss: Loss) -> str:
    with _Precision() as precision:
        [whole], buffers = _computed(network, [division.whole], loss)
        of_ranks = [_computed(network, rows, loss, division.whole) for rows in division.parts]
    losses = [each for losses, _ in of_ranks for each in losses]
    mean, rows, tolerance = sum(losses) / len(losses), len(division.whole[0]), precision.tolerance
    if not _is_close(whole, mean, tolerance * max(1.0, *map(abs, losses))):
        return f"the loss of {rows} rows is {whole:.12g} if they are computed at once, and {mean:.12g} in the mean of {len(losses)} parts"
    for name, one, other in _pairs(network, buffers, of_ranks[0][1]):  # of rank 0, whose buffers are kept
        at = int((one - other).abs().nan_to_num().argmax())
        if not _is_close(float(one[at]), float(other[at]), tolerance * max(1.0, abs(float(one[at])))):
            return (
                f"its code changes the buffer {name} in each part: {rows} rows at once leave {float(one[at]):.12g} there, and "
                f"{len(division.parts[0])} of {len(losses)} parts {float(other[at]):.12g}"
            )
    return ""


def _pairs(network: nn.Module, *buffers: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield name and both states of each buffer, flat; skip empty buffers and those whose shape changed."""
    for name, before in network.state_dict().items():
        one, other = (each.get(name) for each in buffers)
        if one is not None and other is not None and before.numel() and before.shape == one.shape == other.shape:
            yield name, _numbers(one), _numbers(other)


def _numbers(buffer: Tensor) -> Tensor:
    """Return the numbers in a buffer, flat, in float64; those of a complex one in pairs."""
    return (torch.view_as_real(buffer) if buffer.is_complex() else buffer).double().flatten()


def _draws(network: nn.Module, division: Division, loss: Loss) -> bool:
    """Return whether the loss of the same batch differs from one call to the next. What is drawn may change few of them."""
    before = _generators()
    [first], _ = _computed(network, [division.whole], loss)
    more = 1 if _generators() == before else CALLS_THAT_DRAW
    return any(_computed(network, [division.whole], loss)[0] != [first] for _ in range(more))


def _computed(
    network: nn.Module, parts: Iterable[Rows], loss: Loss, batch: Rows | None = None
) -> tuple[list[float], Mapping[str, Tensor]]:
    """Compute the losses of parts in order; return them and the final buffers.

    Gradients are on, since code may ask whether they are; nothing is kept for them, unless the network computes some itself.
    """
    rows = list(parts)
    try:
        return _called_in_turn(network, rows, loss, batch, saved_tensors_hooks(lambda _: None, _none_kept))
    except Exception:  # noqa: BLE001 - torch.func takes no such hooks, either
        return _called_in_turn(network, rows, loss, batch, nullcontext())


def _called_in_turn(
    network: nn.Module, parts: Iterable[Rows], loss: Loss, batch: Rows | None, kept: AbstractContextManager[Any]
) -> tuple[list[float], Mapping[str, Tensor]]:
    used, losses = copy.deepcopy(network), []
    with torch.enable_grad(), kept, _NoDropout():
        for rows in parts:
            losses.append(float(loss(used, tuple(each.clone() for each in rows), batch).detach()))
            getting_on()
    parameters = dict(used.named_parameters(remove_duplicate=False))
    return losses, {
        name: each for name, each in used.state_dict().items() if name not in parameters and isinstance(each, Tensor)
    }


def _none_kept(_: Any) -> Tensor:
    raise RuntimeError("its forward computes gradients")


def _is_close(expected: float, found: float, tolerance: float) -> bool:
    """Return whether two numbers are close; True if `expected` is not finite."""
    return not math.isfinite(expected) or abs(expected - found) <= tolerance


class _Precision(TorchFunctionMode):
    """Records the lowest precision of all results that depend on parameters."""

    _eps = torch.finfo(torch.float64).eps

    @property
    def tolerance(self) -> float:
        """The relative difference that rounding may make: 4e-11 in float64, 2e-5 in float32."""
        return self._eps ** (2 / 3)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else (result,):
            if isinstance(each, Tensor) and each.requires_grad:
                self._eps = max(self._eps, torch.finfo(each.dtype).eps)
        return result


class _NoDropout(TorchFunctionMode):
    """Has functions of torch drop nothing, so that code which calls them can be compared in training."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        given = dict(kwargs or {})
        if func in DROPOUTS:
            return args[0] if args else given["input"]
        if func is functional.scaled_dot_product_attention:
            if len(args) > 4:  # query, key, value, mask, rate
                args = (*args[:4], 0.0, *args[5:])
            else:
                given["dropout_p"] = 0.0
        return func(*args, **given)


def _copied(network: nn.Module, dtype: torch.dtype, noise: float) -> nn.Module:
    """Return a copy on the CPU, converted to `dtype`, with `noise` added to its weights."""
    generator = torch.Generator().manual_seed(0)
    made = copy.deepcopy(network).cpu()
    if dtype == torch.float64:
        made = made.double()
    with torch.no_grad():
        for parameter in made.parameters() if noise else ():
            moved = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            parameter.add_(moved * noise * (1 + parameter.abs()))
    return made


def _of_type(division: Division, dtype: torch.dtype) -> Division:
    def converted(rows: Rows) -> Rows:
        return tuple(each.detach().cpu().to(dtype if each.is_floating_point() else each.dtype) for each in rows)

    return Division(converted(division.whole), [[converted(rows) for rows in each] for each in division.parts])


def _turn_off_dropout(network: nn.Module, *, with_norms: bool) -> None:
    """Put modules of torch and of tlaunch into evaluation mode; batch norms only if `with_norms`."""
    for module in list(network.modules())[1:]:
        is_norm = isinstance(module, nn.modules.batchnorm._NormBase)  # noqa: SLF001 - the class of all of them
        if type(module).__module__.startswith(("torch.", "launcher.")) and (with_norms or not is_norm):
            module.training = False


def _generators() -> tuple[Any, ...]:
    """Return the states of the global random generators of Python, NumPy, and torch on the CPU."""
    name, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002 - what the network's code may draw from
    return random.getstate(), (name, np.asarray(keys).tobytes(), *rest), torch.get_rng_state().numpy().tobytes()


@contextmanager
def _kept_generators() -> Iterator[None]:
    """Put the global random generators back: what is called may draw, and so may the samples."""
    of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - likewise
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002 - likewise
