"""Precedence of the command line over the project file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from launcher.cli.launch.recorded import ADDED, changed
from launcher.cli.options.project_place import PROJECT_FILE
from launcher.cli.run_options import RunOptions
from launcher.preload.masking import masked_argv

if TYPE_CHECKING:
    from launcher.cli.options.project_file import ProjectFile


def project_file_notes(context: click.Context, chosen: RunOptions) -> Iterator[str]:
    """Yield a line that lists the options from the project file, with secrets masked."""
    file: ProjectFile | None = context.meta.get(PROJECT_FILE)
    if file is None:
        return
    words: list[str] = []
    for param in context.command.params:
        name = param.name or ""
        is_from_file = context.get_parameter_source(name) is ParameterSource.DEFAULT_MAP or name in ADDED
        value = (context.default_map or {}).get(name)
        if value is None or not is_from_file or getattr(chosen, name, value) == getattr(RunOptions, name, None):
            continue  # given on the command line, or replaced by an option that was
        option, parts = max(param.opts, key=len), value if isinstance(value, list) else [value]
        if value is False:
            words += param.secondary_opts
        else:
            words += [option if part is True else f"{option}={part}" for part in parts]
    if words:
        yield f"from {os.path.relpath(file.path)}: {' '.join(masked_argv(words))}"


def given_last(context: click.Context, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a command's options, keyed by name. Options from the user override options from the project file."""
    from_file = context.default_map or {}
    if not from_file:
        return dict(options)
    by_person = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
    given = {
        name: value
        for name, value in options.items()
        if context.get_parameter_source(name) in by_person and value != ()
    }
    before = {**from_file, **{name: tuple(from_file[name]) for name in ADDED if name in from_file}}
    return {name: value for name, value in {**options, **changed(before, given)}.items() if name in options}
