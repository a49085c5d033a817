"""Finds the rank and the rendezvous address of a process that mpirun or srun started directly, without tlaunch."""

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
from launcher.core.machine.engine_rank import EngineRank, read_engine_rank

_HINT_ADDRESS = f"set {env.MASTER_ADDR} (an address of rank 0's server) and {env.MASTER_PORT} for all ranks"
_claimed: dict[bytes, socket.socket] = {}  # until this process exits


def engine_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return torchrun's variables (RANK, WORLD_SIZE, ...) for a rank that mpirun or srun started.

    Return {} if they are already set, or if this process is not one of several such ranks.

    Blocks until all ranks have called it, unless the environment contains the rendezvous address.

    Raises:
        UsageError: the ranks cannot find each other, or two processes on this machine have the same local rank.
    """
    if env.RANK in environment or env.WORLD_SIZE in environment:
        return {}
    rank = read_engine_rank(environment, os.getpid())
    if rank is None or rank.world_size == 1:
        return {}
    if rank.world_size is None:
        raise UsageError(
            f"{rank.engine} started this process as rank {rank.global_rank} without the number of ranks",
            hint=f"set {env.RANK} and {env.WORLD_SIZE}",
        )
    if environment.get(env.MASTER_ADDR) and environment.get(env.MASTER_PORT):
        _check_alone(rank, environment)
        found = {env.LOCAL_RANK: rank.local_rank, env.LOCAL_WORLD_SIZE: rank.local_world_size}
    else:
        found = _meet(rank, environment)
    found |= {env.RANK: rank.global_rank, env.WORLD_SIZE: rank.world_size}
    return {name: str(value) for name, value in found.items() if value is not None}


def _check_alone(rank: EngineRank, environment: Mapping[str, str]) -> None:
    """Raise UsageError if another process on this machine has the same local rank and would use the same device.

    This happens if the engine knows a host by two names. To detect it without MPI, each process binds an abstract
    socket named after its local rank. The kernel removes the socket when the process exits.
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
                f"{rank.engine} started two processes on {os.uname().nodename} as local rank {rank.local_rank}; this "
                f"one is rank {rank.global_rank}",
                hint=f"list each host once, or set {env.RANK}, {env.WORLD_SIZE} and {env.LOCAL_RANK} for every rank",
            ) from refused


def _meet(rank: EngineRank, environment: Mapping[str, str]) -> dict[str, Any]:
    """Agree on a rendezvous address over MPI. Return the environment variables for it and for the local rank."""
    mpi = _mpi(rank)
    world = mpi.COMM_WORLD
    library = mpi.Get_library_version().partition("\n")[0].partition(",")[0].strip("\0 ")
    hint = f"use the mpirun of that library, `srun --mpi=pmix` or `srun --mpi=pmi2`; or {_HINT_ADDRESS}"
    if (world.size, world.rank) != (rank.world_size, rank.global_rank):
        raise UsageError(
            f"{rank.engine} started this process as rank {rank.global_rank} of {rank.world_size}, but MPI says "
            f"rank {world.rank} of {world.size}: mpi4py uses {library}, but mpirun is from another MPI library, or "
            "srun was called without `--mpi`",
            hint=hint,
        )
    with socket.socket() as probe:
        probe.bind(("", 0))
        free_port = int(probe.getsockname()[1])
    try:
        local = world.Split_type(mpi.COMM_TYPE_SHARED)
        found = {env.LOCAL_RANK: local.rank, env.LOCAL_WORLD_SIZE: local.size}
        local.Free()
        names = world.gather(socket.gethostname())  # None but on rank 0
        chosen = environment.get(env.MASTER_ADDR)
        address, port = world.bcast((chosen or _own_address(names), free_port) if names else None)
    except mpi.Exception as error:
        raise UsageError(f"the ranks cannot communicate over MPI: {error}; mpi4py uses {library}", hint=hint) from error
    if not address:
        raise UsageError("rank 0 found no address that other servers can reach", hint=_HINT_ADDRESS)
    return {**found, env.MASTER_ADDR: address, env.MASTER_PORT: environment.get(env.MASTER_PORT) or port}


def _mpi(rank: EngineRank) -> Any:
    try:
        from mpi4py import MPI  # noqa: PLC0415 - only needed here, and its import joins the MPI job
    except (ImportError, RuntimeError) as error:
        missing = isinstance(error, ModuleNotFoundError)
        why = "mpi4py is not installed" if missing else f"mpi4py cannot be used: {error}"
        raise UsageError(
            f"{rank.engine} started {rank.world_size} ranks without a rendezvous address: {why}",
            hint=f"{_HINT_ADDRESS}; or install mpi4py for the MPI library of mpirun",
        ) from error
    return MPI


def _own_address(names: list[str]) -> str | None:
    """Return an address at which all hosts in `names` can reach this host (`names[0]`), or None if none is found."""
    others = [name for name in dict.fromkeys(names) if name != names[0]]
    if not others:
        return "127.0.0.1"
    for name in (*others, names[0]):
        # The source address of a packet to that host. Connecting a UDP socket sends no packet.
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((name, 9))
            address = str(probe.getsockname()[0])
            if not address.startswith("127."):
                return address
    return None
