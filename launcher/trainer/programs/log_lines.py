"""The lines of a rank's log."""

from __future__ import annotations

import os
import sys

from launcher.core.env import TLAUNCH_RUN_DIR
from launcher.trainer.parallel.world import World


def say(line: str) -> None:
    """Write a line to this rank's log at once, and in one piece: a thread that writes a checkpoint has lines of its own."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def say_of_all(line: str, world: World) -> None:
    """Print a line, as `say` does, on every rank that has a log of its own; elsewhere on one rank."""
    if world.is_first or TLAUNCH_RUN_DIR in os.environ:
        say(line)
