"""The quickstart network in all modes, and its checkpoints."""

import pytest
import torch

from launcher.recipes.catalog import recipe_named
from launcher.recipes.quickstart.quickstart_recipe import graph_of
from launcher.recipes.strategies import SEMI_AUTO
from launcher.sharding.plan import plan_of
from launcher.trainer.own.cut.modes import cuttings_for
from launcher.trainer.programs.quickstart import traced
from launcher.trainer.programs.sharded import placements_of

RECIPE = recipe_named("quickstart")


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_the_graph_that_strategies_are_checked_by_is_the_one_that_is_traced(copies, precision):
    settings = RECIPE.load(None, ["model.hidden=24", f"train.precision={precision}"])
    assert graph_of(settings, copies=copies) == traced(settings, copies).graph


def test_parameters_are_placed_as_the_strategy_says():
    """The rows of both weights are cut by four, and two ranks hold each part, of which the first is rank 0 to 3."""
    network = traced(RECIPE.load(None, []), copies=1)
    plan = plan_of(network.graph, cuttings_for(network, SEMI_AUTO, {"matmul": ((2, 4), (4, 1))}, 8), 8)
    for rank in range(8):
        placed = placements_of(plan, rank)
        assert {name: tuple(one.box.start) for name, one in placed.items()} == {
            "weight": (rank % 4 * 8, 0),
            "weight2": (rank % 4 * 4, 0),
        }
        assert {(one.copies, one.is_first) for one in placed.values()} == {(2, rank < 4)}
    assert placed["weight"].shape == torch.Size([8, 16])
