"""Types of options (whole numbers, seconds and sizes within bounds, names of files), and refusals as errors of our own."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from launcher.cli.options.command_types import HELP, HELP_ALL, TakesCommand, UnknownCommand
from launcher.core.errors import UsageError
from launcher.core.resources import at_home
from launcher.core.text import did_you_mean, duration_s, near


class BadValue(click.BadParameter):
    """A value that the type of an option refuses, and what to write instead."""

    def __init__(
        self, message: str, param: click.Parameter | None, ctx: click.Context | None, hint: str | None = None
    ) -> None:
        super().__init__(message, ctx, param)
        self.hint = hint


class _Bounded(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2 only
    """A number within bounds, which `--help` does not show as a formula, and errors say in words."""

    def __init__(self, min: float | None = None, max: float | None = None) -> None:  # noqa: A002 - click's names
        self._min = min
        self._max = max

    def within_bounds(self, number: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return `number`; raise BadValue if it is outside the bounds, both of which are allowed."""
        shown = number if isinstance(number, int) else f"{number:.10g}"
        if self._min is not None and number < self._min:
            raise BadValue(f"{shown} is less than {self._min:.10g}", param, ctx)
        if self._max is not None and number > self._max:
            raise BadValue(f"{shown} is more than {self._max:.10g}", param, ctx)
        return number


class IntRange(_Bounded):
    """A whole number within bounds."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            number = int(value)
        except ValueError:
            raise BadValue(f"{value!r} is not a whole number", param, ctx, _about_count(str(value))) from None
        return self.within_bounds(number, param, ctx)


def _about_count(value: str) -> str | None:
    """Return what to write instead of what users of torchrun (`auto`, `gpu`) and mpirun (`-np2`) write for a number of devices."""
    if value in {"auto", "gpu", "cpu"}:
        return "write how many, for instance 8"
    if re.fullmatch(r"p\d+", value):
        return f"put a blank between: -np {value[1:]}"
    return None


class FloatRange(_Bounded):
    """A number within bounds, and not NaN."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if math.isnan(number):
            raise BadValue(f"{value!r} is not a number", param, ctx)
        return self.within_bounds(number, param, ctx)


class Seconds(_Bounded):
    """Seconds within bounds: 90, 90s, 1.5h, 1h30m. Not NaN, which is neither below nor above any bound."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = duration_s(str(value).strip())
        if seconds is None:
            try:
                seconds = float(value)
            except ValueError:
                seconds = math.nan
        if math.isnan(seconds):
            raise BadValue(f"{value!r} is no duration", param, ctx, "for instance 90 (seconds), 10m or 1h30m")
        return self.within_bounds(seconds, param, ctx)


MAX_BYTES = 1 << 62
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


class Size(_Bounded):
    """A number of bytes: 65536, 64K, 1.5M, 1 GiB. Units are powers of 1024."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, int):
            return value
        matched = _SIZE.fullmatch(str(value).strip())
        if matched is None:
            raise BadValue(f"{value!r} is not a size", param, ctx, "for instance 64M")
        size = float(matched[1]) * _UNITS[matched[2].upper()]
        if size > MAX_BYTES:
            raise BadValue(f"{value} is larger than any file", param, ctx)
        least = int(self._min or 0)
        if size < least:
            raise BadValue(f"{value} is too small: at least {least >> 10}K", param, ctx)
        return int(size)


class PathType(click.Path):
    """A path whose leading `~` is the home directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(at_home(value) if isinstance(value, str) else value, param, ctx)


class _NameOrPath(click.types.StringParamType):
    """A text that may be a path; a leading `~` is the home directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return at_home(super().convert(value, param, ctx))


class _File(PathType):
    """A path that is not empty: one of pathlib would be that of this directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            raise BadValue("the name is empty", param, ctx, "name the file (an empty variable?)")
        return super().convert(value, param, ctx)


FILE = _File(path_type=Path)
A_PATH = PathType(path_type=Path)
NAME_OR_PATH = _NameOrPath()


def complete_files(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[Any]:
    """Have the shell complete the names of files, as it does for commands that it knows nothing of."""
    from click.shell_completion import CompletionItem  # only a shell that completes needs it

    return [CompletionItem(begun, type="file")]


# --- what click refuses ---

# What users of other tools type, and what it is called here; only what a command has is offered. The options of other
# launchers are those of `launcher.cli.launch.foreign.options`.
CALLED_HERE = {
    "-a": "--all",  # docker's, of ps
    **dict.fromkeys(("-9", "-f", "--force"), "--kill"),
    "-t": "--timestamps",  # of logs
    "-V": "--version",
}
# What users of other tools call commands; the first word is a command's name here.
COMMANDS_CALLED_HERE = {
    "kill": "stop", "cancel": "stop", "rm": "prune", "clean": "prune", "ls": "ps", "list": "ps", "tail": "logs -f", "attach": "top",
    "watch": "top", "resume": "rerun RUN --resume RUN", "start": "run", "launch": "run", "help": "--help", "version": "--version", "check": "validate",
}  # fmt: skip
_SHELLS = frozenset(("bash", "sh"))  # which may run a program's script
# What no command needs an option for.
DONE_ANYWHERE = {
    **dict.fromkeys(("-w", "--watch"), "`tlaunch top` shows how a run goes on"),
    "--color": "NO_COLOR=1 in the environment is without colours, FORCE_COLOR=1 with them",
}
_UNREADABLE = re.compile(r"\w+ '(.*)' is not readable\.", re.DOTALL)
_EXTRA = re.compile(r"Got unexpected extra arguments? \((.*)\)", re.DOTALL)


def as_usage_error(error: click.ClickException, words: Sequence[str] = ()) -> UsageError:
    """Return the same complaint as an error of our own. `words`: the whole command line."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    match error:
        case UnknownCommand(ctx=click.Context() as group):
            return _no_such_command(error.words, group)
        case click.NoSuchOption():
            return _no_such_option(error.option_name, context, words)
        case click.BadOptionUsage():
            needs = "needs a value" if "requires" in error.message else "takes no value"
            return UsageError(f"{error.option_name} {needs}")
        case click.MissingParameter(param=click.Parameter() as param):
            return UsageError(f"{_name(param)} is missing", hint=_wanted(param) or _usage(context))
        case click.BadParameter(param=click.Parameter() as param):
            return _bad_value(error, param)
    message = error.message
    if context is not None and (extra := _EXTRA.search(message)):
        message = f"{context.command_path} does not take more arguments: {extra[1]}"
    else:
        message = f"{message[:1].lower()}{message[1:]}".rstrip(".")
    return UsageError(message, hint=_usage(context))


