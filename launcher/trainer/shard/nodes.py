"""What torch.fx finds in a network's code: its calls, in their order, with nothing computed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, fx, nn

from launcher.core.errors import UsageError
from launcher.trainer.shard.modules import Operation


class _Tracer(fx.Tracer):
    """Looks into every module but those that are operators."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, Operation) or super().is_leaf_module(m, module_qualified_name)


def nodes_of(network: nn.Module) -> tuple[list[fx.Node], dict[str, Any]]:
    """Return the calls of a network, and the constants in its code, which torch.fx leaves in the network, by its names for them."""
    before = set(vars(network))
    try:
        nodes = list(_Tracer().trace(network).nodes)
    except Exception as error:  # whatever the network's own code raises when it is given no values
        first = str(error).partition("\n")[0]
        raise UsageError(
            f"{type(network).__name__} cannot be traced: {type(error).__name__}: {first}",
            hint="its forward must not decide by the values of tensors, or convert them to numbers",
        ) from error
    finally:
        constants = {name: value for name, value in vars(network).items() if name not in before}
        for name in constants:
            delattr(network, name)
    return nodes, constants


def tensors_of(network: nn.Module) -> Iterable[tuple[str, Tensor]]:
    yield from network.named_parameters()
    yield from network.named_buffers()


def attribute_of(network: nn.Module, path: str) -> Any:
    *modules, name = path.split(".")
    return getattr(network.get_submodule(".".join(modules)), name)
