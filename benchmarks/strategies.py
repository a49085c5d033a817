"""Claim: the strategies chosen by auto_parallel take at most a tenth longer than the best of all measured ones.

    python benchmarks/strategies.py [--only NAME] [--rounds N] [--ranks N]

Training steps (forward, backward, gradient reduction, SGD with momentum) run on 2 and 4 ranks with one thread each,
in float32:

    long, wide     the quickstart network: x (rows, inner), matmul, relu, matmul2 and the mean squared error; with more
                   rows than features, and with more features than rows: gradient reduction is cheap or dominant
    mlp            two linear layers with biases and a GELU between, cross entropy
    attention      multi-head self-attention with its four linear layers and a residual

On 2 ranks, all assignments of the quickstart network are measured. In all other cases, only those that differ in the
products with weights are, and the rest is propagated; in attention, query, key and value have the same strategy. All
candidates take a few steps, one after another. The fastest quarter then takes twice as many steps, and so on. The
last few, data parallelism and the choice take turns in many rounds. The fastest of a few steps counts in each round,
because other load only adds time, and the medians of rounds are compared. The choice takes part twice; the difference
between the two is noise.

Costs are measured on the ranks before the search (launcher/trainer/own/cut/calibrate.py). Exits with 1 if a choice is
worse.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from statistics import median
from typing import Any

import torch
from common.checks import Bound, Checks
from common.options import parser
from torch import Tensor, nn
from torch.nn import functional
from training.layouts import in_ranks

from launcher.mesh.boxes import full_box
from launcher.sharding.cost import Costs, step_s
from launcher.sharding.expression import Partition, cuttings
from launcher.sharding.plan import plan_of
from launcher.sharding.propagation import propagated
from launcher.sharding.search import searched
from launcher.trainer.own.cut.calibrate import calibrated
from launcher.trainer.own.cut.groups import Groups
from launcher.trainer.own.cut.modes import data_parallel
from launcher.trainer.own.cut.operator_graph import Traced, trace
from launcher.trainer.own.cut.sharded_network import ShardedNetwork
from launcher.trainer.parallel.collectives import all_reduce
from launcher.trainer.parallel.world import World
from launcher.trainer.shard.modules import MatMul, ReLU

CPU = torch.device("cpu")
FINALISTS, ROUNDS = 6, 20
STEPS = 4  # of a round, of which the fastest counts: other work on the machine only adds to the time
Assignment = Mapping[str, Partition]


class Quickstart(nn.Module):
    def __init__(self, inner: int, hidden: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inner, hidden) / math.sqrt(inner))
        self.weight2 = nn.Parameter(torch.randn(hidden, columns) / math.sqrt(hidden))
        self.matmul, self.relu, self.matmul2 = MatMul(), ReLU(), MatMul()

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        return functional.mse_loss(self.matmul2(self.relu(self.matmul(x, self.weight)), self.weight2), label)


class Perceptron(nn.Module):
    def __init__(self, inner: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.fc1, self.gelu, self.fc2 = nn.Linear(inner, hidden), nn.GELU(), nn.Linear(hidden, classes)

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        return functional.cross_entropy(self.fc2(self.gelu(self.fc1(x))), label)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width, bias=False)

    def split(self, hidden: Tensor) -> Tensor:
        batch, length, _ = hidden.shape
        return hidden.view(batch, length, self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = (query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))).softmax(dim=-1)
        return functional.mse_loss(x + self.out((scores @ value).transpose(1, 2).flatten(2)), label)


# Of each: what makes the network and its inputs, and the groups of operators that are cut alike in all ways.
CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, Tensor]], tuple[tuple[str, ...], ...]]] = {
    "long": (
        lambda: Quickstart(192, 192, 192),
        lambda: (torch.randn(2048, 192), torch.randn(2048, 192)),
        (("matmul",), ("matmul2",)),
    ),
    "wide": (
        lambda: Quickstart(768, 768, 768),
        lambda: (torch.randn(64, 768), torch.randn(64, 768)),
        (("matmul",), ("matmul2",)),
    ),
    "mlp": (
        lambda: Perceptron(384, 1536, 384),
        lambda: (torch.randn(128, 384), torch.randint(384, (128,))),
        (("fc1",), ("fc2",)),
    ),
    "attention": (
        lambda: Attention(256, 8),
        lambda: (torch.randn(8, 64, 256), torch.randn(8, 64, 256)),
        (("query", "key", "value"), ("out",)),
    ),
}


def main() -> int:
    options_parser = parser(__doc__, tuple(CASES))
    options_parser.add_argument("--ranks", type=int, choices=(2, 4), action="append")
    options = options_parser.parse_args()
    checks = Checks()
    for name in options.only or CASES:
        for ranks in options.ranks or (2, 4):
            found = in_ranks(partial(measured, name, options.rounds or ROUNDS), mp=ranks)
            print(f"{name} on {ranks} ranks: {found['count']} strategies", flush=True)
            for which in ("choice", "best other", "data parallelism"):
                row = found[which]
                told = f"{row['ms']:.2f} ms measured, {row['expected_ms']:.2f} expected: {row['strategy']}"
                print(f"  {which}: {told}", flush=True)
            checks.tell("the choice beside itself, as it is measured twice", found["noise"])
            checks.tell("data parallelism to the best other", found["data parallelism"]["ratio"])
            checks.tell("the choice of auto_parallel to the best other", found["choice"]["ratio"], Bound(1.1, 1.0))
            checks.tell("seconds to calibrate", found["calibrate_s"])
            checks.tell("seconds to search", found["search_s"])
    return 1 if checks.failed else 0


def measured(name: str, rounds: int, world: World) -> dict[str, Any]:
    """Return what rank 0 has measured of a case, as JSON takes it."""
    torch.manual_seed(0)
    make, make_inputs, alike = CASES[name]
    network, inputs, ranks = make(), make_inputs(), world.place.world_size
    traced = trace(network, inputs)
    with Groups(
        world.place.global_rank, ranks, ranks=ranks, device=CPU, transport="auto", existing=[world.mp]
    ) as groups:
        began_s = time.perf_counter()
        costs = calibrated(traced.graph, groups, CPU)
        calibrated_s = time.perf_counter()
        choice = searched(traced.graph, {}, ranks, costs)
        searched_s = time.perf_counter()
        field = Field(traced, inputs, groups, costs)
        numbers = [field.add(each) for each in assignments(traced, alike, ranks)]
        own, again, data = field.add(choice), field.add(choice), field.add(data_parallel(traced, ranks))
        steps = 2
        while len(numbers) > FINALISTS:
            taken_s = field.round(numbers, steps)
            numbers = sorted(numbers, key=lambda number: taken_s[number])[: max(FINALISTS, len(numbers) // 4)]
            steps *= 2
        taken = field.race([*numbers, own, again, data], rounds)
        best = min(taken, key=lambda number: median(taken[number]) if field.differ(number, own) else math.inf)
        return {
            "count": field.count - 3,
            "noise": ratio(taken[own], taken[again]),
            "choice": field.told(own, taken, best),
            "best other": field.told(best, taken, best),
            "data parallelism": field.told(data, taken, best),
            "calibrate_s": calibrated_s - began_s,
            "search_s": searched_s - calibrated_s,
        }


def ratio(one: Sequence[float], other: Sequence[float]) -> float:
    """Of each round's ratio: what disturbs a round disturbs both."""
    return median(mine / its for mine, its in zip(one, other, strict=True))


