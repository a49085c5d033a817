"""A group of commands that knows them by name and imports only the one that is called."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

# name: (module:attribute, the command's own short help)
Commands = Mapping[str, tuple[str, str]]


class LazyGroup(click.Group):
    """Its help reads `lookup` and imports no command."""

    def __init__(self, *args: Any, lookup: Commands, hidden_lookup: Commands | None = None, **attributes: Any) -> None:
        """`hidden_lookup`: commands that no help lists."""
        super().__init__(*args, **attributes)
        self.lookup = lookup
        self._all = {**lookup, **(hidden_lookup or {})}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.lookup)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self._all:
            return None
        module, _, attribute = self._all[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, short_help) for name, (_, short_help) in self.lookup.items()])
