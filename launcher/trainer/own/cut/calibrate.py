"""Measures on the ranks themselves what the search of auto_parallel has to know: rates of compute, and times of collectives.

All ranks measure in float32 at the same time, as they compute and communicate in a step: where they share cores or memory they are slowed
down as they will be. Of each number the slowest rank's counts, for which all wait; so all ranks have the same numbers, and
choose alike. Sizes are those of a rank's share of the network's largest product, and of its largest tensor.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from torch import Tensor

from launcher.recipes.strategies import AUTO, DYNAMIC_PROGRAMMING
from launcher.sharding.cost import CollectiveTime, Costs, Sent
from launcher.sharding.graph import Graph, bytes_of
from launcher.sharding.layout import TensorLayout
from launcher.sharding.redistribution import steps_between
from launcher.trainer.own.cut.communication import Function, redistribution, sum_of_outputs
from launcher.trainer.own.cut.groups import Groups
from launcher.trainer.parallel.collectives import all_reduce

ROUNDS = 7  # of which the median counts
MIN_SIDE, MAX_SIDE = 16, 512  # of the matrices whose product is timed
MIN_BYTES, MAX_BYTES = 1 << 14, 1 << 22  # of a tensor that is read and written
MAX_TENSORS = 32
CHAIN = 16  # operators, one after another, of which one is too fast for a clock
SMALL_BYTES, LARGE_BYTES = 1 << 12, 1 << 21  # of messages


def calibrated(graph: Graph, groups: Groups, device: torch.device, *, optimizer_states: int = 1) -> Costs:
    """Return the costs on these ranks, for networks of such sizes, in about a second. All ranks have to call it."""
    timer = _Timer(groups, device)
    operator_s = timer.slowest(_chain(device)) / (2 * CHAIN)
    side, size = _product_side(graph, groups.ranks), _tensor_bytes(graph, groups.ranks)
    one, other = torch.randn(side, side, device=device), torch.randn(side, side, device=device)
    product_s = timer.slowest(lambda: torch.mm(one, other))
    tensors = [torch.randn(size // 4, device=device) for _ in range(_tensor_count(graph, groups.ranks, size))]
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


def costs_for(graph: Graph, mode: str, search_mode: str, groups: Groups, device: torch.device) -> Costs | None:
    """Return the costs on these ranks where a search of this mode needs them, else None. All ranks have to call it."""
    is_searched = (mode, search_mode) == (AUTO, DYNAMIC_PROGRAMMING) and groups.ranks > 1
    return calibrated(graph, groups, device) if is_searched else None


class _Timer:
    """Times what all ranks do together, or each on its own at the same time."""

    def __init__(self, groups: Groups, device: torch.device) -> None:
        self._all = groups.along((groups.ranks,), (0,), over_copies=True)
        self._device = device

    def slowest(self, work: Callable[[], object], repeats: int = 4) -> float:
        """Return the seconds that `work` takes the slowest rank: the median of rounds, in each of which it is repeated."""
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
    """Return small operators, forward and backward: all that they take is what an operator takes of any size."""
    start = torch.ones(16, device=device, requires_grad=True)

    def forward_and_backward() -> None:
        value = start
        for _ in range(CHAIN):
            value = torch.relu(value)
        torch.autograd.grad(value.sum(), start)

    return forward_and_backward


def _product_side(graph: Graph, ranks: int) -> int:
    """Return the side of square matrices whose product is as much work as a rank's share of the largest product."""
    largest = max((operator.flops for operator in graph.operators), default=0)
    return round(min(max((largest / ranks / 2) ** (1 / 3), MIN_SIDE), MAX_SIDE))


def _tensor_bytes(graph: Graph, ranks: int) -> int:
    """Return the size of a rank's share of the largest tensor."""
    largest = max(map(bytes_of, graph.by_name.values()))
    return round(min(max(largest / ranks, MIN_BYTES), MAX_BYTES)) // 4 * 4


def _tensor_count(graph: Graph, ranks: int, size: int) -> int:
    """Return how many such tensors a rank has in a step, at most: each is read again when all others have been."""
    return min(max(round(sum(map(bytes_of, graph.by_name.values())) / ranks / size), 1), MAX_TENSORS)


def _collective_times(timer: _Timer, groups: Groups, parts: int, device: torch.device) -> list[CollectiveTime]:
    """Return what each kind takes in groups of so many ranks: the line through a small message and a large one."""
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
        small_s, large_s = (
            timer.slowest(partial(function, _message(kind, parts, size, device))) for size in (SMALL_BYTES, LARGE_BYTES)
        )
        s_per_byte = max(0.0, large_s - small_s) / (LARGE_BYTES - SMALL_BYTES)
        found.append(CollectiveTime(kind, parts, max(0.0, small_s - SMALL_BYTES * s_per_byte), s_per_byte))
    return found


def _message(kind: Sent, parts: int, size: int, device: torch.device) -> Tensor:
    """Return what a rank calls with for a message that is told as so many bytes: of a gather, after it (`Collective.bytes`)."""
    columns = -(-size // 4 // 16 // parts) * parts
    return torch.zeros(16 // (parts if kind == "all_gather" else 1) or 1, columns, device=device)


def _beyond(seconds: float, operator_s: float) -> float:
    """Return the time that is the work's own; at least a tenth, since the fixed time is a measurement, too."""
    return max(seconds - operator_s, seconds / 10)
