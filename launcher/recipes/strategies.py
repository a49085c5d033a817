"""The settings of programs whose operators are cut by strategies: the parallel mode by its name in MindSpore, and the strategies.

stand_alone          one rank
data_parallel        every operator is cut along the batch, over all ranks
semi_auto_parallel   operators are cut as given, the others as propagation finds
auto_parallel        operators are cut as given, the others as `search_mode` finds: by propagation, or the cheapest way
hybrid_parallel      dp copies of the network, each of which cuts its operators over its own mp ranks
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.records import Layout
from launcher.recipes.settings import entries, setting
from launcher.sharding.expression import Strategy
from launcher.sharding.strategy import strategy_from

STAND_ALONE, DATA_PARALLEL, SEMI_AUTO, AUTO, HYBRID = (
    "stand_alone",
    "data_parallel",
    "semi_auto_parallel",
    "auto_parallel",
    "hybrid_parallel",
)
MODES = (STAND_ALONE, DATA_PARALLEL, SEMI_AUTO, AUTO, HYBRID)
SEARCHES = PROPAGATION, DYNAMIC_PROGRAMMING = "sharding_propagation", "dynamic_programming"
Strategies = Mapping[str, Strategy]


def mode_setting(default: str) -> Any:
    return setting(default, "how the ranks share the work", choices=MODES)


def search_setting(default: str) -> Any:
    return setting(default, "how auto_parallel finds the strategies that are not given", choices=SEARCHES)


def strategies() -> Any:
    """Declare the section `[strategies]`, of operators by their names."""
    return entries("for instance strategies.matmul = [[2, 4], [4, 1]]", strategy_from)


def operators_layout(mode: str, layout: Layout) -> Layout:
    """Return the layout of a program whose operators are cut over all ranks, which are one group then; hybrid_parallel's stays.

    Raises:
        RefusedLayoutError: dp and mp are told apart in another mode.
    """
    if mode == HYBRID:
        return layout
    if layout.dp > 1 and layout.mp > 1:
        raise RefusedLayoutError(
            f"dp = {layout.dp} and mp = {layout.mp}, and parallel.mode = {mode} takes all devices as one group",
            hint=f"neither --dp nor --mp, or --set parallel.mode={HYBRID}",
        )
    return replace(layout, dp=1, mp=layout.dp * layout.mp)


def check_mode(mode: str, given: Strategies, layout: Layout, *, micro_batches: bool = False) -> None:
    """Refuse what a mode has no use for, in the layout that the program has made of the one that was asked for.

    `micro_batches`: the mode has some.

    Raises:
        RefusedLayoutError: pipeline stages, micro batches, ranks that would do nothing, or copies of one rank that are to be cut.
        UsageError: strategies in a mode that takes none.
    """
    if layout.pp > 1:
        raise RefusedLayoutError(f"pp = {layout.pp}, and this program has no pipeline stages", hint="--pp 1")
    if layout.micro_batches > 1 and not micro_batches:
        raise RefusedLayoutError(
            f"micro_batches = {layout.micro_batches}, and parallel.mode = {mode} has none here",
            hint="--micro-batches 1",
        )
    if mode == STAND_ALONE and layout.world_size > 1:
        raise RefusedLayoutError(
            f"parallel.mode = {mode} is for one device, and there are {layout.world_size}",
            hint=f"--devices 1, or --set parallel.mode={DATA_PARALLEL}",
        )
    if given and mode == HYBRID and layout.mp == 1 < layout.dp:
        raise RefusedLayoutError(
            f"strategies of {', '.join(given)} are given, and parallel.mode = {mode} cuts each copy over its mp = 1 device",
            hint=f"--mp N for copies of N devices, or --set parallel.mode={SEMI_AUTO} for one over all {layout.dp}",
        )
    if given and mode in {STAND_ALONE, DATA_PARALLEL}:
        raise UsageError(
            f"strategies of {', '.join(given)} are given, and parallel.mode = {mode} takes none",
            hint=f"--set parallel.mode={SEMI_AUTO}",
        )
