"""The command line, environment and files of an engine, determined before the engine starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from launcher.core.frozen import frozen

# The working directory in which agents start. Engines behave differently if one server lacks it: Open MPI 4 silently
# starts the other agents, Open MPI 5 exits without a message, Intel MPI and srun start that agent elsewhere. An agent
# that changes to the run's directory itself can report the server that lacks it.
START_DIRECTORY = Path("/")


@frozen
class EngineCommand:
    """An mpirun or srun command that starts the agents."""

    engine: str  # for people: "Open MPI 4.1.4", "Slurm 22.05.8"
    argv: tuple[str, ...]
    env: Mapping[str, str | None]  # added to the environment of the engine's own process; None removes a variable
    files: Mapping[Path, str]  # absolute path: content, written before the engine starts
    shell: tuple[str, ...] = ()  # how it reaches other servers: `shell... HOST COMMAND`; empty: through its own daemon