def assignments(traced: Traced, alike: Sequence[Sequence[str]], ranks: int) -> Iterator[Assignment]:
    """Yield all assignments where they are few; else those that differ in these operators, the rest propagated."""
    graph = traced.graph
    ways = {operator.name: list(cuttings(operator.expression, ranks)) for operator in graph.operators}
    if math.prod(map(len, ways.values())) <= 200:
        for chosen in product(*ways.values()):
            yield dict(zip(ways, chosen, strict=True))
        return
    groups = [[traced.first_of.get(name, name) for name in names] for names in alike]
    for chosen in product(*(ways[names[0]] for names in groups)):
        given = {name: way for names, way in zip(groups, chosen, strict=True) for name in names}
        yield propagated(graph, given, ranks)


class Field:
    """Assignments of one network, and how long their steps take."""

    def __init__(self, traced: Traced, inputs: Sequence[Tensor], groups: Groups, costs: Costs) -> None:
        self._traced, self._inputs, self._groups, self._costs = traced, inputs, groups, costs
        self._all = groups.along((groups.ranks,), (0,))
        # What is told of an assignment: how the operators are cut that take parameters, and the last one.
        taken = {operator.name for name in traced.parameters for operator, _ in traced.graph.consumers[name]}
        self._weighty = [each.name for each in traced.graph.operators if each.name in {*taken, traced.graph.output}]
        self._assignments: list[Assignment] = []

    @property
    def count(self) -> int:
        return len(self._assignments)

    def add(self, assignment: Assignment) -> int:
        """Return the number by which an assignment is known here."""
        self._assignments.append(assignment)
        return self.count - 1

    def differ(self, one: int, other: int) -> bool:
        return self._assignments[one] != self._assignments[other]

    def round(self, numbers: Sequence[int], steps: int) -> dict[int, float]:
        """Return the seconds of a step of each, which is built, takes a step that does not count, and is let go."""
        taken = {}
        for number in numbers:
            step = self._built(number)
            self._time(step)
            taken[number] = min(self._time(step) for _ in range(steps))
        return taken

    def race(self, numbers: Sequence[int], rounds: int) -> dict[int, list[float]]:
        """Return the seconds of a step of each in rounds, in which all take turns, forth and back."""
        steps = {number: self._built(number) for number in numbers}
        taken: dict[int, list[float]] = {number: [] for number in numbers}
        for step in steps.values():
            self._time(step)
        for turn in range(rounds):
            for number in numbers if turn % 2 else reversed(numbers):
                taken[number].append(min(self._time(steps[number]) for _ in range(STEPS)))
        return taken

    def told(self, number: int, taken: Mapping[int, Sequence[float]], best: int) -> dict[str, Any]:
        assignment = self._assignments[number]
        plan = plan_of(self._traced.graph, assignment, self._groups.ranks)
        return {
            "ms": median(taken[number]) * 1e3,
            "expected_ms": step_s(plan, self._costs) * 1e3,
            "ratio": ratio(taken[number], taken[best]),
            "strategy": ", ".join(f"{name} {assignment[name].strategy}" for name in self._weighty),
        }

    def _built(self, number: int) -> Callable[[], None]:
        plan = plan_of(self._traced.graph, self._assignments[number], self._groups.ranks)
        network = ShardedNetwork(self._traced, plan, self._groups, device=CPU)
        inputs = [
            tensor[box.within(full_box(tensor.shape))].clone()
            for tensor, box in zip(self._inputs, network.input_boxes(), strict=True)
        ]
        optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)

        def step() -> None:
            optimizer.zero_grad()
            network(*inputs).backward()
            network.sum_gradients()
            optimizer.step()

        return step

    def _time(self, step: Callable[[], None]) -> float:
        """Return the seconds until all ranks have taken a step that they have begun together, on the rank that waits longest."""
        all_reduce(torch.zeros(1), self._all)
        began_s = time.perf_counter()
        step()
        all_reduce(torch.zeros(1), self._all)
        taken_s = torch.tensor([time.perf_counter() - began_s], dtype=torch.float64)
        return float(all_reduce(taken_s, self._all, "max"))


if __name__ == "__main__":
    raise SystemExit(main())
