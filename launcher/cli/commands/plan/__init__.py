"""`tlaunch plan`: show how the work of a training is divided among its ranks."""

from __future__ import annotations

import click

from launcher.cli.options.command_types import LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "operators": (f"{__name__}.operators:operators", "Show each operator's sharding strategy and communication."),
    "simulate": (
        f"{__name__}.simulate:simulate",
        "Show memory, FLOPs and communication of a training step without running it.",
    ),
}


@click.command(cls=LazyGroup, sections={"Commands": COMMANDS})
def plan() -> None:
    """Show how a training is divided among ranks."""
