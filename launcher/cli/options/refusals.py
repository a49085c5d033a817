"""Convert click's usage errors to UsageError, and add hints."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from itertools import pairwise

import click

from launcher.cli.launch.external.command_lines import names_program
from launcher.cli.launch.external.launchers import PROGRAMS
from launcher.cli.launch.external.options import counterpart
from launcher.cli.options.command_suggestions import as_of_run, as_other_launcher, as_without_run
from launcher.cli.options.command_types import HELP, HELP_ALL, TakesCommand, UnknownCommand
from launcher.cli.options.types import choices_of, refused_value, typed_name
from launcher.core.errors import TlaunchError, UsageError
from launcher.core.text import UNITS_S, did_you_mean, near, shell_words
from launcher.preload.masking import masked_argv

# Options of other tools: tlaunch's name, suggested if the command has it. `launcher.cli.launch.external.options` has the
# options of other launchers.
CALLED_HERE = {
    "-a": "--all",
    **dict.fromkeys(("-9", "-f", "--force"), "--kill"),
    "-t": "--timestamps",  # of logs
}
# Command names of other tools: tlaunch's command.
COMMANDS_CALLED_HERE = {
    "kill": "stop", "cancel": "stop", "rm": "prune", "clean": "prune", "ls": "ps", "list": "ps", "tail": "logs -f", "attach": "top",
    "watch": "top", "start": "run", "launch": "run", "train": "run", "fit": "run", "eval": "evaluate", "predict": "translate",
    "check": "validate",
}  # fmt: skip
_RESUMES = frozenset(("resume", "continue"))
_SHELLS = frozenset(("bash", "sh"))
# Options that no command has: the hint.
DONE_ANYWHERE = {
    **dict.fromkeys(("-w", "--watch"), "use `tlaunch top` to watch a run"),
    "--color": "set NO_COLOR=1 or FORCE_COLOR=1 in the environment",
}
_EXTRA = re.compile(r"Got unexpected extra arguments? \((.*)\)", re.DOTALL)
RANK, MAX_RANK_DIGITS = "--rank", 6  # runs have longer names
DURATION = "TIME"  # metavar of options that take a duration
_UNITS = {
    **{unit: unit for unit in UNITS_S},
    **dict.fromkeys(("sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("hr", "hrs", "hour", "hours"), "h"),
    **dict.fromkeys(("day", "days"), "d"),
}


def refusal(error: TlaunchError | click.ClickException, words: Sequence[str], group: click.Group) -> TlaunchError:
    """Convert click's error to a TlaunchError, with a hint if a duration was written as two words, or a rank as RUN."""
    refused = error if isinstance(error, TlaunchError) else as_usage_error(error, words)
    own = words[: words.index("--")] if "--" in words else words
    command = _called(own, group)
    refused.hint = _hint_of_duration(refused, own, command) or _hint_of_rank(refused, own, command) or refused.hint
    return refused


def as_usage_error(error: click.ClickException, words: Sequence[str] = ()) -> UsageError:
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
            return UsageError(f"{typed_name(param)} is missing", hint=_wanted(param) or _usage(context))
        case click.BadParameter(param=click.Parameter() as param):
            return refused_value(error, param)
    message = error.message
    if context is not None and (extra := _EXTRA.search(message)):
        message = f"{context.command_path} got unexpected arguments: {extra[1]}"
    else:
        message = f"{message[:1].lower()}{message[1:]}".rstrip(".")
    return UsageError(message, hint=_usage(context))


def _no_such_command(words: Sequence[str], context: click.Context) -> UsageError:
    name, group, path = words[0], context.command, context.command_path
    whole = as_other_launcher(words) if context.parent is None else None
    is_program = "/" in name and os.path.isfile(name) and os.access(name, os.X_OK)  # noqa: PTH113 - a Path raises for some
    if whole is None and (names_program(name) or name in _SHELLS or is_program):
        whole = as_without_run(context, words)
    if whole is not None:
        return whole
    known = group.list_commands(context) if isinstance(group, click.Group) else ()
    hint = did_you_mean(near(name, known))
    if context.parent is None and name in COMMANDS_CALLED_HERE:
        hint = _hint_of_alias(words, context)
    elif context.parent is None and name in _RESUMES:
        options = list(masked_argv(words[1:]))
        run = options.pop(0) if options and not options[0].startswith("-") else "RUN"
        hint = f"use `{shell_words((path, 'rerun', run, '--resume', run, *options))}`"
    elif context.parent is None and name in PROGRAMS:
        hint = f"use `{path} run` to start ranks; see `{path} run --help`"
    return UsageError(f"{path} has no command {name}", hint=hint or f"list the commands with `{path} --help`")


def _hint_of_alias(words: Sequence[str], context: click.Context) -> str:
    """Return a hint with the command for a line that starts with another tool's command name."""
    (name, *rest), group = words, context.command
    assert isinstance(group, click.Group)
    line = (context.command_path, *COMMANDS_CALLED_HERE[name].split())
    command = group.get_command(context, line[1])
    assert command is not None
    called = click.Context(command, parent=context, info_name=line[1], **command.context_settings)
    try:
        left_over = command.make_parser(called).parse_args(list(rest))[1]
        advice = f"see `{called.command_path} {HELP}`" if left_over else None
    except click.UsageError as error:
        advice = as_usage_error(error, words).hint
    return f"use `{shell_words(line)}`; {advice}" if advice else f"use `{shell_words((*line, *masked_argv(rest)))}`"


