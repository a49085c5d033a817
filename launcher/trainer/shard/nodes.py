"""What torch.fx finds in a network's code: its calls, in their order, with nothing computed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from traceback import walk_stack, walk_tb
from types import FrameType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from launcher.core.errors import UsageError
from launcher.trainer.shard.modules import Operation, class_name

# Of a module, those that do more than its forward says.
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


Leaves = tuple[type[nn.Module], ...]
LINE = "line"  # of a node's meta: where it is called, "net.py:12", or "" for code that is not a person's own
_NOT_OWN = (f"{Path(torch.__file__).parent}{os.sep}", f"{Path(__file__).parents[2]}{os.sep}")  # torch and this package


class _Tracer(fx.Tracer):
    """Looks into every module but torch's own and those of some classes."""

    def __init__(self, leaves: Leaves) -> None:
        super().__init__()
        self._leaves = leaves

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, self._leaves) or super().is_leaf_module(m, module_qualified_name)

    def create_node(self, *arguments: Any, **options: Any) -> fx.Node:
        if not torch.is_grad_enabled():
            raise UsageError("its forward turns gradients off", hint="freeze parameters by requires_grad_(False)")
        if torch.is_autocast_enabled("cpu"):
            raise UsageError("its forward turns autocast on", hint="a network of one type")
        node = super().create_node(*arguments, **options)
        node.meta[LINE] = _line_of(frame for frame, _ in walk_stack(None))
        return node


def nodes_of(network: nn.Module, leaves: Leaves = (Operation,)) -> tuple[list[fx.Node], dict[str, Any]]:
    """Return the calls of a network, and the constants in its code, which torch.fx leaves in the network, by its names for them.

    Modules of the classes `leaves`, and of torch, are calls themselves, whatever is in them.

    Raises:
        UsageError: it cannot be traced, or its calls are not all that it does: they change from one forward to the next,
            or hooks and parametrizations do more.
    """
    name = class_name(network)
    for path, module in network.named_modules():
        if parametrize.is_parametrized(module):
            raise UsageError(f"{name} cannot be traced: {path or name} is parametrized", hint="plain parameters")
        if any(getattr(module, hooks) for hooks in HOOKS):
            raise UsageError(f"{name} cannot be traced: {path or name} has hooks", hint="no hooks")
    states = {path: (id(buffer), buffer._version) for path, buffer in network.named_buffers()}  # noqa: SLF001 - as autograd counts changes
    nodes, constants = _traced(network, leaves)
    again, constants_again = _traced(network, leaves)
    changed = {path: (id(buffer), buffer._version) for path, buffer in network.named_buffers()} != states  # noqa: SLF001 - the same
    if changed or _text(nodes) != _text(again) or not _are_equal(constants, constants_again):
        raise UsageError(
            f"{name} cannot be traced: what its forward does differs from one call to the next",
            hint="its forward must not change the network's state, or draw random numbers",
        )
    return nodes, constants


def _traced(network: nn.Module, leaves: Leaves) -> tuple[list[fx.Node], dict[str, Any]]:
    before = dict(vars(network))
    try:
        with torch.enable_grad():
            nodes = list(_Tracer(leaves).trace(network).nodes)
    except Exception as error:  # whatever the network's own code raises when it is given no values
        first = str(error).partition("\n")[0]
        hint = error.hint if isinstance(error, UsageError) else None
        kind = "" if isinstance(error, UsageError) else f"{type(error).__name__}: "
        line = _line_of(reversed([frame for frame, _ in walk_tb(error.__traceback__)]))
        raise UsageError(
            f"{line and f'{line}: '}{class_name(network)} cannot be traced: {kind}{first}",
            hint=hint or "its forward must not decide by the values of tensors, or convert them to numbers",
        ) from error
    finally:
        constants = {name: value for name, value in vars(network).items() if name not in before}
        for name in constants:
            delattr(network, name)
    return nodes, constants


def _line_of(frames: Iterable[FrameType]) -> str:
    """Return the line of the first of these frames that is in a person's own code; nothing where none is."""
    for frame in frames:
        path = frame.f_code.co_filename
        if not path.startswith((*_NOT_OWN, "<")):
            return f"{Path(path).name}:{frame.f_lineno}"
    return ""


def _text(nodes: Iterable[fx.Node]) -> list[str]:
    return [f"{node.op} {node.target} {node.args} {node.kwargs}" for node in nodes]


def _are_equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two traces have the same constants; tensors without storage have no values that could differ."""
    return one.keys() == other.keys() and all(
        value is other[name] or not isinstance(value, Tensor) or value.is_meta or torch.equal(value, other[name])
        for name, value in one.items()
    )


def tensors_of(network: nn.Module) -> Iterable[tuple[str, Tensor]]:
    yield from network.named_parameters()
    yield from network.named_buffers()


def attribute_of(network: nn.Module, path: str) -> Any:
    *modules, name = path.split(".")
    return getattr(network.get_submodule(".".join(modules)), name)
