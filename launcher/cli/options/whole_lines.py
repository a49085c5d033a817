"""The answer to a whole line of torchrun, msrun or mpirun that was typed at tlaunch: the line that does the same."""

from __future__ import annotations

from collections.abc import Sequence

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
    own = {
        name: 0 if param.is_flag else param.nargs
        for param in context.command.params
        if isinstance(param, click.Option)
        for name in (*param.opts, *param.secondary_opts)
    }
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
    return _answer(f"{context.command_path} has no {options}", tlaunch_line(line, command=context.command_path))


def as_other_launcher(words: Sequence[str]) -> UsageError | None:
    """Return the answer to `tlaunch torchrun ...`; None for other words, or where no program is seen."""
    found = other_launcher(words, None)
    if found is None or found.as_tlaunch is None:
        return None
    return _answer(f"tlaunch has no command {words[0]}", found.as_tlaunch)


def _answer(wrong: str, line: TlaunchLine) -> UsageError:
    """Return an error that quotes the lines to type below each other."""
    lines = [f"{INDENT}{printable(each)}" for each in (line.table, line.run) if each is not None]
    error = UsageError(
        "\n".join((printable(f"{wrong}; this does the same:"), *lines)), hint="; ".join(line.notes) or None
    )
    error.has_lines = True
    return error