def _no_such_command(words: Sequence[str], context: click.Context) -> UsageError:
    """Return the error for words that begin with no command of this group."""
    from launcher.cli.launch.foreign.launchers import PROGRAMS
    from launcher.cli.launch.foreign.lines import names_program
    from launcher.cli.options.whole_lines import as_other_launcher, as_without_run  # most command lines are correct

    name, group, path = words[0], context.command, context.command_path
    whole = as_other_launcher(words) if context.parent is None else None
    if whole is None and (names_program(name) or name in _SHELLS or _is_program_here(name)):
        whole = as_without_run(context, words)
    if whole is not None:
        return whole
    known = group.list_commands(context) if isinstance(group, click.Group) else ()
    hint = did_you_mean(near(name, known))
    if context.parent is None and name in COMMANDS_CALLED_HERE:
        hint = f"tlaunch calls it `{path} {COMMANDS_CALLED_HERE[name]}`"
    elif context.parent is None and name in PROGRAMS:
        hint = f"what {name} starts is started by `{path} run`: `{path} run --help`"
    return UsageError(f"{path} has no command {name}", hint=hint or f"`{path} --help` lists them")


def _is_program_here(name: str) -> bool:
    """Return whether a word names a program with its directory: `./train.sh`."""
    return "/" in name and os.path.isfile(name) and os.access(name, os.X_OK)  # noqa: PTH113 - a Path raises for some


def _no_such_option(option: str, context: click.Context | None, words: Sequence[str]) -> UsageError:
    from launcher.cli.launch.foreign.options import counterpart
    from launcher.cli.options.whole_lines import as_of_run, as_without_run  # most command lines are correct

    if context is None:
        return UsageError(f"no such option: {option}")
    if (whole := as_of_run(context, words) or as_without_run(context, words)) is not None:
        return whole
    command = context.command
    takes_program = isinstance(command, TakesCommand)
    is_like_run = isinstance(command, TakesCommand) and command.is_like_run
    known = [
        name
        for param in context.command.get_params(context)
        if isinstance(param, click.Option) and not param.hidden
        for name in (*param.opts, *param.secondary_opts)
    ]
    of_other = counterpart(option)
    called_here = CALLED_HERE.get(option)
    hint = f"tlaunch calls it {called_here}" if called_here in known else None
    if option == "--no-config":  # which every command heeds
        hint = f"write it before the command: {context.find_root().command_path} --no-config ..."
    if hint is None and of_other is not None and (of_other.here in known or is_like_run):
        hint = of_other.advice
    hint = hint or DONE_ANYWHERE.get(option) or did_you_mean(near(option, known))
    listed = f"`{context.command_path} {HELP_ALL if HELP_ALL in known else HELP}` lists them"
    if takes_program:
        listed += "; put options of the program after --"
    return UsageError(f"{context.command_path} has no option {option}", hint=hint or listed)


def _bad_value(error: click.BadParameter, param: click.Parameter) -> UsageError:
    if unreadable := _UNREADABLE.fullmatch(error.message):
        return UsageError(f"{unreadable[1]} cannot be read: Permission denied")
    hint = error.hint if isinstance(error, BadValue) else None
    message, choices = error.message.rstrip("."), _choices(param)
    value, is_unknown, _ = message.partition(" is not one of ")
    if choices and is_unknown:
        message = f"{value} is not one of {', '.join(choices)}"
        hint = did_you_mean(near(value.strip("'"), choices))
    source = error.ctx.get_parameter_source(param.name) if error.ctx and param.name else None
    is_from_variable = source is ParameterSource.ENVIRONMENT and isinstance(param.envvar, str)
    return UsageError(f"{param.envvar if is_from_variable else _name(param)}: {message}", hint=hint)


def _wanted(param: click.Parameter) -> str | None:
    """Return what may be written for an option that is missing, as --help says it."""
    if choices := _choices(param):
        return f"choose from {', '.join(choices)}"
    if isinstance(param, click.Option) and param.metavar and param.help:
        return f"{_name(param)} {param.metavar}: {param.help[:1].lower()}{param.help[1:].rstrip('.')}"
    return None


def _choices(param: click.Parameter) -> tuple[str, ...]:
    return tuple(map(str, param.type.choices)) if isinstance(param.type, click.Choice) else ()


def _name(param: click.Parameter) -> str:
    """Return what a person types for an option (its long name), or what the help calls an argument, without its dots."""
    if isinstance(param, click.Option):
        return max(param.opts, key=len)
    called = param.human_readable_name
    return named[0] if (named := re.search("[A-Z]+", called)) else called


def _usage(context: click.Context | None) -> str | None:
    if context is None:
        return None
    return " ".join(("usage:", context.command_path, *context.command.collect_usage_pieces(context)))
