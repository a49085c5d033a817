"""Options that the translating commands share."""

from __future__ import annotations

import click

from launcher.cli.options.command_types import together
from launcher.cli.options.types import FloatRange, IntRange

decoding_options = together(
    click.option(
        "--beam", type=IntRange(min=1, max=1000), default=5, show_default=True, metavar="N",
        help="Beam width: number of hypotheses kept per sentence. 1 means greedy search.",
    ),
    click.option(
        "--alpha", type=FloatRange(min=0, max=10), default=1.0, show_default=True, metavar="A",
        help="Length penalty: a hypothesis of n tokens has the score log p / n^A.",
    ),
    click.option(
        "--batch-tokens", type=IntRange(min=1), default=2048, show_default=True, metavar="N",
        help="Number of source tokens per batch, including padding.",
    ),
    click.option(
        "--device", type=click.Choice(["auto", "cpu"]), default="auto", show_default=True,
        help="Device to run the model on. auto selects an accelerator if one is available.",
    ),
)  # fmt: skip
