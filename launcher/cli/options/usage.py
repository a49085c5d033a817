"""What click refuses, in the words of every other error: what is wrong, and a hint at what to do."""

from __future__ import annotations

import re

import click
from click.core import ParameterSource

from launcher.cli.options.types import BadValue
from launcher.core.errors import UsageError
from launcher.core.text import did_you_mean, near

# What users of other tools type, and what it is called here; only what a command has is offered.
CALLED_HERE = {
    "--tail": "--lines",  # docker, kubectl
    "--nproc-per-node": "--devices",  # torchrun
    "--nproc_per_node": "--devices",
    "-n": "--devices",  # mpirun
}
_UNKNOWN_COMMAND = re.compile(r"No such command '(.*)'", re.DOTALL)
_UNREADABLE = re.compile(r"\w+ '(.*)' is not readable\.", re.DOTALL)
_EXTRA = re.compile(r"Got unexpected extra arguments? \((.*)\)", re.DOTALL)


def as_usage_error(error: click.ClickException) -> UsageError:
    """Return the same complaint as an error of our own."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    match error:
        case click.NoSuchOption():
            return _no_such_option(error.option_name, context)
        case click.BadOptionUsage():
            needs = "needs a value" if "requires" in error.message else "takes no value"
            return UsageError(f"{error.option_name} {needs}")
        case click.MissingParameter(param=click.Parameter() as param):
            choices = f"choose from {', '.join(_choices(param))}" if _choices(param) else None
            return UsageError(f"{_name(param)} is missing", hint=choices or _usage(context))
        case click.BadParameter(param=click.Parameter() as param):
            return _bad_value(error, param)
        case _:
            return _any_other(error, context)


def _no_such_option(option: str, context: click.Context | None) -> UsageError:
    if context is None:
        return UsageError(f"no such option: {option}")
    known = [
        name
        for param in context.command.get_params(context)
        if isinstance(param, click.Option) and not param.hidden
        for name in (*param.opts, *param.secondary_opts)
    ]
    called_here = CALLED_HERE.get(option)
    hint = f"tlaunch calls it {called_here}" if called_here in known else did_you_mean(near(option, known))
    return UsageError(
        f"{context.command_path} has no option {option}", hint=hint or f"`{context.command_path} --help` lists them"
    )


def _no_such_command(name: str, context: click.Context) -> UsageError:
    group, path = context.command, context.command_path
    known = group.list_commands(context) if isinstance(group, click.Group) else ()
    hint = did_you_mean(near(name, known))
    if hint is None and context.parent is None and name.endswith(".py"):
        hint = f"`{path} run --devices N -- python {name}` starts it"
    return UsageError(f"{path} has no command {name}", hint=hint or f"`{path} --help` lists them")


def _bad_value(error: click.BadParameter, param: click.Parameter) -> UsageError:
    if unreadable := _UNREADABLE.fullmatch(error.message):
        return UsageError(f"{unreadable[1]} cannot be read: Permission denied")  # as whoever reads it would say
    hint = error.hint if isinstance(error, BadValue) else None
    message, choices = error.message.rstrip("."), _choices(param)
    value, is_unknown, _ = message.partition(" is not one of ")
    if choices and is_unknown:
        message = f"{value} is not one of {', '.join(choices)}"
        hint = did_you_mean(near(value.strip("'"), choices))
    return UsageError(f"{_variable(error, param) or _name(param)}: {message}", hint=hint)


def _any_other(error: click.ClickException, context: click.Context | None) -> UsageError:
    message = error.message
    if context is not None and (unknown := _UNKNOWN_COMMAND.match(message)):
        return _no_such_command(unknown[1], context)
    if context is not None and (extra := _EXTRA.search(message)):
        message = f"{context.command_path} does not take more arguments: {extra[1]}"
    else:
        message = f"{message[:1].lower()}{message[1:]}".rstrip(".")
    return UsageError(message, hint=_usage(context))


def _choices(param: click.Parameter) -> tuple[str, ...]:
    return tuple(map(str, param.type.choices)) if isinstance(param.type, click.Choice) else ()


def _name(param: click.Parameter) -> str:
    """Return what a person types for an option (its long name), or what the help calls an argument, without its dots."""
    if isinstance(param, click.Option):
        return max(param.opts, key=len)
    called = param.human_readable_name
    return named[0] if (named := re.search("[A-Z]+", called)) else called


def _variable(error: click.BadParameter, param: click.Parameter) -> str | None:
    """Return the variable of the environment that a value came from; None where it was typed."""
    source = error.ctx.get_parameter_source(param.name) if error.ctx and param.name else None
    return param.envvar if source is ParameterSource.ENVIRONMENT and isinstance(param.envvar, str) else None


def _usage(context: click.Context | None) -> str | None:
    if context is None:
        return None
    return " ".join(("usage:", context.command_path, *context.command.collect_usage_pieces(context)))