def _no_such_option(option: str, context: click.Context | None, words: Sequence[str]) -> UsageError:
    if context is None:
        return UsageError(f"no such option: {option}")
    if (whole := as_of_run(context, words) or as_without_run(context, words)) is not None:
        return whole
    command = context.command
    is_like_run = isinstance(command, TakesCommand) and command.is_like_run
    known = [
        name
        for param in context.command.get_params(context)
        if isinstance(param, click.Option) and not param.hidden
        for name in (*param.opts, *param.secondary_opts)
    ]
    of_other, called_here = counterpart(option), CALLED_HERE.get(option)
    hint = f"use {called_here}" if called_here in known else None
    if option == "--no-config":  # an option of `tlaunch` itself
        hint = f"write it before the command: `{context.find_root().command_path} --no-config ...`"
    if hint is None and of_other is not None and (of_other.here in known or is_like_run):
        hint = of_other.advice
    hint = hint or DONE_ANYWHERE.get(option) or did_you_mean(near(option, known))
    if hint is None and is_like_run and not any(word == "--" or names_program(word) for word in words):  # no COMMAND
        hint = _hint_of_settings(option, words, known)
        if hint is not None and context.info_name == "rerun":
            hint += "; put options of the program after `--`"
    listed = f"list the options with `{context.command_path} {HELP_ALL if HELP_ALL in known else HELP}`"
    if isinstance(command, TakesCommand):
        listed += "; put options of the program after `--`"
    return UsageError(f"{context.command_path} has no option {option}", hint=hint or listed)


def _hint_of_settings(option: str, words: Sequence[str], own: Collection[str]) -> str | None:
    """Return a hint for `option` and the other options in `words` that belong to other trainers, such as `--epochs 3`."""
    from launcher.recipes.catalog import recipe_named  # only for mistyped lines
    from launcher.recipes.settings import all_settings, hint_for

    given: dict[str, str | None] = {}
    for word, following in pairwise((*masked_argv(words), "-")):
        name, is_joined, value = word.partition("=")
        if name.startswith("--"):
            given[name] = value if is_joined else None if following.startswith("-") else following
    try:
        settings = all_settings(recipe_named(given.get("--recipe")).settings)
    except UsageError:  # reported once the options are right
        return None
    given = {name: value for name, value in given.items() if name not in own}
    return None if hint_for({option: None}, settings) is None else hint_for(given, settings)


def _wanted(param: click.Parameter) -> str | None:
    if choices := choices_of(param):
        return f"choose from {', '.join(choices)}"
    if isinstance(param, click.Option) and param.metavar and param.help:
        return f"{typed_name(param)} {param.metavar}: {param.help[:1].lower()}{param.help[1:].rstrip('.')}"
    return None


def _usage(context: click.Context | None) -> str | None:
    if context is None:
        return None
    return " ".join(("usage:", context.command_path, *context.command.collect_usage_pieces(context)))


def _called(words: Sequence[str], group: click.Group) -> click.Command:
    """Return the command that `words` call."""
    command: click.Command = group
    for word in words:
        if isinstance(command, click.Group):
            command = command.get_command(click.Context(command), word) or command
    return command


def _hint_of_rank(error: TlaunchError, words: Sequence[str], command: click.Command) -> str | None:
    """Return a hint for a rank that was written as an argument, such as `tlaunch logs 2` or `tlaunch logs rank 2`.

    Return None if the command has no --rank, or `error` is not about this argument.
    """
    if not any(RANK in param.opts for param in command.params) or RANK in words:
        return None
    ranks = (word for word in words if word.isdecimal() and len(word) <= MAX_RANK_DIGITS)
    about = re.compile(r"(?:^|start with |arguments: (?:\w+ )*)(\d+)(?!\S*\w)")
    found = about.search(error.message)
    return f"to choose rank {found[1]}, use `{RANK} {found[1]}`" if found is not None and found[1] in ranks else None


def _hint_of_duration(error: TlaunchError, words: Sequence[str], command: click.Command) -> str | None:
    """Return a hint for a duration that was written as two words, such as `--hang-timeout 10 m`.

    `run` reads that as 10 seconds and a program `m`. Return None if `error` is not about the unit. `words` is the command
    line up to `--`.
    """
    takers = {name for param in command.params if param.metavar == DURATION for name in param.opts}
    for (option, second), (_, third) in pairwise(pairwise((*words, ""))):
        name, is_joined, value = option.partition("=")
        number, unit = (value, second) if is_joined else (second, third)
        is_split = name in takers and number.replace(".", "", 1).isdecimal() and unit in _UNITS
        if is_split and (error.message.startswith((f"{unit}:", f"{name}:")) or error.message.endswith(f": {unit}")):
            return f"write the duration as one word: {name}{'=' if is_joined else ' '}{number}{_UNITS[unit]}"
    return None
