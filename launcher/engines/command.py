"""The command of an engine, decided before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from launcher.core.frozen import frozen

# Where agents start. Engines differ in what they make of a directory that one server lacks: Open MPI 4 starts the other
# agents and says nothing, 5 ends without a word, Intel MPI and srun start that agent elsewhere. An agent that goes to
# the run's directory by itself can report which server lacks it.
START_DIRECTORY = Path("/")


@frozen
class EngineCommand:
    """One process of an engine that starts the agents."""

    engine: str  # as people call it: "Open MPI 4.1.4", "Slurm 22.05.8"
    argv: tuple[str, ...]
    env: Mapping[str, str | None]  # laid over the environment of the engine's own process; None takes a variable away
    files: Mapping[Path, str]  # absolute path: text, to be there before it starts
    shell: tuple[str, ...] = ()  # how it reaches other servers: `shell... HOST COMMAND`; empty: by a daemon of its own
