"""The effective settings of a bundled program, each with its origin."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from launcher.cli.run_options import RunOptions
from launcher.cli.training.trainer_program import PROFILED, chosen_settings
from launcher.core.frozen import frozen
from launcher.core.records import Layout
from launcher.core.text import printable, shell_words
from launcher.preload.masking import MASK
from launcher.recipes.catalog import recipe_named
from launcher.recipes.load import origins
from launcher.recipes.settings import all_settings, as_toml

DEFAULT = "default"
FILE = "settings.toml"
MICRO_BATCHES = "train.micro_batches"


@frozen
class EffectiveSetting:
    """A setting by its dotted name. `origin`: default, a line of a file, or an option."""

    name: str
    value: Any
    default: Any  # None for entries with a name that the user chose
    origin: str


def effective_settings(options: RunOptions, layout: Layout) -> tuple[EffectiveSetting, ...]:
    """Return all settings of the program, in the order of `templates/NAME.toml`.

    `layout` is the checked layout of the run.

    Raises:
        TlaunchError: as `Recipe.load`.
    """
    recipe, chosen = recipe_named(options.recipe), chosen_settings(options)
    values = dataclasses.asdict(recipe.load(options.config, chosen))
    given = origins(recipe.settings, options.config, chosen)
    by_profile = {text.partition("=")[0]: f"--set {text}" for text in PROFILED} if options.profile else {}
    given = {name: "--profile" if by_profile.get(name) == where else where for name, where in given.items()}
    if options.micro_batches is not None:
        values["train"]["micro_batches"] = layout.micro_batches
        given[MICRO_BATCHES] = "--micro-batches"
    known = all_settings(recipe.settings)
    return tuple(
        EffectiveSetting(
            f"{section}.{key}", value, known[f"{section}.{key}"].default if f"{section}.{key}" in known else None,
            given.get(f"{section}.{key}", DEFAULT),
        )
        for section, entries in values.items()
        for key, value in entries.items()
    )  # fmt: skip


def without_settings(options: RunOptions) -> RunOptions:
    """Return the options without the settings of the trainer; data, devices and layout remain."""
    return replace(options, config=None, settings=(), profile=False, micro_batches=None, dry_run=False)


def toml_lines(settings: Sequence[EffectiveSetting], others: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a file for --config with all settings, and their origins as comments.

    The first line is the command that repeats the run with the file. `others` are its other options.
    """
    command = shell_words(("tlaunch", "--no-config", "run", *others, f"--config={FILE}"))
    filled_in = ", and fill in the masked values" if MASK in command else ""
    yield f"# To repeat the run, save this file as {FILE} and run `{command}`{filled_in}."
    yield ""
    for section, of_section in groupby(settings, lambda each: each.name.partition(".")[0]):
        yield f"[{section}]"
        for each in of_section:
            key = each.name.partition(".")[2]
            was = "" if each.origin == DEFAULT or each.default is None else f"; default {as_toml(each.default)}"
            yield f"{_key(key)} = {as_toml(each.value)}  # {printable(each.origin)}{was}"
        yield ""


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else as_toml(name)
