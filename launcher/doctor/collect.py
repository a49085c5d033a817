"""Read all facts of this server."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.core.json_text import digest_of_meaning
from launcher.core.system import davinci_ids, nvidia_ids
from launcher.doctor import machine, network
from launcher.doctor.facts import Facts, Folder, Request
from launcher.doctor.names import RESOLVE_S, resolve

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at, never written to by name


def collect(request: Request, *, resolve_s: float = RESOLVE_S) -> Facts:
    """What this server is like now. Blocks for `resolve_s`, plus what its file systems take. Raises nothing."""
    hostname = socket.gethostname()
    ephemeral = network.ephemeral_ports()
    total_bytes, available_bytes = machine.memory()
    environment = {**os.environ, **dict(request.variables)}
    mpi = machine.mpi_library(environment)
    resolved = resolve((*request.names, hostname), resolve_s)
    return Facts(
        hostname=hostname,
        machine=machine.identity(),
        user=os.getuid(),
        versions=(*machine.versions(), *((("MPI", mpi.name),) if mpi else ())),
        executable=sys.executable,
        mpi_trouble=machine.mpi_trouble(mpi, environment),
        mpi_variables=machine.mpi_variables(mpi, environment),
        **_table(request),
        folders=_folders(request),
        limits=machine.limits(),
        interfaces=network.interfaces(),
        default_interface=network.default_interface(),
        interface_variables=network.interface_variables(environment),
        ranks_interface=network.ranks_interface(request.called, resolved),
        resolved=tuple(resolved.values()),
        ports=tuple(map(network.try_port, request.ports)),
        first_ephemeral_port=ephemeral[0] if ephemeral else None,
        last_ephemeral_port=ephemeral[1] if ephemeral else None,
        ascend_devices=davinci_ids(),
        nvidia_devices=nvidia_ids(),
        rdma_devices=network.rdma_devices(),
        cpu_count=os.cpu_count() or 1,
        usable_cpus=machine.usable_cpus(),
        cpu_limit=machine.cpu_limit(),
        memory_total_bytes=total_bytes,
        memory_available_bytes=available_bytes,
        memory_limit_bytes=machine.memory_limit(),
    )


def _table(request: Request) -> Mapping[str, Any]:
    if request.table is None:
        return {}
    try:
        return {"table_digest": digest_of_meaning(Path(request.table).read_bytes())}  # HCCL, too, reads what it says
    except OSError as error:
        return {"table_trouble": error.strerror or str(error)}


def _folders(request: Request) -> tuple[tuple[str, Folder], ...]:
    runs_dir = Path(request.cwd, request.runs_dir)
    looked_at = {
        "cwd": Path(request.cwd),
        "runs_dir": runs_dir,
        "temporary": Path(tempfile.gettempdir()),
        "shared_memory": SHARED_MEMORY,
    }
    return tuple((purpose, machine.folder(path)) for purpose, path in looked_at.items())
