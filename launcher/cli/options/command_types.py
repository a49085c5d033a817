"""Command classes for click: a group that imports its commands lazily, and commands that end in `-- COMMAND`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from launcher.core.errors import UsageError

Command = TypeVar("Command", bound=Callable[..., Any])
COMMANDS = "launcher.cli.commands"  # the package of modules with relative names
# name: (module:attribute, short help)
Commands = Mapping[str, tuple[str, str]]
HELP, HELP_ALL = "--help", "--help-all"
DRY_RUN = "--dry-run"


class UnknownCommand(click.UsageError):
    """Raised for an unknown command of a group. `words` are the command's name and all words after it."""

    def __init__(self, words: Sequence[str], context: click.Context) -> None:
        super().__init__(f"no command {words[0]}", context)
        self.words = tuple(words)


class Group(click.Group):
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command to call. Raises UnknownCommand if the command is not in the group."""
        if not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            raise UnknownCommand(args, ctx)
        return super().resolve_command(ctx, args)


class LazyGroup(Group):
    """A command group that lists its commands in sections and imports a command only when it is called."""

    def __init__(
        self, *args: Any, sections: Mapping[str, Commands], hidden: Commands | None = None, **attributes: Any
    ) -> None:
        """Create the group. Its help omits the `hidden` commands."""
        super().__init__(*args, **attributes)
        self._sections = sections
        self.lookup = {name: command for commands in sections.values() for name, command in commands.items()}
        self._all = {**self.lookup, **(hidden or {})}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.lookup)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self._all:
            return None
        module, _, attribute = self._all[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module, COMMANDS), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command to call. Set its defaults from the project file, unless it only prints help."""
        name, command, rest = super().resolve_command(ctx, args)
        asks_help = rest[:1] in (["-h"], [HELP], [HELP_ALL])
        without_file = ctx.resilient_parsing or ctx.find_root().params.get("no_config") or asks_help
        if command is not None and name is not None and name in self.lookup and not without_file:
            from launcher.cli.options.project_place import known_place  # not needed for `--help`

            if (place := known_place(ctx.meta)) is not None:
                from launcher.cli.options.project_file import give_defaults  # few projects have such a file

                give_defaults(ctx, name, command, place)
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        width = max(map(len, self.lookup))
        for title, commands in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), short_help) for name, (_, short_help) in commands.items()])


class TakesCommand(click.Command):
    """A click command whose command line ends with `-- COMMAND`.

    `--` without COMMAND is an error, because COMMAND may be an empty variable of a script. click would ignore the `--`.
    """

    without = "start the bundled trainer"  # what the command does without COMMAND
    is_like_run = False  # whether it takes all options of `tlaunch run`
    groups: Mapping[str, Sequence[click.Parameter]] = {}  # help section: its options
    rare: Collection[str] = ()  # names of the parameters that only --help-all shows

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options that belong to no group, then each group of options, then `--help`."""
        *known, help_option = self.get_params(ctx)
        if HELP_ALL not in ctx.meta:
            known = [option for option in known if option.name not in self.rare]
        grouped = [option for options in self.groups.values() for option in options]
        sections = {"Options": [option for option in known if option not in grouped]}
        sections |= {title: [option for option in options if option in known] for title, options in self.groups.items()}
        list(sections.values())[-1].append(help_option)
        for title, options in sections.items():
            rows = [option.get_help_record(ctx) for option in options if isinstance(option, click.Option)]
            if shown := [row for row in rows if row is not None]:
                with formatter.section(title):
                    formatter.write_dl(shown)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ends_there = args[-1:] == ["--"]  # checked first, because click consumes `args`
        rest = super().parse_args(ctx, args)
        if ctx.resilient_parsing:
            return rest
        command = ctx.params.get("command") or ()
        if ends_there and not command:
            raise UsageError(
                "COMMAND is missing after `--`",
                hint=f"give a program, and check for an empty shell variable; to {self.without}, leave out `--`",
            )
        words = command[: command.index("--")] if "--" in command else command
        is_said = ctx.get_parameter_source("dry_run") is not ParameterSource.DEFAULT
        if DRY_RUN in words and "dry_run" in ctx.params and not is_said:
            raise UsageError(
                f"{DRY_RUN} comes after COMMAND, so tlaunch would pass the option to the program and start the ranks",
                hint=f"to start no ranks, write `{ctx.command_path} {DRY_RUN} ...`; to pass {DRY_RUN} to the program, write "
                f"`{ctx.command_path} --no-dry-run ...`",
            )
        return rest


def _show_all_options(context: click.Context, _option: click.Parameter, is_asked: bool) -> None:
    if is_asked and not context.resilient_parsing:
        context.meta[HELP_ALL] = True
        click.echo(context.get_help())
        context.exit()


help_all_option = click.option(
    HELP_ALL,
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_all_options,
    help="Show all options and exit.",
)


def together(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return a decorator that adds several options or arguments to a command, in this order."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def parameters_of(*options: Callable[[Any], Any]) -> list[click.Parameter]:
    """Return the parameters that these decorators would add to a command."""
    return click.command()(together(*options)(lambda: None)).params
