"""Shell completion for run names and other words."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import click
from click.core import ParameterSource

from launcher.cli.options.types import complete_files
from launcher.core.env import TLAUNCH_RUNS_DIR
from launcher.core.resources import usual_runs_dir
from launcher.core.run_dir import LATEST, RunDir
from launcher.runs.registry import registered
from launcher.runs.store import given_names, run_names

Completer = Callable[[click.Context, click.Parameter, str], list[Any]]


def complete_runs(context: click.Context, _parameter: click.Parameter, begun: str) -> list[Any]:
    """Return run names that start with `begun`, newest first. If there are none, return matching values of --name.

    If the default runs directory is empty, other known runs directories are searched, as commands do.
    """
    return _matching(_names(context), begun)


def complete_active_runs(context: click.Context, _parameter: click.Parameter, begun: str) -> list[Any]:
    return _matching(_names(context, only_active=True), begun)


def _names(context: click.Context, *, only_active: bool = False) -> list[str]:
    named = context.params.get("runs_dir") or os.environ.get(TLAUNCH_RUNS_DIR)
    runs_dir = context.params.get("runs_dir") or usual_runs_dir()
    is_named = named and context.get_parameter_source("runs_dir") is not ParameterSource.DEFAULT
    places = (runs_dir,) if is_named or run_names(runs_dir) else registered()
    return sorted(
        (
            name
            for place in places
            for name in run_names(place)
            if not (only_active and RunDir(place / name).report.exists())
        ),
        reverse=True,
    )


def _matching(names: Sequence[str], begun: str) -> list[Any]:
    """Return the names that start with `begun`, except names that need quoting or look like options."""
    whole = [name for name in names if name.startswith(begun)]
    given = dict.fromkeys(chain.from_iterable(given_names(names).values()))
    latest = [LATEST] if begun and names and LATEST.startswith(begun) else []
    completed = whole or [*(name for name in given if name.startswith(begun)), *latest]
    return [name for name in completed if shlex.quote(name) == name and not name.startswith("-")]


def complete_runs_or_files(context: click.Context, parameter: click.Parameter, begun: str) -> list[Any]:
    """Return the matching names of runs. If there are none, let the shell complete file names."""
    return complete_runs(context, parameter, begun) or complete_files(context, parameter, begun)


def one_of(words: Callable[[], Iterable[str]]) -> Completer:
    """Return a case-insensitive completer for the words that the function `words` returns."""

    def complete(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[Any]:
        return [word for word in words() if word.casefold().startswith(begun.casefold())]

    return complete


def recipe_names() -> Iterable[str]:
    from launcher.recipes.catalog import RECIPES  # imported only for completion

    return RECIPES
