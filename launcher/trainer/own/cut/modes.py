"""From a graph, a mode and strategies to how each operator is cut. What the modes are: launcher/recipes/strategies.py."""

from __future__ import annotations

from collections.abc import Mapping

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
from launcher.sharding.propagation import propagated
from launcher.sharding.search import searched
from launcher.sharding.strategy import cutting_of, written
from launcher.trainer.own.cut.operator_graph import Traced

TOLD = 20  # names of operators in a message


def cuttings_for(
    traced: Traced,
    mode: str,
    strategies: Mapping[str, Strategy],
    ranks: int,
    *,
    search_mode: str = DYNAMIC_PROGRAMMING,
    costs: Costs | None = None,
    memory_bytes: float | None = None,
) -> dict[str, Partition]:
    """Return how every operator is cut over so many ranks: in hybrid_parallel, those of one copy.

    `strategies`, by the names of operators or modules, take precedence over those that the network's modules have been given.
    A search takes `costs` that were measured, or the default ones, and what fits into `memory_bytes` of a rank.

    Raises:
        UsageError: a strategy does not fit, or is of no operator; or there is no such mode.
        RefusedLayoutError: there are more ranks than the mode has work for, or nothing fits.
    """
    graph = traced.graph
    given = {**traced.strategies, **_of_operators(traced, strategies)}
    for what, name, known_names in (("mode", mode, MODES), ("search_mode", search_mode, SEARCHES)):
        if name not in known_names:
            hint = did_you_mean(near(name, known_names)) or ", ".join(known_names)
            raise UsageError(f"{what} = {name}: there is no such one", hint=hint)
    if strategies and mode in {STAND_ALONE, DATA_PARALLEL}:
        raise UsageError(
            f"strategies of {', '.join(strategies)} are given, and the mode {mode} takes none",
            hint=f"the mode {SEMI_AUTO}",
        )
    if mode == STAND_ALONE:
        if ranks > 1:
            raise RefusedLayoutError(
                f"stand_alone is for one rank, and there are {ranks}", hint="data_parallel, or one rank"
            )
        return {each.name: cut(each.expression, {}, ranks) for each in graph.operators}
    if mode == DATA_PARALLEL:
        return data_parallel(traced, ranks)
    operators = {each.name: each for each in graph.operators}
    known = {name: cutting_of(operators[name].expression, strategy, ranks, name) for name, strategy in given.items()}
    if mode == AUTO and search_mode == DYNAMIC_PROGRAMMING:
        return searched(graph, known, ranks, costs or Costs(), memory_bytes)
    return propagated(graph, known, ranks)


def data_parallel(traced: Traced, ranks: int) -> dict[str, Partition]:
    """Return the cutting of every operator by the batch, the first dim of what the network is called with.

    What has no batch, as what is computed of parameters alone, every rank computes whole.

    Raises:
        RefusedLayoutError: the ranks do not divide the batch.
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
                f"data_parallel cuts the batch into {ranks} parts, and {expression.sizes[index]} of {operator.name} "
                f"cannot be divided by {ranks}",
                hint=f"a batch that {ranks} divides",
            )
        found[operator.name] = cut(expression, {} if index is None else {index: ranks}, ranks)
        batch_dims[operator.name] = expression.output.index(index) if index in expression.output and index else None
    return found


def _of_operators(traced: Traced, strategies: Mapping[str, Strategy]) -> dict[str, Strategy]:
    """Return the strategies by operator: one of a module is that of its first operator."""
    names = {each.name for each in traced.graph.operators}
    found = {}
    for name, strategy in strategies.items():
        own = traced.first_of.get(name, name)
        if own not in names:
            operators = [each.name for each in traced.graph.operators]
            rest = f", and {len(operators) - TOLD} more" if len(operators) > TOLD else ""
            raise UsageError(
                f"the strategy {written(strategy)} is of {name}, which is no operator of the network",
                hint=did_you_mean(near(name, operators)) or f"operators are {', '.join(operators[:TOLD])}{rest}",
            )
        found[own] = strategy
    return found
