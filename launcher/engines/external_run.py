"""Values that ranks started by another launcher must agree on without communicating, such as the run's name. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

from launcher.core import env
from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.machine.engine_rank import EngineRank
from launcher.core.records import Layout
from launcher.core.run_dir import is_run_name
from launcher.core.text import counted
from launcher.logs.terminal import escaped

MIN_PORT = 20000
PORTS = 10000  # below the range that Linux uses for outgoing connections (from 32768)
HINT_RUN_ID = "TLAUNCH_RUN_ID=$(date +%Y%m%d-%H%M%S)"


def check_size(rank: EngineRank, layout: Layout) -> None:
    """Raise RefusedLayoutError if the engine did not start as many ranks as the layout has."""
    wanted = layout.world_size
    if rank.world_size is not None and rank.world_size != wanted:
        raise RefusedLayoutError(
            f"{rank.engine} started {counted(rank.world_size, 'rank')}, but dp * mp * pp = "
            f"{layout.dp} * {layout.mp} * {layout.pp} = {wanted}",
            hint=f"change --dp, --mp or --pp, or start {wanted} ranks, one per device",
        )
    if rank.global_rank >= wanted:
        raise RefusedLayoutError(
            f"{rank.engine} started rank {rank.global_rank}, but {layout} has ranks 0 to {wanted - 1}"
        )


def run_name(rank: EngineRank, program_name: str, chosen: str | None, inherited: Mapping[str, str]) -> str:
    """Return TLAUNCH_RUN_ID. If it is not set, join --name or the program's name with the engine's job ID."""
    if given := _given_name(inherited):
        return _checked(given)
    if rank.job:
        return _checked(f"{chosen or program_name}-{rank.job_token}")
    if chosen is None:
        raise UsageError(
            f"{rank.engine} does not provide a job ID, so the ranks cannot agree on a run directory",
            hint=f"use --name to give the run a unique name, or set {HINT_RUN_ID} before mpiexec",
        )
    return _checked(chosen)


def master_port(rank: EngineRank, name: str, chosen: int | None) -> int:
    """Return --master-port, or a port derived from the job ID. Ignores MASTER_PORT, because only some ranks have it."""
    if chosen is not None:
        return chosen
    digest = hashlib.sha256((rank.job or name).encode(errors="surrogateescape")).digest()
    return MIN_PORT + int.from_bytes(digest[:8], "big") % PORTS


def unused(
    name: str, port: int, chosen_name: str | None, chosen_port: int | None, inherited: Mapping[str, str]
) -> Iterator[str]:
    """Yield a note if another value overrides the name or the port that the user chose."""
    if chosen_name is not None and _given_name(inherited) and chosen_name not in name:
        yield f"--name {chosen_name} is not used: {env.TLAUNCH_RUN_ID}={name} is the complete name"
    variable = inherited.get(env.MASTER_PORT)
    if variable and chosen_port is None and variable != str(port):
        yield (
            f"{env.MASTER_PORT}={escaped(variable)} in the environment is not used, because ranks on other servers may not "
            f"have it; {port} is used. To choose a port for all ranks, use --master-port"
        )


def _given_name(inherited: Mapping[str, str]) -> str | None:
    """Return TLAUNCH_RUN_ID, unless it belongs to an enclosing tlaunch run."""
    return None if env.TLAUNCH_RUN_DIR in inherited else inherited.get(env.TLAUNCH_RUN_ID)


def _checked(name: str) -> str:
    if not is_run_name(name):
        raise UsageError(
            f"{name!r} is not a valid name for a run directory",
            hint=f"use letters, digits, `.` and `-` in --name or {env.TLAUNCH_RUN_ID}",
        )
    return name
