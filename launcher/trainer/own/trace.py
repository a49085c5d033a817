"""Tracing of a network's calls with torch.fx, without computing values."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from functools import partialmethod
from pathlib import Path
from traceback import walk_stack, walk_tb
from types import FrameType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from launcher.core.errors import UsageError
from launcher.core.frozen import frozen

# Attributes of a module that hold hooks, which a trace of its forward does not show.
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


LINE = "line"  # key in a node's meta: the line of the call, such as "net.py:12", or "" outside user code
OVERWRITES = "overwrites"  # key in a node's meta: True for `x += y`, which changes x
_NOT_OWN = (f"{Path(torch.__file__).parent}{os.sep}", f"{Path(__file__).parents[2]}{os.sep}")  # torch and this package


@frozen
class Tracing:
    leaves: tuple[type[nn.Module], ...]  # modules that are traced as one call, like torch's own modules
    defaults: Mapping[str, Any] = field(default_factory=dict)  # arguments with fixed values, which are not inputs
    keeps_in_place: bool = False  # record `x += y` as an in-place operator instead of `x = x + y`
    variable: int = 0  # the number of inputs in the forward's `*args`; 0 if it counts as one input


class _Tracer(fx.Tracer):
    """A tracer that enters every module except torch's own and the given leaf classes."""

    def __init__(self, how: Tracing) -> None:
        super().__init__()
        self.how = how

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, self.how.leaves) or super().is_leaf_module(m, module_qualified_name)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _InPlace(node, self)

    def create_args_for_root(
        self,
        root_fn: Callable[..., Any],
        is_module: bool,
        concrete_args: dict[str, Any] | tuple[Any, ...] | None = None,
    ) -> tuple[Callable[..., Any], list[Any]]:
        """Return the forward function and its proxy arguments, with one proxy for each item of `*args`."""
        function, given = super().create_args_for_root(root_fn, is_module, concrete_args)
        for place, each in enumerate(given):
            name = str(each.node.target) if isinstance(each, fx.Proxy) and each.node.op == "placeholder" else ""
            if self.how.variable and name.startswith("*") and not name.startswith("**"):
                names = variable_names(name[1:], self.how.variable)
                given[place] = tuple(self.create_proxy("placeholder", own, (), {}) for own in names)
                self.graph.erase_node(each.node)
        return function, given

    def create_node(self, *arguments: Any, **options: Any) -> fx.Node:
        if not torch.is_grad_enabled():
            raise UsageError("the forward turns gradients off", hint="remove torch.no_grad() from the forward")
        if torch.is_autocast_enabled("cpu"):
            hint = "remove autocast; use one dtype for the entire network"
            raise UsageError("the forward turns autocast on", hint=hint)
        node = super().create_node(*arguments, **options)
        node.meta[LINE] = line_of_caller()
        return node


def variable_names(name: str, count: int) -> tuple[str, ...]:
    """Return `count` names, for the inputs that a network takes as `*name`."""
    return tuple(f"{name}_{number}" for number in range(1, count + 1))


class _InPlace(fx.Proxy):
    """A proxy that records in-place operators such as `x += y`."""

    def called(self, other: Any, *, function: Callable[..., Any]) -> fx.Proxy:
        keeps = self.tracer.how.keeps_in_place  # type: ignore[attr-defined] # a _Tracer
        made = self.tracer.create_proxy("call_function", function if keeps else IN_PLACE[function], (self, other), {})
        made.node.meta[OVERWRITES] = True
        return made


_NAMES = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")
# From an in-place operator to the one that returns a new tensor.
IN_PLACE = {getattr(operator, f"__i{name}__"): getattr(operator, f"__{name}__") for name in _NAMES}
for _name in _NAMES:
    setattr(_InPlace, f"__i{_name}__", partialmethod(_InPlace.called, function=getattr(operator, f"__i{_name}__")))


