"""Settings of programs whose operators have sharding strategies: MindSpore's parallel mode, and the strategies.

stand_alone          one rank
data_parallel        every operator is split along the batch, over all ranks
semi_auto_parallel   given strategies; propagation finds the others
auto_parallel        given strategies; `search_mode` finds the others, by propagation or by lowest cost
hybrid_parallel      dp copies of the network, each with its operators split over its own mp ranks
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

MODES = STAND_ALONE, DATA_PARALLEL, SEMI_AUTO, AUTO, HYBRID = (
    "stand_alone",
    "data_parallel",
    "semi_auto_parallel",
    "auto_parallel",
    "hybrid_parallel",
)
SEARCHES = PROPAGATION, DYNAMIC_PROGRAMMING = "sharding_propagation", "dynamic_programming"
Strategies = Mapping[str, Strategy]


def mode_setting(default: str) -> Any:
    return setting(default, "how the ranks share the computation", choices=MODES)


def search_setting(default: str) -> Any:
    return setting(default, "how auto_parallel chooses strategies that are not given", choices=SEARCHES)


def strategies() -> Any:
    """Declare the section `[strategies]`, which maps operator names to strategies."""
    return entries("for example strategies.matmul = [[2, 4], [4, 1]]", strategy_from)


def operators_layout(mode: str, layout: Layout) -> Layout:
    """Move all ranks of `layout` to the model-parallel axis. In hybrid_parallel mode, return `layout` unchanged.

    Raises RefusedLayoutError if both dp and mp are given in another mode.
    """
    if mode == HYBRID:
        return layout
    if layout.dp > 1 and layout.mp > 1:
        raise RefusedLayoutError(
            f"dp = {layout.dp} and mp = {layout.mp}, but the mode {mode} uses all devices as one group",
            hint=f"leave out `--dp` and `--mp`, or use the mode {HYBRID}: `--set parallel.mode={HYBRID}`, or mode={HYBRID!r} "
            "of `sharded`",
        )
    return replace(layout, dp=1, mp=layout.dp * layout.mp)


def check_mode(mode: str, given: Strategies, layout: Layout, *, micro_batches: bool = False) -> None:
    """Raise RefusedLayoutError if `mode` does not support `layout`, or UsageError if `mode` ignores given strategies.

    `micro_batches` tells whether the program supports several micro batches in this mode.
    """
    if layout.pp > 1:
        raise RefusedLayoutError(f"pp = {layout.pp}, but this program has no pipeline stages", hint="use `--pp 1`")
    if layout.micro_batches > 1 and not micro_batches:
        raise RefusedLayoutError(
            f"micro_batches = {layout.micro_batches}, but parallel.mode = {mode} does not support micro batches",
            hint="use `--micro-batches 1`",
        )
    if mode == STAND_ALONE and layout.world_size > 1:
        raise RefusedLayoutError(
            f"parallel.mode = {mode} supports only one device, but there are {layout.world_size}",
            hint=f"use `--devices 1`, or `--set parallel.mode={DATA_PARALLEL}`",
        )
    if given and mode == HYBRID and layout.mp == 1 < layout.dp:
        raise RefusedLayoutError(
            f"strategies of {', '.join(given)} are given, but in parallel.mode = {mode} each replica has one device (mp = 1)",
            hint=f"use `--mp N` for N devices per replica, or `--set parallel.mode={SEMI_AUTO}` for one replica",
        )
    if given and mode in {STAND_ALONE, DATA_PARALLEL}:
        raise UsageError(
            f"strategies of {', '.join(given)} are given, but parallel.mode = {mode} does not use strategies",
            hint=f"use `--set parallel.mode={SEMI_AUTO}`",
        )
