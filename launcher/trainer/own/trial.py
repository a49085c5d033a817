"""Calls copies of a custom network for the self-check (check.py), without dropout, and restores random generators."""

from __future__ import annotations

import copy
import random
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from launcher.core.frozen import frozen
from launcher.trainer.own.divide import Rows
from launcher.trainer.own.trace import line_of_caller
from launcher.trainer.telemetry.heartbeat import getting_on

# From a network, rows and their batch to the loss of the rows. The batch is None if the rows are the full batch.
Loss = Callable[[nn.Module, Rows, Rows | None], Tensor]


@frozen
class Outcome:
    """The results of consecutive calls of one copy of a network."""

    losses: Sequence[float]
    buffers: Mapping[str, Tensor]  # after the last call
    gradients: Mapping[str, Tensor]  # flat gradients of parameters, summed over the calls; empty unless requested


def outcome_of(
    network: nn.Module, parts: Sequence[Rows], loss: Loss, batch: Rows | None = None, *, gradients: bool = False
) -> Outcome:
    """Compute the losses of `parts` in order with one copy of the network.

    Autograd is always enabled, since code may check `torch.is_grad_enabled()`. Activations are kept only if `gradients`
    is set or the network computes gradients itself.
    """
    if not gradients:
        with suppress(Exception):  # fails if the network computes gradients, or if torch.func rejects the hooks
            return _called_in_turn(network, parts, loss, batch, saved_tensors_hooks(lambda _: None, _none_kept))
    return _called_in_turn(network, parts, loss, batch, nullcontext(), gradients=gradients)


def _called_in_turn(
    network: nn.Module,
    parts: Sequence[Rows],
    loss: Loss,
    batch: Rows | None,
    kept: AbstractContextManager[Any],
    *,
    gradients: bool = False,
) -> Outcome:
    used, losses = copy.deepcopy(network), []
    with torch.enable_grad(), kept, _NoDropout():
        for rows in parts:
            value = loss(used, tuple(each.clone() for each in rows), batch)
            if gradients:
                value.backward()
            losses.append(float(value.detach()))
            getting_on()
    parameters = dict(used.named_parameters(remove_duplicate=False))
    state = {name: each for name, each in used.state_dict().items() if name not in parameters}
    return Outcome(
        losses,
        {name: each for name, each in state.items() if isinstance(each, Tensor)},
        {name: each.grad.flatten() for name, each in parameters.items() if each.grad is not None},
    )


def _none_kept(_: Any) -> Tensor:
    raise RuntimeError("its forward computes gradients")


def seen_in_a_call(network: nn.Module, rows: Rows) -> tuple[str, str]:
    """Call the network to find the first code line that draws random numbers, and a buffer that the call changes.

    Each is "" if there is none. The call may change the network. Errors of the network are ignored.
    """
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    with kept_generators(), suppress(Exception), _Draws() as draws:  # training reports the network's errors
        network(*rows)
    after = dict(network.named_buffers())
    kept = [name for name in before if name in after and before[name].shape == after[name].shape]
    same = {name for name in kept if torch.equal(before[name].nan_to_num(), after[name].nan_to_num())}
    return draws.place, next((name for name in before if name not in same), "")


def copied(network: nn.Module, dtype: torch.dtype, noise: float) -> nn.Module:
    """Copy a network to the CPU, in float64 if `dtype` is float64, and add random noise to its weights."""
    generator = torch.Generator().manual_seed(0)
    made = copy.deepcopy(network).cpu()
    if dtype == torch.float64:
        made = made.double()
    with torch.no_grad():
        for parameter in made.parameters() if noise else ():
            moved = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            parameter.add_(moved * noise * (1 + parameter.abs()))
    return made


def turn_off_dropout(network: nn.Module, *, with_norms: bool) -> None:
    """Turn off dropout by setting torch's and tlaunch's modules to eval mode (batch norms only if `with_norms`)."""
    for module in list(network.modules())[1:]:
        is_norm = isinstance(module, nn.modules.batchnorm._NormBase)  # noqa: SLF001 - the class of all of them
        if type(module).__module__.startswith(("torch.", "launcher.")) and (with_norms or not is_norm):
            module.training = False


def generators() -> tuple[Any, ...]:
    """Return the states of the global random generators of Python, NumPy, and torch on the CPU."""
    name, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002 - the network's code may use it
    return random.getstate(), (name, np.asarray(keys).tobytes(), *rest), torch.get_rng_state().numpy().tobytes()


@contextmanager
def kept_generators() -> Iterator[None]:
    """Restore the CPU random generators of Python, NumPy and torch on exit."""
    of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - likewise
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002 - likewise


class _Calls(TorchFunctionMode):
    """A context manager that intercepts every call of a torch function."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        return self.called(func, args, dict(kwargs or {}))

    @abstractmethod
    def called(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any: ...


class Precision(_Calls):
    """A context manager that records the lowest precision of all results that require gradients."""

    _eps = torch.finfo(torch.float64).eps

    @property
    def tolerance(self) -> float:
        """The relative difference that rounding may cause: 4e-11 in float64, 2e-5 in float32."""
        return self._eps ** (2 / 3)

    def called(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        for each in result if isinstance(result, tuple | list) else (result,):
            if isinstance(each, Tensor) and each.requires_grad:
                self._eps = max(self._eps, torch.finfo(each.dtype).eps)
        return result


class _Draws(_Calls):
    """A context manager that records the first line of code that uses torch's random generator."""

    place = ""

    def called(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        before = None if self.place else torch.get_rng_state()
        result = func(*args, **kwargs)
        if before is not None and not torch.equal(before, torch.get_rng_state()):
            self.place = line_of_caller() or "its code"
        return result


class _NoDropout(_Calls):
    """A context manager that turns off dropout functions, so that losses in training mode can be compared."""

    def called(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        if "dropout" in name and not name.startswith(("_", "native")):
            return args[0] if args else kwargs["input"]
        if func is functional.scaled_dot_product_attention:
            if len(args) > 4:  # query, key, value, mask, rate
                args = (*args[:4], 0.0, *args[5:])
            else:
                kwargs["dropout_p"] = 0.0
        return func(*args, **kwargs)
