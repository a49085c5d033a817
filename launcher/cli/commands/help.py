"""`tlaunch help [COMMAND]` and `tlaunch version`, for users who expect these commands."""

from __future__ import annotations

import click

from launcher.cli.options.command_types import HELP


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def show_help(context: click.Context, *, words: tuple[str, ...]) -> None:
    """Show the help of a command."""
    _call_root(context, *words, HELP)


@click.command()
@click.pass_context
def show_version(context: click.Context) -> None:
    """Show the version."""
    _call_root(context, "--version")


def _call_root(context: click.Context, *words: str) -> None:
    root = context.find_root()
    root.command.main(words, prog_name=root.info_name, standalone_mode=False)
