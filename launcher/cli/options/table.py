"""The options of commands that read rank tables."""

from __future__ import annotations

import os

import click

from launcher.cli.options.types import Size
from launcher.core.env import TLAUNCH_MAX_TABLE_SIZE

CHIP_NAMES = ("auto", "910", "a2", "a3", "a5", "300i", "none")
CONSUMER_NAMES = ("hccl", "mindspore", "msrun", "serving", "mindie")

chip_option = click.option(
    "--chip",
    type=click.Choice(CHIP_NAMES),
    default="auto",
    show_default=True,
    help="Hardware to check for; with none (CPU, GPU), rules of Ascend devices give warnings.",
)
consumer_option = click.option(
    "--for",
    "consumer",
    type=click.Choice(CONSUMER_NAMES),
    default="hccl",
    show_default=True,
    help="Program that will read the table; each adds its own rules.",
)


MIN_TABLE_BYTES = 1 << 10


def _keep(_context: click.Context, _option: click.Parameter, size_bytes: int | None) -> None:
    """Leave the size to all that this command reads, and to the commands that it starts."""
    if size_bytes is not None:
        os.environ[TLAUNCH_MAX_TABLE_SIZE] = str(size_bytes)


max_table_size_option = click.option(
    "--max-table-size", type=Size(MIN_TABLE_BYTES), metavar="SIZE", envvar=TLAUNCH_MAX_TABLE_SIZE,
    expose_value=False, callback=_keep,
    help=f"Refuse a rank table that is larger.  [default: ${TLAUNCH_MAX_TABLE_SIZE} or 40M]",
)  # fmt: skip


def keep_max_table_size() -> None:
    """Check what the environment says of the size, where no command line is parsed.

    Raises:
        click.BadParameter: it is no size.
    """
    if text := os.environ.get(TLAUNCH_MAX_TABLE_SIZE):
        os.environ[TLAUNCH_MAX_TABLE_SIZE] = str(Size(MIN_TABLE_BYTES).convert(text, None, None))
