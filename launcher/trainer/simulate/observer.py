"""Watches the operators of a simulated step: tensors that it creates and frees, FLOPs, collectives, and host reads."""

from __future__ import annotations

import inspect
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from launcher.core.frozen import frozen
from launcher.sharding.strategy_report import ReportPhase
from launcher.trainer.parallel import collectives
from launcher.trainer.simulate.torch_internals import (
    DispatchMode,
    address_of,
    flops_of,
    group_of_operator,
    is_copy,
    is_host_read,
    name_of,
    tensors_in,
)
from launcher.trainer.telemetry import recording

# By c10d operator: the kind in reports, and the position of the tensors that it sends or receives.
_COLLECTIVES = {
    "allreduce_": ("all_reduce", 0),
    "_allgather_base_": ("all_gather", 0),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "alltoall_base_": ("all_to_all", 1),
    "send": ("send", 0),
    "recv_": ("receive", 0),
}
_OBSERVING = ("launcher.trainer.simulate", "launcher.trainer.telemetry")
HOST_VALUE = 1.0  # of each value that a step reads: of norms, losses and votes


READERS = tuple(f"{collectives.__name__}.{each.__name__}" for each in (collectives.host_value, collectives.host_values))


class HostReadError(RuntimeError):
    """Raised if a step reads a value from the device elsewhere than in `READERS`."""


@frozen
class Allocation:
    """A tensor storage, and the operator that created it."""

    bytes: int
    phase: ReportPhase
    operator: str  # of the model, such as "encoder.0.attention.query"; "" if unknown, as mostly in backward
    function: str  # of torch, such as "addmm"
    is_from_host: bool = False  # a copy of a tensor on the host: the ids of a batch


@frozen
class StartedCollective:
    """A collective or message that torch.distributed was asked for."""

    kind: str
    group: tuple[int, ...] | None  # None: the operator does not say its group
    bytes: int


class StepObserver(DispatchMode):
    """Observes all operators inside a `with` block. Only tensors on `device` count."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device_type = device.type
        self.allocations: list[Allocation] = []
        self.events: list[int] = []  # n: allocation n is created; ~n: it is freed
        self.flops: Counter[ReportPhase] = Counter()
        self.collectives: Counter[StartedCollective] = Counter()
        self.reads: Counter[str] = Counter()  # by the function that asked for a value
        self._live: dict[int, tuple[int, Any]] = {}  # by address: allocation, and a weak reference to the storage

    def forget_step(self) -> None:
        """Restart the counts of FLOPs, collectives and reads. Allocations stay."""
        self.flops.clear()
        self.collectives.clear()
        self.reads.clear()

    def allocations_of(self, tensors: Iterable[Tensor]) -> set[int]:
        """Return the numbers of the allocations that hold `tensors`."""
        found = {self._live.get(address_of(tensor.untyped_storage())) for tensor in tensors}
        return {each[0] for each in found if each is not None}

    @property
    def live(self) -> set[int]:
        """The numbers of the allocations that are not freed."""
        return {number for number, _ in self._live.values()}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        namespace = function.namespace
        if namespace == "prim":  # asks for the device of a tensor
            return function(*args)
        kwargs = kwargs or {}
        if is_host_read(function):
            return self._read(args[0])
        output = function(*args, **kwargs)
        active = recording.active
        phase: ReportPhase = "optimizer" if active is None else active.current_phase
        if namespace == "c10d":
            self._count_collective(function, args)
        elif flops := flops_of(function, args, kwargs, output):
            self.flops[phase] += flops
        for tensor in tensors_in(output):
            storage = tensor.untyped_storage()
            address = address_of(storage)
            if address not in self._live and tensor.device.type == self._device_type:
                operator = "" if active is None else active.operator
                from_host = self._is_copy(function, args)
                self._hold(
                    address, storage, Allocation(storage.nbytes(), phase, operator, name_of(function), from_host)
                )
        return output

    def _hold(self, address: int, storage: torch.UntypedStorage, allocation: Allocation) -> None:
        number = len(self.allocations)
        self.allocations.append(allocation)
        self.events.append(number)

        def freed(_reference: Any) -> None:
            del self._live[address]
            self.events.append(~number)

        self._live[address] = number, weakref.ref(storage, freed)

    def _is_copy(self, function: Any, args: tuple[Any, ...]) -> bool:
        """Return True if an operator copies a tensor from the host to the device."""
        return is_copy(function) and args[0].device.type != self._device_type

    def _count_collective(self, function: Any, args: tuple[Any, ...]) -> None:
        kind, position = _COLLECTIVES.get(name_of(function), (name_of(function), 0))
        size = sum(tensor.nbytes for tensor in tensors_in(args[position]))
        self.collectives[StartedCollective(kind, group_of_operator(args), size)] += 1

    def _read(self, tensor: Tensor) -> float | int | bool:
        """Answer a read of one value. Raise HostReadError unless one of `READERS` asks for it, or it is on the host."""
        asking = _asking()
        if tensor.device.type != "cpu" and asking not in READERS:
            raise HostReadError(f"{asking} reads a value of {tensor.device}; expected one of {', '.join(READERS)}")
        self.reads[asking] += 1
        return HOST_VALUE if tensor.dtype.is_floating_point else int(HOST_VALUE)


def _asking() -> str:
    """Return the name, with its module, of the trainer's function that is running, except functions that only observe."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_back is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("launcher.") and not name.startswith(_OBSERVING):
            break
        frame = frame.f_back
    assert frame is not None, "Python keeps the frames of its functions"
    return f"{frame.f_globals.get('__name__', '')}.{frame.f_code.co_name}"
