"""Environment variables with which ranks on several servers reach each other, and notes about them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from launcher.cli.launch.prepare import Prepared
from launcher.core.errors import TlaunchError
from launcher.core.machine.interfaces import INTERFACE_VARIABLES, are_on_loopback, go_by_names, names_of
from launcher.core.records import Server
from launcher.engines.host_match import Host, local_servers, own_interface, read_host
from launcher.engines.mpi_match import variables_under


def with_network(prepared: Prepared, host: Host | None = None) -> Prepared:
    """Add this machine's network interface, and the variables for the ranks' MPI library, to a prepared run.

    A run on one server is returned unchanged. Agents on other servers find their own interface. This machine's
    interface is shown and recorded in run.json. `host` describes this machine and the servers' resolved names; it is
    read if omitted.
    """
    servers = prepared.used.servers
    if len(servers) == 1:
        return prepared
    host = host or read_host(name for server in servers for name in names_of(server))
    said = prepared.options.server
    fitting = [server for server in servers if server.server_id == said] if said else local_servers(servers, host)
    here = servers.index(fitting[0]) if len(fitting) == 1 else None
    interface = None if here is None else own_interface(servers, here)
    mpi_variables: Mapping[str, str] = {}  # without MPI ranks, agents find out
    if go_by_names(servers) and prepared.options.engine == "mpi" and prepared.request.mpi_ranks:
        from launcher.engines.mpi import find_mpirun  # only for MPI ranks

        with suppress(TlaunchError):  # a missing mpirun is reported later
            environment = {**prepared.request.inherited_env, **prepared.request.user_env}
            mpirun = find_mpirun(os.environ)
            mpi_variables = variables_under(mpirun, prepared.request.argv, environment, prepared.request.cwd)
    interfaces = {here: interface} if here is not None and interface else {}
    request = replace(prepared.request, interfaces=interfaces, mpi_variables=mpi_variables)
    chosen = {**request.inherited_env, **request.user_env}
    interface_note = () if here is not None and interface is None else note_of_interface(servers, interface, chosen)
    notes = (*prepared.notes, *interface_note, *note_of_mpi(request.mpi_variables, chosen))
    return replace(prepared, request=request, notes=notes)


def note_of_interface(servers: Sequence[Server], interface: str | None, chosen: Mapping[str, str]) -> tuple[str, ...]:
    """Return a note on the network interface that ranks use, unless the user has set it.

    `interface` is the interface of ranks on this machine, if there are any. `chosen` has the variables set by the user.
    """
    names = [name.removesuffix("SOCKET_IFNAME") for name in INTERFACE_VARIABLES if name not in chosen]
    if not names or are_on_loopback(servers):
        return ()
    here = "" if interface is None else f", on this machine {interface}"
    note = f"ranks use the network interface that has their server's address{here}"
    return (f"{note}: tlaunch sets {', '.join(names)}SOCKET_IFNAME",)


def note_of_mpi(variables: Mapping[str, str], chosen: Mapping[str, str]) -> tuple[str, ...]:
    """Return a note on the variables that tlaunch sets for the MPI library, unless the user has set them."""
    missing = [f"{name}={value}" for name, value in variables.items() if name not in chosen]
    why = "with mpirun of Open MPI 4, the library of Open MPI 5 hangs in MPI_Barrier if servers are given by name"
    return (f"setting {', '.join(missing)}: {why}",) if missing else ()
