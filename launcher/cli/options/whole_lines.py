"""The answer to a whole line of torchrun, msrun or mpirun that was typed at tlaunch: the line that does the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from launcher.core.errors import UsageError
from launcher.core.text import printable
from launcher.program.launchers import other_launcher
from launcher.program.translation import TlaunchLine, parsed, tlaunch_line

LIKE_RUN = frozenset(("--engine", "--console"))  # options of the commands that take all that `tlaunch run` takes
INDENT = " " * 4  # of lines to be copied, which a terminal does not break


def as_of_run(context: click.Context, words: Sequence[str]) -> UsageError | None:
    """Return the answer to options of other launchers that a command like `tlaunch run` was given, together with a program.

    None where something else is wrong, or a single option is all there is. `words`: the whole command line.
    """
    own = _options_of(context.command)
    takes_program = any(
        param.name == "command" and isinstance(param, click.Argument) for param in context.command.params
    )
    if not takes_program or not LIKE_RUN.issubset(own) or context.info_name not in words:
        return None
    line = parsed(words[words.index(context.info_name) + 1 :], own)
    names = list(dict.fromkeys(each.name for each in line.typed if each.name not in own))
    if line.unknown or not names or not (line.program or len(names) > 1):
        return None
    options = f"option{'s' * (len(names) > 1)} {', '.join(names)}"
    return _answer(
        f"{context.command_path} has no {options}; this does the same:",
        tlaunch_line(line, command=context.command_path),
    )


def as_without_run(context: click.Context, words: Sequence[str]) -> UsageError | None:
    """Return the answer to `tlaunch --devices 2 python train.py`, which lacks the word run; None for another line."""
    group = context.command
    if (
        not isinstance(group, click.Group)
        or context.parent is not None
        or (run := group.get_command(context, "run")) is None
    ):
        return None
    line = parsed(words, _options_of(run))
    if line.unknown or not line.program or line.program[0] in group.list_commands(context):
        return None
    return _answer("`run` is missing behind tlaunch:", tlaunch_line(line))


def _options_of(command: click.Command) -> Mapping[str, int]:
    """Return the names of a command's options, each with how many values it takes."""
    return {
        name: 0 if param.is_flag else param.nargs
        for param in command.params
        if isinstance(param, click.Option)
        for name in (*param.opts, *param.secondary_opts)
    }


def as_other_launcher(words: Sequence[str]) -> UsageError | None:
    """Return the answer to `tlaunch torchrun ...`; None for other words, or where no program is seen."""
    found = other_launcher(words, None)
    if found is None or found.as_tlaunch is None:
        return None
    return _answer(f"tlaunch has no command {words[0]}; this does the same:", found.as_tlaunch)


def _answer(wrong: str, line: TlaunchLine) -> UsageError:
    """Return an error that quotes the lines to type below each other."""
    lines = [f"{INDENT}{printable(each)}" for each in (line.table, line.run) if each is not None]
    error = UsageError("\n".join((printable(wrong), *lines)), hint="; ".join(line.notes) or None)
    error.has_lines = True
    return error
