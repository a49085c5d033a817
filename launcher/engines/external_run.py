"""A run whose ranks another launcher's engine has started: what they must find alike without talking to each other. Pure."""

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
PORTS = 10000  # below what Linux gives to outgoing connections (from 32768 on)
HINT_RUN_ID = "TLAUNCH_RUN_ID=$(date +%Y%m%d-%H%M%S)"


def check_size(rank: EngineRank, layout: Layout) -> None:
    """Check that the engine has started as many ranks as the layout has.

    Raises:
        RefusedLayoutError: it has not, or this rank is beyond the layout.
    """
    wanted = layout.world_size
    if rank.world_size is not None and rank.world_size != wanted:
        raise RefusedLayoutError(
            f"{rank.engine} started {counted(rank.world_size, 'rank')}, but dp * mp * pp = "
            f"{layout.dp} * {layout.mp} * {layout.pp} = {wanted}",
            hint=f"start {wanted}, one for each device, or change --dp, --mp, --pp",
        )
    if rank.global_rank >= wanted:
        raise RefusedLayoutError(
            f"{rank.engine} started rank {rank.global_rank}, but {layout} has ranks 0 to {wanted - 1}"
        )


def run_name(rank: EngineRank, program_name: str, chosen: str | None, inherited: Mapping[str, str]) -> str:
    """Return the run's name: TLAUNCH_RUN_ID as it is, else --name or the program's name, followed by the engine's job id.

    Raises:
        UsageError: the engine has no id for its job, and the user gives none.
    """
    if given := _given_name(inherited):
        return _checked(given)
    if rank.job:
        return _checked(f"{chosen or program_name}-{rank.job_token}")
    if chosen is None:
        raise UsageError(
            f"{rank.engine} gives its job no name, so the ranks cannot find one run directory",
            hint=f"give one that no other run has: {HINT_RUN_ID} before mpiexec, or --name",
        )
    return _checked(chosen)


def master_port(rank: EngineRank, name: str, chosen: int | None) -> int:
    """--master-port, else one that follows from the job: alike on all its ranks.

    MASTER_PORT of the environment is not: ranks beside mpirun inherit what those on other servers never get.
    """
    if chosen is not None:
        return chosen
    digest = hashlib.sha256((rank.job or name).encode(errors="surrogateescape")).digest()
    return MIN_PORT + int.from_bytes(digest[:8], "big") % PORTS


def unused(
    name: str, port: int, chosen_name: str | None, chosen_port: int | None, inherited: Mapping[str, str]
) -> Iterator[str]:
    """Yield a note for a name and a port that the user chose but that others override."""
    if chosen_name is not None and _given_name(inherited) and chosen_name not in name:
        yield f"--name {chosen_name} is not used: {env.TLAUNCH_RUN_ID}, {name}, is the whole name"
    variable = inherited.get(env.MASTER_PORT)
    if variable and chosen_port is None and variable != str(port):
        yield (
            f"{env.MASTER_PORT}={escaped(variable)} of the environment is not used, as ranks of other servers may not "
            f"have it: {port} is; --master-port sets another one for all"
        )


def _given_name(inherited: Mapping[str, str]) -> str | None:
    """Return TLAUNCH_RUN_ID, unless it is that of a tlaunch run around this one."""
    return None if env.TLAUNCH_RUN_DIR in inherited else inherited.get(env.TLAUNCH_RUN_ID)


def _checked(name: str) -> str:
    if not is_run_name(name):
        raise UsageError(
            f"{name!r} cannot be the name of a run directory",
            hint=f"use letters, digits, `.` and `-` in --name or {env.TLAUNCH_RUN_ID}",
        )
    return name
