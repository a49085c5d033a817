"""A rank that mpirun or srun started by itself: who it is, and where it meets the others."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Any

from launcher.core import env
from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.core.machine.engine_rank import EngineRank, read_engine_rank

_HINT_ADDRESS = f"give all ranks {env.MASTER_ADDR}, an address of rank 0's server, and {env.MASTER_PORT}"


_claimed: dict[bytes, socket.socket] = {}  # for as long as this process lives


@frozen
class _Meeting:
    """The agreement of the ranks, made by MPI."""

    address: str
    port: str
    local_rank: int
    local_world_size: int


def engine_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that torchrun would have set for a rank that an engine started; none if they are set already.

    Blocks until all ranks have come, unless the environment says where they meet.

    Raises:
        UsageError: the ranks cannot find each other, or the engine gave two of this machine one local rank.
    """
    if env.RANK in environment or env.WORLD_SIZE in environment:
        return {}
    rank = read_engine_rank(environment, os.getpid())
    if rank is None or rank.world_size == 1:
        return {}
    if rank.world_size is None:
        raise UsageError(
            f"{rank.engine} made this process rank {rank.global_rank}, and does not tell of how many",
            hint=f"set {env.RANK} and {env.WORLD_SIZE}",
        )
    if environment.get(env.MASTER_ADDR) and environment.get(env.MASTER_PORT):
        _check_alone(rank, environment)
        return _variables(rank, rank.local_rank, rank.local_world_size)
    meeting = _meet(rank, environment)
    place = _variables(rank, meeting.local_rank, meeting.local_world_size)
    return {**place, env.MASTER_ADDR: meeting.address, env.MASTER_PORT: meeting.port}


def _variables(rank: EngineRank, local_rank: int | None, local_world_size: int | None) -> dict[str, str]:
    local = {env.LOCAL_RANK: local_rank, env.LOCAL_WORLD_SIZE: local_world_size}
    told = {name: str(value) for name, value in local.items() if value is not None}
    return {env.RANK: str(rank.global_rank), env.WORLD_SIZE: str(rank.world_size), **told}


def _check_alone(rank: EngineRank, environment: Mapping[str, str]) -> None:
    """Two ranks of one local rank would compute on one device: engines count so where they know a host by two names.

    An abstract socket, which the kernel forgets with this process, tells ranks of one machine apart without MPI.
    """
    meeting = f"{environment[env.MASTER_ADDR]}:{environment[env.MASTER_PORT]}"
    words = f"{os.getuid()} {rank.job} {meeting} {rank.world_size} {rank.local_rank}"
    name = b"\0tlaunch-local-" + sha256(words.encode(errors="surrogateescape")).hexdigest()[:32].encode()
    if rank.local_rank is None or name in _claimed:
        return
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        holder.bind(name)
        _claimed[name] = holder
    except OSError as refused:
        holder.close()
        if refused.errno == errno.EADDRINUSE:
            raise UsageError(
                f"{rank.engine} made two processes on {os.uname().nodename} local rank {rank.local_rank}; this one is "
                f"rank {rank.global_rank}",
                hint=f"name each host once, or give every rank {env.RANK}, {env.WORLD_SIZE} and {env.LOCAL_RANK}",
            ) from refused


def _meet(rank: EngineRank, environment: Mapping[str, str]) -> _Meeting:
    mpi = _mpi(rank)
    world = mpi.COMM_WORLD
    library = mpi.Get_library_version().partition("\n")[0].partition(",")[0].strip("\0 ")
    hint = f"use the mpirun of that library, or srun --mpi=pmix or pmi2; or {_HINT_ADDRESS}"
    if (world.size, world.rank) != (rank.world_size, rank.global_rank):
        raise UsageError(
            f"{rank.engine} made this process rank {rank.global_rank} of {rank.world_size}, but MPI takes it for rank "
            f"{world.rank} of {world.size}: mpi4py uses {library}, which has not joined the job: another MPI than that of "
            "mpirun, or srun without --mpi",
            hint=hint,
        )
    try:
        return _agree(mpi, world, environment)
    except mpi.Exception as error:
        raise UsageError(f"the ranks cannot talk over MPI: {error}; mpi4py uses {library}", hint=hint) from error


def _agree(mpi: Any, world: Any, environment: Mapping[str, str]) -> _Meeting:
    local = world.Split_type(mpi.COMM_TYPE_SHARED)
    local_rank, local_size = local.rank, local.size
    local.Free()
    names = world.gather(socket.gethostname())  # None but on rank 0
    chosen = environment.get(env.MASTER_ADDR)
    with socket.socket() as probe:
        probe.bind(("", 0))
        free_port = int(probe.getsockname()[1])
    address, port = world.bcast((chosen or _own_address(names), free_port) if names else None)
    if not address:
        raise UsageError("rank 0 finds no address of its own that others could reach", hint=_HINT_ADDRESS)
    return _Meeting(address, environment.get(env.MASTER_PORT) or str(port), local_rank, local_size)


def _mpi(rank: EngineRank) -> Any:
    try:
        from mpi4py import MPI  # noqa: PLC0415 - no other start needs it, and its import joins the job
    except (ImportError, RuntimeError) as error:
        missing = isinstance(error, ModuleNotFoundError)
        why = "mpi4py is not installed" if missing else f"mpi4py cannot be used: {error}"
        raise UsageError(
            f"{rank.engine} started {rank.world_size} ranks, and nothing says where they meet: {why}",
            hint=f"{_HINT_ADDRESS}; or install mpi4py for the MPI that mpirun belongs to",
        ) from error
    return MPI


def _own_address(names: list[str]) -> str | None:
    """Return the address at which ranks on hosts called `names` would reach rank 0, or None if it is unknown."""
    others = [name for name in dict.fromkeys(names) if name != names[0]]
    if not others:
        return "127.0.0.1"
    for name in (*others, names[0]):
        # The address from which a packet would be sent there; none is.
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((name, 9))
            address = str(probe.getsockname()[0])
            if not address.startswith("127."):
                return address
    return None