def nodes_of(network: nn.Module, how: Tracing) -> tuple[list[fx.Node], dict[str, Any]]:
    """Trace a network, and return its torch.fx nodes and the constants in its code by name.

    Raises:
        UsageError: the network cannot be traced, its calls differ between two forwards, or it has hooks or
            parametrizations, which a trace does not show.
    """
    name = class_name(network)
    for path, module in network.named_modules():
        if parametrize.is_parametrized(module):
            raise UsageError(
                f"{name} cannot be traced: {path or name} is parametrized",
                hint="remove the parametrization; use plain parameters",
            )
        if any(getattr(module, hooks) for hooks in HOOKS):
            raise UsageError(f"{name} cannot be traced: {path or name} has hooks", hint="remove the hooks")
    states = {path: (id(buffer), buffer._version) for path, buffer in network.named_buffers()}  # noqa: SLF001 - as autograd counts changes
    nodes, constants = _traced(network, how)
    again, constants_again = _traced(network, how)
    changed = {path: (id(buffer), buffer._version) for path, buffer in network.named_buffers()} != states  # noqa: SLF001 - the same
    if changed or text_of(nodes) != text_of(again) or not _are_equal(constants, constants_again):
        raise UsageError(
            f"{name} cannot be traced: its forward differs from one call to the next",
            hint="do not change the network's state or draw random numbers in the forward",
        )
    return nodes, constants


def _traced(network: nn.Module, how: Tracing) -> tuple[list[fx.Node], dict[str, Any]]:
    before = dict(vars(network))
    try:
        with torch.enable_grad():
            nodes = list(_Tracer(how).trace(network, dict(how.defaults) or None).nodes)
    except Exception as error:  # the network's code may raise anything for a tensor without values
        first = str(error).partition("\n")[0]
        hint = error.hint if isinstance(error, UsageError) else None
        kind = "" if isinstance(error, UsageError) else f"{type(error).__name__}: "
        line = _line_of(reversed([frame for frame, _ in walk_tb(error.__traceback__)]))
        raise UsageError(
            f"{line and f'{line}: '}{class_name(network)} cannot be traced: {kind}{first}",
            hint=hint or "do not branch on tensor values or convert tensors to numbers in the forward",
        ) from error
    finally:
        constants = {name: value for name, value in vars(network).items() if name not in before}
        for name in constants:
            delattr(network, name)
    return nodes, constants


def _line_of(frames: Iterable[FrameType]) -> str:
    """Return the file and line of the first frame in user code, or "" if there is none."""
    for frame in frames:
        path = frame.f_code.co_filename
        if not path.startswith((*_NOT_OWN, "<")):
            return f"{Path(path).name}:{frame.f_lineno}"
    return ""


def line_of_caller() -> str:
    """Return the file and line of the innermost caller in user code, or "" if there is none."""
    return _line_of(frame for frame, _ in walk_stack(None))


def text_of(nodes: Iterable[fx.Node]) -> list[str]:
    """Return one line of text for each node, to compare two traces."""
    return [f"{node.op} {node.target} {node.args} {node.kwargs}" for node in nodes]


def _are_equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return True if two traces have equal constants. The values of meta tensors are not compared."""
    return one.keys() == other.keys() and all(
        value is other[name] or not isinstance(value, Tensor) or value.is_meta or torch.equal(value, other[name])
        for name, value in one.items()
    )


class WithLoss(nn.Module):
    """A module that computes the loss of a network. It is called with the network's input and the label.

    Messages name the network's modules without the prefix `network.`; see `own_name`.
    """

    def __init__(self, network: nn.Module, loss: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.loss = loss

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        return self.loss(self.network(x), label)


def class_name(network: nn.Module) -> str:
    """Return the class name of the network, or of the network that a `WithLoss` wraps."""
    return type(network.network if isinstance(network, WithLoss) else network).__name__


def own_name(network: nn.Module, path: str) -> str:
    """Return the path of a module without the prefix that `WithLoss` adds."""
    return path.removeprefix("network.") if isinstance(network, WithLoss) else path
