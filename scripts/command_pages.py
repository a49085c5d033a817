"""Append the help of every command to docs/reference/commands.md. MkDocs calls this hook while it builds the site."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import click

from launcher.cli.main import tlaunch
from launcher.cli.options.command_types import HELP_ALL

PAGE = "reference/commands.md"
ONLY_IN_REPOSITORY = "The site that `make docs` builds has the help of every command on this page.\n"
WIDTH = 100


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return the Markdown of a page. The page of commands gets the help of every command."""
    if page.file.src_uri != PAGE:
        return markdown
    return markdown.replace(ONLY_IN_REPOSITORY, "") + "\n".join(sections("tlaunch", tlaunch, None))


def sections(name: str, command: click.Command, parent: click.Context | None) -> Iterator[str]:
    """Yield a section with the help of `command`, then sections for its subcommands."""
    settings = {**command.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    context = click.Context(command, parent, info_name=name, **settings)
    context.meta[HELP_ALL] = True
    yield f"\n## `{context.command_path}`\n"
    yield textwrap.indent(command.get_help(context), " " * 4) + "\n"
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            subcommand = command.get_command(context, below)
            assert subcommand is not None, f"{below} is listed"
            yield from sections(below, subcommand, context)
