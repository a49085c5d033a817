"""`tlaunch plan`: predict and choose layouts, and show how the work of a training is divided among its ranks."""

from __future__ import annotations

import click

from launcher.cli.options.command_types import LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "layout": (f"{__name__}.layout:layout", "Predict step time and memory, and find the best dp, mp and pp."),
    "fit": (f"{__name__}.fit:fit", "Fit the numbers of a device to measured trainings."),
    "operators": (f"{__name__}.operators:operators", "Show each operator's sharding strategy and communication."),
    "simulate": (
        f"{__name__}.simulate:simulate",
        "Show memory, FLOPs and communication of a training step without running it.",
    ),
}


@click.command(cls=LazyGroup, sections={"Commands": COMMANDS})
def plan() -> None:
    """Choose how a training is divided among ranks, and show it."""
