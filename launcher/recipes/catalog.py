"""The bundled programs, keyed by their names in `--recipe`.

Each program has an entry in this file, a package of settings and checks in this directory, `templates/NAME.toml`, and a
trainer module. Every rank calls the module's `train(settings, world, files)`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.core.records import Layout
from launcher.core.text import did_you_mean, near
from launcher.program.program_files import DEFAULT_RECIPE
from launcher.recipes.load import load_settings, packaged_config
from launcher.recipes.quickstart import quickstart_recipe as quickstart
from launcher.recipes.resnet50 import resnet50_recipe as resnet50
from launcher.recipes.settings import UnknownSettingError, all_settings
from launcher.recipes.synonyms import equivalents
from launcher.recipes.transformer import transformer_checks as transformer
from launcher.recipes.transformer.transformer_settings import TransformerSettings

DEFAULT = DEFAULT_RECIPE


@frozen
class Recipe:
    name: str
    settings: type[Any]  # a dataclass of sections, including `train` and `parallel`
    check_layout: Callable[[Any, Layout], None]  # raises RefusedLayoutError
    # Raises TlaunchError if the program cannot read its data: the paths of `--data`, or of `--source` and `--target`.
    check_data: Callable[[Any, Sequence[Path]], None]
    program: str  # the trainer's module
    # Converts the requested layout to the program's layout; idempotent. For example, a program with operator strategies
    # uses all ranks as one model-parallel group.
    own_layout: Callable[[Any, Layout], Layout] = lambda _settings, layout: layout
    # Completes settings that the user left to the data.
    with_data: Callable[[Any, Sequence[Path]], Any] = lambda settings, _data: settings
    # Returns the digest of the training data, as checkpoints record it; None: only ranks compute it.
    text_digest: Callable[[Any, Sequence[Path]], str] | None = None
    # Returns warnings for settings that `with_data` has completed.
    data_notes: Callable[[Any, Sequence[Path]], tuple[str, ...]] = lambda _settings, _data: ()
    # Returns warnings for these settings on a layout that fits.
    notes: Callable[[Any, Layout], tuple[str, ...]] = lambda _settings, _layout: ()

    def load(self, config: str | None, settings: Sequence[str]) -> Any:
        try:
            return load_settings(self.settings, self.config_called(config), settings)
        except UnknownSettingError as error:
            if error.name and not equivalents(error.name, all_settings(self.settings)):
                error.hint = hint_of_recipes(error.name) or error.hint
            raise

    def config_called(self, name: str | None) -> str | None:
        """Return the full name of this program's packaged file `name`, such as "tutorial.toml". Return others unchanged."""
        packaged = f"recipes/{self.name}/{name}"
        is_here = name is None or "/" in name or os.path.exists(name)  # noqa: PTH110 - a Path raises for some
        return name if is_here or packaged_config(packaged) is None else packaged


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="transformer",
            settings=TransformerSettings,
            check_layout=transformer.check_layout,
            check_data=transformer.check_data,
            with_data=transformer.with_data,
            text_digest=transformer.text_digest,
            data_notes=transformer.data_notes,
            program="launcher.trainer.programs.transformer",
            notes=transformer.notes,
        ),
        Recipe(
            name="quickstart",
            settings=quickstart.QuickstartSettings,
            check_layout=quickstart.check_layout,
            check_data=quickstart.check_data,
            program="launcher.trainer.programs.quickstart",
            own_layout=quickstart.own_layout,
        ),
        Recipe(
            name="resnet50",
            settings=resnet50.Resnet50Settings,
            check_layout=resnet50.check_layout,
            check_data=resnet50.check_data,
            program="launcher.trainer.programs.resnet50",
            own_layout=resnet50.own_layout,
        ),
    )
}


def recipe_named(name: str | None) -> Recipe:
    """Return the bundled program called `name`, or the default program if `name` is None."""
    name = name or DEFAULT
    if name not in RECIPES:
        hint = did_you_mean(near(name, RECIPES)) or f"recipes: {', '.join(RECIPES)}"
        raise UsageError(f"--recipe {name}: unknown recipe", hint=hint)
    return RECIPES[name]


def hint_of_recipes(name: str) -> str | None:
    """Return a hint with the bundled programs that have the setting or section `name`, or None if there are none."""
    having = [recipe.name for recipe in RECIPES.values() if _has(recipe.settings, name)]
    if not having or DEFAULT in having:
        return None
    found = f"use --recipe {' or '.join(having)}, which {'have' if len(having) > 1 else 'has'} this setting"
    is_about_layout = any(word in name for word in ("mode", "strateg", "parallel"))
    return f"{found}; the Transformer has the layouts of --dp, --mp and --pp" if is_about_layout else found


def _has(settings: type[Any], name: str) -> bool:
    known = all_settings(settings)
    chosen = [each.name for each in dataclasses.fields(settings) if "entries" in each.metadata]
    return name.partition(".")[0] in chosen or any(target in known for target, _ in equivalents(name, known))
