"""Recognise values of options that were typed as COMMAND: settings, text files, a rank table."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from itertools import takewhile

from launcher.cli.run_options import RunOptions
from launcher.core.errors import UsageError
from launcher.core.text import shell_words
from launcher.preload.masking import masked_argv

# Ending of a file: the option that takes the file.
OPTIONS = {".json": "--rank-table", ".toml": "--config", ".tsv": "--data"}
_SCRIPTS = frozenset((".py", ".sh", ".bash"))
_SETTING = re.compile(r"[a-z][a-z0-9_.]*=.+")
_OPEN = re.compile(r"([a-z][a-z0-9_.]*)\s*=?\s*")  # a value of --set without the setting's value


def misplaced(options: RunOptions) -> UsageError | None:
    """Return an error with the options to use if COMMAND is not a program but their values, else None."""
    command = masked_argv(options.command)
    first = command[0] if command else ""
    if not first or any(pair.startswith("PATH=") for pair in options.env) or shutil.which(first):
        return None
    if options.settings and (of := _OPEN.fullmatch(options.settings[-1])) is not None:
        value = (first.removeprefix("=") or next(iter(command[1:]), "")) or "VALUE"
        hint = f"write a setting without spaces: `--set {shell_words([f'{of[1]}={value}'])}`"
        return UsageError(f"--set {options.settings[-1]}: the value is missing", hint=hint)
    return _of_settings(command, options.recipe) or _of_files(command)


def _of_settings(command: Sequence[str], recipe: str | None) -> UsageError | None:
    """Return an error if all words before the first option are KEY=VALUE of known settings."""
    words = list(takewhile(lambda word: not word.startswith("-"), command))
    if not words or not all(map(_SETTING.fullmatch, words)):
        return None
    from launcher.recipes.catalog import recipe_named  # only for mistyped lines
    from launcher.recipes.settings import all_settings, hint_for

    known = all_settings(recipe_named(recipe).settings)
    given = dict(word.split("=", 1) for word in words)
    if any(hint_for({name: None}, known) is None for name in given):
        return None
    also = f", followed by `{shell_words(command[len(words) :])}`" if command[len(words) :] else ""
    return UsageError(f"{words[0]} is a setting, not a program", hint=f"{hint_for(given, known)}{also}")


def _of_files(command: Sequence[str]) -> UsageError | None:
    """Return an error if COMMAND is two text files, or begins with a file that an option takes."""
    first, *rest = command
    ending = os.path.splitext(first)[1].casefold()  # noqa: PTH122 - any word
    if not os.path.isfile(first) or ending in _SCRIPTS:  # noqa: PTH113 - a Path raises for some
        return None
    words = [OPTIONS[ending], *command] if ending in OPTIONS else []
    if not words and len(rest) == 1 and os.path.isfile(rest[0]) and not os.access(first, os.X_OK):  # noqa: PTH113
        words = ["--source", first, "--target", rest[0]]
    return UsageError(f"{first} is not a program", hint=f"use `{shell_words(words)}`") if words else None
