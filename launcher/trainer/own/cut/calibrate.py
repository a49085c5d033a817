"""Measures the costs for auto_parallel's search: compute rates, and times of collectives between these ranks.

All ranks measure in float32 at the same time, so that shared cores and memory slow them down as in a real step.
Each number is the slowest rank's, since all ranks wait for it. All ranks get the same numbers, and so find the same
plan. Sizes are a rank's share of the network's largest product and of its largest tensor.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch

from launcher.sharding.cost import CollectiveTime, Costs, Sent
from launcher.sharding.graph import Graph, bytes_of
from launcher.sharding.layout import TensorLayout
from launcher.sharding.redistribution import steps_between
from launcher.trainer.own.cut.communication import Function, redistribution, sum_of_outputs
from launcher.trainer.own.cut.groups import Groups
from launcher.trainer.parallel.collectives import all_reduce

ROUNDS = 7  # rounds of a measurement; the result is the median
MIN_SIDE, MAX_SIDE = 16, 512  # side of the matrices of the timed product
MIN_BYTES, MAX_BYTES = 1 << 14, 1 << 22  # size of the tensors for memory bandwidth
MAX_TENSORS = 32
CHAIN = 16  # consecutive operators in a measurement; one is too short to time
SMALL_BYTES, LARGE_BYTES = 1 << 12, 1 << 21  # sizes of timed messages


def calibrated(graph: Graph, groups: Groups, device: torch.device, *, optimizer_states: int = 1) -> Costs:
    """Measure the costs of computation and communication on these ranks. This takes about a second.

    All ranks must call it. The search assumes `optimizer_states` optimizer tensors per parameter.
    """
    timer = _Timer(groups, device)
    operator_s = timer.slowest(_chain(device)) / (2 * CHAIN)
    side, size, count = _sizes(graph, groups.ranks)
    one, other = torch.randn(side, side, device=device), torch.randn(side, side, device=device)
    product_s = timer.slowest(lambda: torch.mm(one, other))
    tensors = [torch.randn(size // 4, device=device) for _ in range(count)]
    moved_s = timer.slowest(lambda: [torch.relu(each) for each in tensors], repeats=1) / len(tensors)
    collectives = [
        time_of
        for parts in range(2, groups.ranks + 1)
        if groups.ranks % parts == 0
        for time_of in _collective_times(timer, groups, parts, device)
    ]
    return Costs(
        flops_per_s=2 * side**3 / _beyond(product_s, operator_s),
        bytes_per_s=2 * size / _beyond(moved_s, operator_s),
        operator_s=operator_s,
        collectives=tuple(collectives),
        optimizer_states=optimizer_states,
    )


class _Timer:
    def __init__(self, groups: Groups, device: torch.device) -> None:
        self._all = groups.along((groups.ranks,), (0,), over_copies=True)
        self._device = device

    def slowest(self, work: Callable[[], object], repeats: int = 4) -> float:
        """Return the median time in seconds that the slowest rank takes for one call of `work`."""
        work()
        taken_s = []
        for _ in range(ROUNDS):
            all_reduce(torch.zeros(1, device=self._device), self._all)
            self._settle()
            began_s = time.perf_counter()
            for _ in range(repeats):
                work()
            self._settle()
            taken_s.append((time.perf_counter() - began_s) / repeats)
        found = torch.tensor([median(taken_s)], dtype=torch.float64, device=self._device)
        return float(all_reduce(found, self._all, "max"))

    def _settle(self) -> None:
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)


def _chain(device: torch.device) -> Callable[[], object]:
    """Return a function that runs many tiny operators forward and backward, to time the fixed cost of an operator."""
    start = torch.ones(16, device=device, requires_grad=True)

    def forward_and_backward() -> None:
        value = start
        for _ in range(CHAIN):
            value = torch.relu(value)
        torch.autograd.grad(value.sum(), start)

    return forward_and_backward


def _sizes(graph: Graph, ranks: int) -> tuple[int, int, int]:
    """Return the sizes to measure with: the side of a square matrix, the bytes of a tensor, and the number of tensors.

    The product of the matrices has the FLOPs of a rank's share of the largest product. The tensor is a rank's share of
    the largest one. Together, the tensors are as large as a rank's share of all tensors.
    """
    flops = max((operator.flops for operator in graph.operators), default=0)
    side = round(min(max((flops / ranks / 2) ** (1 / 3), MIN_SIDE), MAX_SIDE))
    tensors = [bytes_of(each) for each in graph.by_name.values()]
    size = round(min(max(max(tensors) / ranks, MIN_BYTES), MAX_BYTES)) // 4 * 4
    return side, size, min(max(round(sum(tensors) / ranks / size), 1), MAX_TENSORS)


def _collective_times(timer: _Timer, groups: Groups, parts: int, device: torch.device) -> list[CollectiveTime]:
    """Measure the latency and the time per byte of each collective among `parts` ranks."""
    devices = (groups.ranks // parts, parts)
    rows = TensorLayout(devices, ((1,), ()))
    [gather] = steps_between(rows, TensorLayout(devices, ((), ())))
    [exchange] = steps_between(rows, TensorLayout(devices, ((), (1,))))
    functions: dict[Sent, Function] = {
        "all_reduce": sum_of_outputs(groups.along(devices, (1,))),
        "all_gather": redistribution(gather, groups, has_gradient=False),
        "all_to_all": redistribution(exchange, groups, has_gradient=False),
    }
    found = []
    for kind, function in functions.items():
        taken_s = []
        for size in (SMALL_BYTES, LARGE_BYTES):  # for an all-gather of its output, as `Collective.bytes` counts
            columns = -(-size // 4 // 16 // parts) * parts
            message = torch.zeros(16 // (parts if kind == "all_gather" else 1) or 1, columns, device=device)
            taken_s.append(timer.slowest(partial(function, message)))
        small_s, large_s = taken_s
        s_per_byte = max(0.0, large_s - small_s) / (LARGE_BYTES - SMALL_BYTES)
        found.append(CollectiveTime(kind, parts, max(0.0, small_s - SMALL_BYTES * s_per_byte), s_per_byte))
    return found


def _beyond(seconds: float, operator_s: float) -> float:
    """Subtract an operator's fixed cost from a measured time, but return at least a tenth of that time."""
    return max(seconds - operator_s, seconds / 10)
