"""Chooses the partition of each operator in a parallel mode. launcher/recipes/strategies.py describes the modes."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.text import did_you_mean, near
from launcher.recipes.strategies import (
    AUTO,
    DATA_PARALLEL,
    DYNAMIC_PROGRAMMING,
    MODES,
    SEARCHES,
    SEMI_AUTO,
    STAND_ALONE,
)
from launcher.sharding.cost import Costs
from launcher.sharding.expression import Partition, Strategy, cut
from launcher.sharding.plan import ShardingPlan, plan_of
from launcher.sharding.propagation import propagated
from launcher.sharding.search import searched
from launcher.sharding.strategy import cutting_of
from launcher.trainer.own.cut.calibrate import calibrated
from launcher.trainer.own.cut.groups import Groups
from launcher.trainer.own.cut.operator_graph import Traced

TOLD = 20  # operator names that a message lists


def measured_plan(
    traced: Traced,
    mode: str,
    strategies: Mapping[str, Strategy],
    search_mode: str,
    groups: Groups,
    device: torch.device,
) -> ShardingPlan:
    """Return the sharding plan of a traced network for the ranks of `groups`. All ranks must call it.

    A search measures its costs on these ranks. Raises the errors of `cuttings_for`.
    """
    is_searched = (mode, search_mode) == (AUTO, DYNAMIC_PROGRAMMING) and groups.ranks > 1
    costs = calibrated(traced.graph, groups, device) if is_searched else None
    cuttings = cuttings_for(traced, mode, strategies, groups.ranks, search_mode=search_mode, costs=costs)
    return plan_of(traced.graph, cuttings, groups.ranks)


def cuttings_for(
    traced: Traced,
    mode: str,
    strategies: Mapping[str, Strategy],
    ranks: int,
    *,
    search_mode: str = DYNAMIC_PROGRAMMING,
    costs: Costs | None = None,
) -> dict[str, Partition]:
    """Choose the partition of every operator over the ranks in a parallel mode.

    The keys of `strategies` are operator or module names. They override strategies set in the network's code. A search
    uses `costs`, or default costs. In hybrid_parallel, `ranks` is the number of ranks of one replica.

    Raises:
        UsageError: a strategy does not fit its operator or names an unknown one, or the mode is unknown.
        RefusedLayoutError: the mode cannot use this number of ranks.
    """
    graph = traced.graph
    given = {**traced.strategies, **_of_operators(traced, strategies)}
    for what, name, known_names in (("mode", mode, MODES), ("search_mode", search_mode, SEARCHES)):
        if name not in known_names:
            hint = did_you_mean(near(name, known_names)) or f"use one of {', '.join(known_names)}"
            raise UsageError(f"{what} = {name} is unknown", hint=hint)
    if strategies and mode in {STAND_ALONE, DATA_PARALLEL}:
        raise UsageError(
            f"strategies are given for {', '.join(strategies)}, and the mode {mode} takes none",
            hint=f"use the mode {SEMI_AUTO}",
        )
    if mode == STAND_ALONE:
        if ranks > 1:
            raise RefusedLayoutError(
                f"stand_alone supports one rank, but there are {ranks}", hint="use data_parallel, or start one rank"
            )
        return {each.name: cut(each.expression, {}, ranks) for each in graph.operators}
    if mode == DATA_PARALLEL:
        return data_parallel(traced, ranks)
    operators = {each.name: each for each in graph.operators}
    known = {name: cutting_of(operators[name].expression, strategy, ranks, name) for name, strategy in given.items()}
    if mode == AUTO and search_mode == DYNAMIC_PROGRAMMING:
        return searched(graph, known, ranks, costs or Costs())
    return propagated(graph, known, ranks)


def data_parallel(traced: Traced, ranks: int) -> dict[str, Partition]:
    """Partition every operator along the batch dim, which is the first dim of the network's inputs.

    Operators without a batch dim, such as ones that take only parameters, are replicated.

    Raises:
        RefusedLayoutError: the batch is not divisible by `ranks`.
    """
    graph = traced.graph
    batch_dims: dict[str, int | None] = {
        leaf.name: 0 if leaf.name in traced.inputs and leaf.shape else None for leaf in graph.leaves
    }
    found: dict[str, Partition] = {}
    for operator in graph.operators:
        expression = operator.expression
        dims = [(dims, batch_dims[name]) for dims, name in zip(expression.inputs, operator.inputs, strict=True)]
        indices = [dims[dim] for dims, dim in dims if dim is not None]
        index = next((each for each in indices if each is not None), None)
        if index is not None and expression.sizes[index] % ranks:
            raise RefusedLayoutError(
                f"data_parallel splits the batch over {ranks} ranks, but the batch dim {expression.sizes[index]} of "
                f"{operator.name} is not divisible by {ranks}",
                hint=f"set the batch size to a multiple of {ranks}",
            )
        found[operator.name] = cut(expression, {} if index is None else {index: ranks}, ranks)
        batch_dims[operator.name] = expression.output.index(index) if index in expression.output and index else None
    return found


def _of_operators(traced: Traced, strategies: Mapping[str, Strategy]) -> dict[str, Strategy]:
    """Return the strategies by operator name. The strategy of a module applies to its first operator."""
    names = {each.name for each in traced.graph.operators}
    found = {}
    for name, strategy in strategies.items():
        own = traced.first_of.get(name, name)
        if own not in names:
            operators = [each.name for each in traced.graph.operators]
            rest = f", and {len(operators) - TOLD} more" if len(operators) > TOLD else ""
            raise UsageError(
                f"the strategy {strategy} is for {name}, which is not an operator of the network",
                hint=did_you_mean(near(name, operators)) or f"use one of {', '.join(operators[:TOLD])}{rest}",
            )
        found[own] = strategy
    return found
