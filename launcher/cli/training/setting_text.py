"""The text of `tlaunch explain SETTING`: what settings of a bundled program mean, and their defaults and values."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

from launcher.cli.text.columns import wrapped_columns
from launcher.cli.text.style import PLAIN, Screen
from launcher.core.errors import UsageError
from launcher.core.text import did_you_mean, near, shell_word
from launcher.recipes.catalog import RECIPES, hint_of_recipes, recipe_named
from launcher.recipes.settings import KINDS, Bounds, all_settings, as_toml, hint_for
from launcher.recipes.synonyms import equivalents, names_of, options_called

MAX_LIKE = 5
OPTIONS_OF_TRANSLATE = ("--beam", "--alpha")
Settings = Mapping[str, dataclasses.Field[Any]]  # by dotted name


def settings_called(name: str, recipe: str | None) -> Settings | None:
    """Return the settings that `name` means: a setting, a section, or another tool's name. Return None for a program.

    Raises UsageError if `name` looks like a setting that the bundled program `recipe` does not have.
    """
    program = recipe_named(recipe)
    known = all_settings(program.settings)
    if name in known:
        return {name: known[name]}
    if name.endswith(".py") or os.path.isfile(name) or shutil.which(name):  # noqa: PTH113 - a Path raises for some
        return None
    found: dict[str, Any] = {each: field for each, field in known.items() if each.startswith(f"{name}.")}
    for section in dataclasses.fields(program.settings):
        if section.name == name and "entries" in section.metadata:
            bounds = Bounds(section.metadata["entries"].help)
            found = {f"{name}.NAME": dataclasses.field(default=None, metadata={"bounds": bounds})}
    found = found or {target: known[target] for target, _ in equivalents(name, known) if target in known}
    if found:
        return found
    hint = hint_of_recipes(name) or hint_for({name: None}, known) or did_you_mean(near(name, known))
    of = name.partition(".")[0]
    if hint is None and not any(each.startswith(f"{of}.") for each in known):
        return None
    raise UsageError(
        f"{program.name} has no setting {name}", hint=hint or f"list the settings with `tlaunch explain {of}`"
    )


def hint_like(word: str, recipe: str | None) -> str:
    """Return a hint with the settings whose names or meanings contain `word`, or with the sections if there are none."""
    known = all_settings(recipe_named(recipe).settings)
    if called := options_called(word, OPTIONS_OF_TRANSLATE):
        return f"`{called[0]}` is an option of `tlaunch translate` and `tlaunch evaluate`"
    beginning = re.escape(word.replace("_", " ").replace("-", " ").rstrip("s"))
    about = re.compile(rf"\b{beginning}", re.IGNORECASE)
    texts = {name: f"{name.replace('.', ' ').replace('_', ' ')} {_bounds(field).help}" for name, field in known.items()}
    found = [name for name, text in texts.items() if about.search(text)]
    if found:
        return f"settings like it: {', '.join(found[:MAX_LIKE])}; `tlaunch explain {found[0]}` explains one"
    sections = ", ".join(dict.fromkeys(name.partition(".")[0] for name in known))
    return f"list the settings of a section with `tlaunch explain SECTION`; sections: {sections}"


def is_like_setting(word: str) -> bool:
    """Return True if `word` means settings of a bundled program, or looks like one."""
    try:
        return any(settings_called(word, recipe) is not None for recipe in RECIPES)
    except UsageError:
        return True


def lines_of(settings: Settings, screen: Screen = PLAIN) -> Iterator[str]:
    """Yield the lines about one setting, or a table of several, wrapped at the terminal's width."""
    if len(settings) > 1:
        rows = [(name, as_toml(field.default), _bounds(field).help) for name, field in settings.items()]
        yield from wrapped_columns([("SETTING", "DEFAULT", "MEANING"), *rows], screen.columns)
        return
    for name, field in settings.items():
        bounds, default = _bounds(field), as_toml(field.default)
        yield screen.wrapped(f"{name}: {bounds.help}")
        if field.default is None:  # the user chooses NAME
            return
        yield f"  type:         {KINDS[type(field.default)]}"
        yield f"  default:      {default}"
        yield f"  values:       {', '.join(bounds.allowed(field.default))}"
        if names := _names(name, bounds):
            yield f"  other names:  {', '.join(names)}"
        yield f"  to set it:    --set {shell_word(f'{name}={field.default if isinstance(field.default, str) else default}')}"


def as_json(settings: Settings) -> dict[str, Any]:
    """Return the settings by name, for JSON."""
    return {
        name: {
            "meaning": (bounds := _bounds(field)).help,
            "default": field.default,
            "minimum": bounds.minimum,
            "maximum": bounds.maximum,
            "below": bounds.below,
            "choices": bounds.choices,
            "other_names": _names(name, bounds),
        }
        for name, field in settings.items()
    }


def _bounds(field: dataclasses.Field[Any]) -> Bounds:
    bounds: Bounds = field.metadata["bounds"]
    return bounds


def _names(name: str, bounds: Bounds) -> list[str]:
    return [*filter(None, (bounds.alias,)), *names_of(name, same_meaning=True)]
