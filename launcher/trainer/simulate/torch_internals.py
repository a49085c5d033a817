"""The private names of torch that a simulated step uses. No other module of this package imports one.

a device without hardware    torch.utils.backend_registration     accepts tensors, but computes nothing
fake tensors                 torch._subclasses.fake_tensor        have a device, a dtype and a shape, but no values
a process group `fake`       torch.testing._internal              one process stands for any rank
FLOPs                        torch.utils.flop_counter             formulas by operator
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode as DispatchMode

from launcher.core.errors import UsageError
from launcher.core.frozen import frozen

__all__ = [
    "DispatchMode",
    "Internals",
    "address_of",
    "fake_tensors",
    "flops_of",
    "group_of_operator",
    "internals",
    "is_copy",
    "is_host_read",
    "joined",
    "make_device",
    "name_of",
    "tensors_in",
]

TESTED = "2.13"
_NAMES = {
    "setup_device": "torch.utils.backend_registration:_setup_privateuseone_for_python_backend",
    "backend_module": "torch.utils.backend_registration:_DummyBackendModule",
    "fake_tensor_mode": "torch._subclasses.fake_tensor:FakeTensorMode",
    "fake_store": "torch.testing._internal.distributed.fake_pg:FakeStore",
    "flop_formulas": "torch.utils.flop_counter:flop_registry",
    "process_group": "torch._C._distributed_c10d:ProcessGroup",
    "fused_attention": "torch:ops.aten._scaled_dot_product_efficient_attention",
    "linear_on_cpu": "torch:ops.mkldnn._linear_pointwise",
}


@frozen
class Internals:
    setup_device: Callable[..., None]
    backend_module: type[Any]
    fake_tensor_mode: type[Any]
    fake_store: type[Any]
    flop_formulas: Mapping[Any, Callable[..., int]]
    process_group: Any
    fused_attention: Callable[..., Any]
    linear_on_cpu: Any


@cache
def internals() -> Internals:
    """Return torch's private names.

    Raises:
        UsageError: this version of torch lacks some of them.
    """
    found: dict[str, Any] = {}
    missing = []
    for field, name in _NAMES.items():
        module, _, attributes = name.partition(":")
        try:
            value: Any = import_module(module)
            for attribute in attributes.split("."):
                value = getattr(value, attribute)
            found[field] = value
        except (ImportError, AttributeError):
            missing.append(name.replace(":", "."))
    if missing:
        raise UsageError(
            f"a simulated step needs {', '.join(missing)}, which torch {torch.__version__} does not have",
            hint=f"use torch {TESTED}, which is tested",
        )
    return Internals(**found)


@cache
def make_device(name: str) -> torch.device:
    """Return a device called `name` that has no hardware. A process can make one such device."""
    known = internals()

    class Absent(known.backend_module):  # type: ignore[name-defined]
        """Says that the device is absent, so that torch does not try to compute constants on it."""

        def is_available(self) -> bool:
            return False

    known.setup_device(name, backend_module=Absent())
    return torch.device(name, 0)


def fake_tensors() -> AbstractContextManager[Any]:
    """Return a context in which tensors have no values. An operator that mixes devices raises a RuntimeError."""
    mode: AbstractContextManager[Any] = internals().fake_tensor_mode(allow_non_fake_inputs=True)
    return mode


@contextmanager
def joined(rank: int, world_size: int) -> Iterator[None]:
    """Initialize torch.distributed as `rank` of a job whose other ranks do not exist. Collectives change nothing."""
    dist.init_process_group("fake", store=internals().fake_store(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def group_of_operator(arguments: tuple[Any, ...]) -> tuple[int, ...] | None:
    """Return the ranks of the process group among the arguments of a c10d operator, or None without one."""
    for each in arguments:
        if isinstance(each, torch.ScriptObject):
            try:
                group = internals().process_group.unbox(each)
            except (RuntimeError, TypeError):  # another object, such as a reduce operation
                continue
            return tuple(dist.get_process_group_ranks(group))
    return None


def flops_of(operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> int:
    """Return the FLOPs of a call: two per multiply-add of a matrix product or attention, and none of other operators."""
    packet = operator._overloadpacket
    if packet is internals().linear_on_cpu:
        left, right = args[0], args[1]
        return 2 * left.numel() * (right.numel() // left.shape[-1])
    # The formulas lack the product that adds in place.
    formula = internals().flop_formulas.get(torch.ops.aten.addmm if packet is torch.ops.aten.addmm_ else packet)
    return 0 if formula is None else formula(*args, **kwargs, out_val=output)


def is_host_read(operator: Any) -> bool:
    """Return True for the operator behind `item`, `tolist`, `float` and `bool`: the host waits for one value."""
    return operator is torch.ops.aten._local_scalar_dense.default


def is_copy(operator: Any) -> bool:
    """Return True for the operator behind `to`, if it creates a new tensor."""
    return operator is torch.ops.aten._to_copy.default


def name_of(operator: Any) -> str:
    name: str = operator._opname
    return name


def address_of(storage: torch.UntypedStorage) -> int:
    """Return a number that no other storage has while this one exists."""
    return storage._cdata


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in the result of an operator."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from tensors_in(each)
