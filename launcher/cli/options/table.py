"""The two options that say for whom a table is checked. `--help` loads nothing of `launcher.rank_table` for them."""

from __future__ import annotations

import click

CHIP_NAMES = ("auto", "910", "a2", "a3", "a5", "300i", "none")
CONSUMER_NAMES = ("hccl", "mindspore", "msrun", "serving", "mindie")

chip_option = click.option(
    "--chip",
    type=click.Choice(CHIP_NAMES),
    default="auto",
    show_default=True,
    help="The hardware; none for CPU and GPU, where rules of Ascend devices are warnings.",
)
consumer_option = click.option(
    "--for",
    "consumer",
    type=click.Choice(CONSUMER_NAMES),
    default="hccl",
    show_default=True,
    help="Who will read the table; each adds rules of its own.",
)
