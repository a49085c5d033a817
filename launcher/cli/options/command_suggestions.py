"""Suggest tlaunch commands for a line that has another launcher's options, or lacks `run`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import click

from launcher.cli.launch.external.command_lines import Line, parse_line
from launcher.cli.launch.external.launchers import other_launcher
from launcher.cli.launch.external.options import OPTIONS, key_of
from launcher.cli.launch.external.tlaunch_line import TlaunchLine, tlaunch_line
from launcher.cli.options.command_types import TakesCommand
from launcher.core.errors import UsageError
from launcher.core.text import did_you_mean, near, printable, shell_words
from launcher.program.program_command import parse_python

INDENT = " " * 4  # of lines to copy; they are not wrapped


def as_of_run(context: click.Context, words: Sequence[str]) -> UsageError | None:
    """If `tlaunch run` got options of another launcher, return an error with the equivalent command.

    Return None if the line has another fault, or just one foreign option and no program. `words` is the whole line.
    """
    command, name = context.command, context.info_name or ""
    if not isinstance(command, TakesCommand) or not command.is_like_run or name not in words:
        return None
    at, own, again = words.index(name) + 1, options_of(command), name == "rerun"
    line = parse_line(words[at:], own)
    foreign = (each.name for each in line.typed if each.name not in own or each.counterpart.subject is None)
    names = list(dict.fromkeys(foreign))
    if line.unknown or not names or not (line.program or len(names) > 1):
        return None
    if line.program and other_launcher(line.program, None) is not None:  # two: the number of ranks is ambiguous
        return None
    if again and line.program and not line.has_dashes:  # the first word is RUN, and options may follow it
        return None
    found = tlaunch_line(_unless_of_mpi(line, own), command=shell_words(("tlaunch", *words[:at])), again=again)
    if found is not None and set(names) <= set(found.missing):
        return None  # no option has an equivalent
    return _answer(f"{context.command_path} has no option{'s' * (len(names) > 1)} {', '.join(names)}", found)


def as_without_run(context: click.Context, words: Sequence[str]) -> UsageError | None:
    """Return an error with the corrected command for a line such as `tlaunch --devices 2 python train.py`.

    Return None if the line does not look like `tlaunch run` without `run`.
    """
    group = context.command
    if not isinstance(group, click.Group) or context.parent is not None:
        return None
    run = group.get_command(context, "run")
    assert run is not None
    before = list(takewhile(options_of(group).__contains__, words))
    line = parse_line(words[len(before) :], options_of(run))
    if line.unknown or not line.program:
        return None
    wrong, command = "`run` is missing after tlaunch", shell_words(("tlaunch", *before, "run"))
    if line.program[0] == "run" and not line.has_dashes:
        moved = (*words[len(before) : len(words) - len(line.program)], *line.program[1:])
        line, wrong = parse_line(moved, options_of(run)), "options must come after `run`"
        return None if line.unknown else _answer(wrong, tlaunch_line(line, command=command))
    within = other_launcher(line.program, parse_python(line.program, os.environ.get("PATH"), Path.cwd()))
    if within is not None:  # the options before it may belong to either launcher
        return None if line.own or line.typed else _answer(wrong, within.as_tlaunch)
    if line.program[0] in group.list_commands(context):
        return None
    return _answer(wrong, tlaunch_line(_unless_of_mpi(line, options_of(run)), command=command))


def as_other_launcher(words: Sequence[str]) -> UsageError | None:
    """If `words` start another launcher such as torchrun, return an error with the equivalent command, else None."""
    found, wrong = other_launcher(words, None), f"tlaunch has no command {words[0]}"
    if found is None:
        return None
    if not found.unclear:
        return _answer(wrong, found.as_tlaunch)
    names = ", ".join(dict.fromkeys(found.unclear))
    hint = did_you_mean(meant for each in found.unclear for meant in near(key_of(each), OPTIONS, limit=1))
    hint = hint or f"leave out {names} to see the equivalent command, or read `tlaunch run --help`"
    return UsageError(printable(f"{wrong}, and {names} of {found.name} cannot be translated"), hint=hint)


def _unless_of_mpi(line: Line, own: Mapping[str, int]) -> Line:
    """Return the line, with its launcher set to None if mpirun was guessed from only one option."""
    foreign = [each for each in line.typed if each.name not in own]
    says = {each.key for each in foreign if not each.counterpart.instead}
    is_certain = any(each.counterpart.subject in {"servers", "server file"} or each.key == "--mca" for each in foreign)
    return line if line.launcher != "mpirun" or is_certain or len(says) > 1 else replace(line, launcher=None)


def options_of(command: click.Command) -> Mapping[str, int]:
    """Return the number of values that each option of a command takes, keyed by the option's name."""
    return {
        name: 0 if param.is_flag else param.nargs
        for param in command.params
        if isinstance(param, click.Option)
        for name in (*param.opts, *param.secondary_opts)
    }


def _answer(wrong: str, line: TlaunchLine | None) -> UsageError | None:
    """Return an error that suggests the commands to run instead."""
    if line is None:
        return None
    does = "this may be equivalent" if line.unknown else "this is equivalent"
    if line.missing and not line.unknown:
        does += " except for the options listed below"
    lines = [line.run] if line.table is None else [f"{line.table} &&", line.run]
    message = "\n".join((f"{printable(wrong)}; {does}:", *(f"{INDENT}{each}" for each in lines)))
    error = UsageError(message, hint="\n".join(map(printable, line.notes)) or None)
    error.has_lines = True
    return error
