"""Options of `tlaunch run` that mean something with some engines only, as they were typed or set in the environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import click
from click.core import ParameterSource

from launcher.cli.launch.options import RunOptions
from launcher.core.errors import UsageError
from launcher.logs.terminal import escaped


def is_typed(context: click.Context, name: str) -> bool:
    """Whether it stands in the command line; what the environment says is for every command of a shell."""
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def for_engine(context: click.Context, options: RunOptions) -> RunOptions:
    """Without what the environment says and this run has no use for.

    Raises:
        UsageError: it has no use for what was typed.
    """
    if options.by_engine and is_typed(context, "coordinator_port"):
        raise UsageError(
            f"--coordinator-port: with --engine {options.engine} a free port is chosen, and agents are told",
            hint="leave it out; it is for servers that are started by hand",
        )
    if not options.by_engine and options.rank_table is not None:
        return options
    if is_typed(context, "server"):
        raise UsageError(
            f"--server: {_why_no_server(options)}",
            hint="leave it out; it is for servers that are started by hand, with a --rank-table that names them",
        )
    return replace(options, server=None)


def check_server_id(said: str, server_ids: Sequence[str]) -> None:
    """Raises UsageError where no server is called `said`."""
    if said not in server_ids:
        raise UsageError(
            f"--server {escaped(said)}: the rank table has no such server",
            hint=f"its servers are {', '.join(map(escaped, server_ids))}",
        )


def _why_no_server(options: RunOptions) -> str:
    if options.by_engine:
        return f"with --engine {options.engine} each agent finds out which server it is on"
    return "without a --rank-table this machine is the only server"
