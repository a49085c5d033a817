"""Functions that write lines to a rank's log."""

from __future__ import annotations

import os
import sys

from launcher.core.env import TLAUNCH_RUN_DIR
from launcher.trainer.parallel.world import World


def say(line: str) -> None:
    """Write a line to this rank's log in one piece and flush it. Other threads write lines, too."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def say_of_all(line: str, world: World) -> None:
    """Write a line to every rank's log; without a run directory, only on the first rank."""
    if world.is_first or TLAUNCH_RUN_DIR in os.environ:
        say(line)
