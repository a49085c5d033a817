"""The answer to a whole line that was meant for another launcher, or lacks the word run: the line of tlaunch that does the same."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import click

from launcher.cli.launch.external.command_lines import Line, parse_line
from launcher.cli.launch.external.launchers import other_launcher
from launcher.cli.launch.external.tlaunch_line import TlaunchLine, tlaunch_line
from launcher.cli.options.command_types import TakesCommand
from launcher.core.errors import UsageError
from launcher.core.text import printable, shell_words
from launcher.program.program_command import parse_python

INDENT = " " * 4  # of lines to be copied, which a terminal does not break


def as_of_run(context: click.Context, words: Sequence[str]) -> UsageError | None:
    """Return the answer to options of other launchers that a command like `tlaunch run` was given, together with a program.

    None where something else is wrong, or a single option is all there is. `words`: the whole command line.
    """
    command, name = context.command, context.info_name or ""
    if not isinstance(command, TakesCommand) or not command.is_like_run or name not in words:
        return None
    at, own, again = words.index(name) + 1, _options_of(command), name == "rerun"
    line = parse_line(words[at:], own)
    names = list(
        dict.fromkeys(each.name for each in line.typed if each.name not in own or each.counterpart.subject is None)
    )
    if line.unknown or not names or not (line.program or len(names) > 1):
        return None
    if line.program and other_launcher(line.program, None) is not None:  # whose number of ranks counts is not clear
        return None
    if again and line.program and not line.has_dashes:  # it begins with RUN, and options may stand behind that
        return None
    found = tlaunch_line(_unless_of_mpi(line, own), command=shell_words(("tlaunch", *words[:at])), again=again)
    if found is not None and set(names) <= set(found.missing):
        return None  # what the line is about is not there
    return _answer(f"{context.command_path} has no option{'s' * (len(names) > 1)} {', '.join(names)}", found)


def as_without_run(context: click.Context, words: Sequence[str]) -> UsageError | None:
    """Return the answer to `tlaunch --devices 2 python train.py`, which lacks the word run; None for another line."""
    group = context.command
    if not isinstance(group, click.Group) or context.parent is not None:
        return None
    run = group.get_command(context, "run")
    assert run is not None
    before = list(takewhile(_options_of(group).__contains__, words))
    line = parse_line(words[len(before) :], _options_of(run))
    if line.unknown or not line.program:
        return None
    wrong, command = "`run` is missing behind tlaunch", shell_words(("tlaunch", *before, "run"))
    if line.program[0] == "run" and not line.has_dashes:
        moved = (*words[len(before) : len(words) - len(line.program)], *line.program[1:])
        line, wrong = parse_line(moved, _options_of(run)), "options stand behind `run`"
        return None if line.unknown else _answer(wrong, tlaunch_line(line, command=command))
    within = other_launcher(line.program, parse_python(line.program, os.environ.get("PATH"), Path.cwd()))
    if within is not None:  # which has options of its own
        return None if line.own or line.typed else _answer(wrong, within.as_tlaunch)
    if line.program[0] in group.list_commands(context):
        return None
    return _answer(wrong, tlaunch_line(_unless_of_mpi(line, _options_of(run)), command=command))


def as_other_launcher(words: Sequence[str]) -> UsageError | None:
    """Return the answer to `tlaunch torchrun ...`; None for other words, or where no program is seen."""
    found, wrong = other_launcher(words, None), f"tlaunch has no command {words[0]}"
    if found is None:
        return None
    if not found.unclear:
        return _answer(wrong, found.as_tlaunch)
    names = ", ".join(dict.fromkeys(found.unclear))
    hint = f"leave {names} out to see the line of tlaunch for the rest; `tlaunch run --help` lists its options"
    return UsageError(printable(f"{wrong}; tlaunch does not know what {names} means for {found.name}"), hint=hint)


def _unless_of_mpi(line: Line, own: Mapping[str, int]) -> Line:
    """Return the line without its launcher if that is mpirun, guessed from a single option: it is no MPI job then."""
    foreign = [each for each in line.typed if each.name not in own]
    says = {each.key for each in foreign if not each.counterpart.instead}
    is_certain = any(each.counterpart.subject in {"servers", "server file"} or each.key == "--mca" for each in foreign)
    return line if line.launcher != "mpirun" or is_certain or len(says) > 1 else replace(line, launcher=None)


def _options_of(command: click.Command) -> Mapping[str, int]:
    """Return the names of a command's options, each with how many values it takes."""
    return {
        name: 0 if param.is_flag else param.nargs
        for param in command.params
        if isinstance(param, click.Option)
        for name in (*param.opts, *param.secondary_opts)
    }


def _answer(wrong: str, line: TlaunchLine | None) -> UsageError | None:
    """Return an error that quotes the lines to type below each other."""
    if line is None:
        return None
    does = "this may do the same" if line.unknown else "this does the rest" if line.missing else "this does the same"
    lines = [line.run] if line.table is None else [f"{line.table} &&", line.run]
    lines = [f"{INDENT}{each}" for each in lines]
    error = UsageError("\n".join((f"{printable(wrong)}; {does}:", *lines)))
    error.hint = "\n".join(map(printable, line.notes)) or None
    error.has_lines = True
    return error
