"""The option that says how large a rank table may be, of every command that reads one."""

from __future__ import annotations

import os

import click

from launcher.cli.options.size import Size
from launcher.core.env import TLAUNCH_MAX_TABLE_SIZE

SMALLEST_BYTES = 1 << 10
_KEPT = __name__


def _keep(context: click.Context, _option: click.Parameter, size_bytes: int | None) -> None:
    """For all that this command reads, and for the commands that it starts."""
    context.meta[_KEPT] = size_bytes
    if size_bytes is not None:
        os.environ[TLAUNCH_MAX_TABLE_SIZE] = str(size_bytes)


max_table_size_option = click.option(
    "--max-table-size", type=Size(SMALLEST_BYTES), metavar="SIZE", envvar=TLAUNCH_MAX_TABLE_SIZE,
    expose_value=False, callback=_keep,
    help=f"Read no larger rank table.  [default: ${TLAUNCH_MAX_TABLE_SIZE} or 40M]",
)  # fmt: skip


def max_table_bytes() -> int:
    """What the command that goes on was told, or the default."""
    from launcher.rank_table.files import LARGEST_TABLE_BYTES  # `--help` needs none of it

    context = click.get_current_context(silent=True)
    return (None if context is None else context.meta.get(_KEPT)) or LARGEST_TABLE_BYTES
