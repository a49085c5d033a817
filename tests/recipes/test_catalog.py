"""The bundled programs that `--recipe` names."""

import importlib.util

import pytest

from launcher.core.errors import UsageError
from launcher.core.resources import data_dir
from launcher.program.preload_scan import trainer_modules
from launcher.recipes.catalog import RECIPES, recipe_named
from launcher.recipes.settings import all_settings
from launcher.recipes.train import TrainConfig


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_recipe_has_all_that_the_launcher_asks_of_it(recipe):
    """The common settings, a template that states its defaults, and a module of the trainer."""
    settings = recipe.load(f"templates/{recipe.name}.toml", [])
    assert settings == recipe.settings()
    assert {f"train.{name}" for name in TrainConfig.__annotations__} <= all_settings(recipe.settings).keys()
    assert (data_dir("templates") / f"{recipe.name}.toml").is_file()
    assert recipe.program in trainer_modules(["--recipe", recipe.name])
    assert importlib.util.find_spec(recipe.program) is not None


def test_an_unknown_recipe_names_a_similar_one():
    with pytest.raises(UsageError, match="--recipe transfomer") as error:
        recipe_named("transfomer")
    assert error.value.hint == "did you mean transformer?"
    assert recipe_named(None).program in trainer_modules([])
