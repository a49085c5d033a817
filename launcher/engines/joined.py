"""A run whose ranks somebody else's engine has started: what they must find alike without talking to each other. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from launcher.core import env
from launcher.core.engine_rank import EngineRank
from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.records import Layout
from launcher.core.run_dir import LATEST

LOWEST_PORT = 20000
PORTS = 10000  # below what Linux gives to outgoing connections (from 32768 on)
HINT_RUN_ID = "TLAUNCH_RUN_ID=$(date +%Y%m%d-%H%M%S)"


def check_size(rank: EngineRank, layout: Layout) -> None:
    """The engine must have started as many ranks as the layout has.

    Raises:
        RefusedLayoutError: it has not, or this rank is beyond the layout.
    """
    wanted = layout.world_size
    if rank.world_size is not None and rank.world_size != wanted:
        raise RefusedLayoutError(
            f"{rank.engine} started {_ranks(rank.world_size)}, but dp * mp * pp = "
            f"{layout.dp} * {layout.mp} * {layout.pp} = {wanted}",
            hint=f"start {wanted}, one for each device, or change --dp, --mp, --pp",
        )
    if rank.global_rank >= wanted:
        raise RefusedLayoutError(
            f"{rank.engine} started rank {rank.global_rank}, but {layout} has ranks 0 to {wanted - 1}"
        )


def run_name(rank: EngineRank, program_name: str, chosen: str | None, inherited: Mapping[str, str]) -> str:
    """The run's name: TLAUNCH_RUN_ID as it is, else --name, or the program's, with the engine's own name of its job.

    Raises:
        UsageError: the engine has no name for its job, and nobody gives one.
    """
    # In the environment of a tlaunch run around this one it is that run's.
    given = None if env.TLAUNCH_RUN_DIR in inherited else inherited.get(env.TLAUNCH_RUN_ID)
    if given:
        return _checked(given)
    if rank.job:
        return _checked(f"{chosen or program_name}-{rank.job_token}")
    if chosen is None:
        raise UsageError(
            f"{rank.engine} gives its job no name, so the ranks cannot find one run directory",
            hint=f"give one that no other run has: {HINT_RUN_ID} before mpiexec, or --name",
        )
    return _checked(chosen)


def master_port(rank: EngineRank, name: str, chosen: int | None, inherited: Mapping[str, str]) -> int:
    """--master-port, else MASTER_PORT of the environment, else one that follows from the job: alike on all its ranks.

    Raises:
        UsageError: MASTER_PORT is no port.
    """
    if chosen is not None:
        return chosen
    text = inherited.get(env.MASTER_PORT)
    if not text:
        return LOWEST_PORT + _hash(rank.job or name) % PORTS
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 65536):
        raise UsageError(f"the environment variable {env.MASTER_PORT} is {text!r}, no port's number")
    return int(text)


def _checked(name: str) -> str:
    if "/" in name or name.startswith(".") or name == LATEST or not name.isprintable() or len(name.encode()) > 255:
        raise UsageError(
            f"{name!r} cannot be the name of a run directory",
            hint=f"--name and {env.TLAUNCH_RUN_ID} give it; letters, digits, dots and dashes do",
        )
    return name


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode(errors="surrogateescape")).digest()[:8], "big")


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"
