"""One agent per server by `srun`, inside an allocation: the exact command, and which node each server is.

Measured with Slurm 22.05: one agent that fails or is killed leaves the others alone. Where GPUs were asked for by task
or for the whole job, a step gets one of them, or is refused, unless it asks for a number per node. Without --overlap it
waits for other steps to end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from launcher.core.errors import RefusedLayoutError
from launcher.core.machine.interfaces import address_of, addresses_of, names_of
from launcher.core.records import Server
from launcher.core.text import some_of
from launcher.doctor.facts import Resolved
from launcher.doctor.network import patience_s, resolve
from launcher.engines.command import START_DIRECTORY, EngineCommand
from launcher.engines.host_match import Host, ServerIndex, read_host
from launcher.engines.slurm_allocation import Allocation, Node, short_of_cpus
from launcher.logs.terminal import escaped
from launcher.rank_table.hostfiles import is_host_name

SHOWN = 4  # names in a message; the others are counted
# Options of sbatch and salloc about tasks, which srun would take for wishes of the agents: an agent is one task, and
# needs all that the job has on its node.
_OF_TASKS = (
    "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_NTASKS_PER_SOCKET", "SLURM_NTASKS_PER_CORE",
    "SLURM_NTASKS_PER_GPU", "SLURM_NTASKS_PER_TRES", "SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_GPUS_PER_TASK",
    "SLURM_TRES_PER_TASK", "SLURM_GPU_BIND", "SLURM_TRES_BIND", "SLURM_CPU_BIND", "SLURM_DISTRIBUTION", "SLURM_EXACT",
    "SLURM_EXCLUSIVE", "SLURM_THREADS_PER_CORE", "SLURM_HINT",
)  # fmt: skip


def slurm_command(
    allocation: Allocation,
    servers: Sequence[Server],
    agent: Sequence[str],
    *,
    counts: Sequence[int] | None = None,
    options: Sequence[str] = (),
    directory: Path,
    cwd: Path = START_DIRECTORY,
    host: Host | None = None,
) -> EngineCommand:
    """Return the command that starts `agent` once on each of `servers`, or counts[i] times on servers[i], numbered in this order.

    Agents get the whole environment of srun. With `counts` they are also processes of an MPI that the cluster's own
    default chooses, or an option --mpi. `options` are the user's, a word each: of two the later counts. `host`:
    this machine, with what it calls the servers; asked for if need be. Asks the resolver where the table calls servers
    otherwise than Slurm.

    Raises:
        RefusedLayoutError: a server is no node of the allocation, or could be several.
    """
    nodes = nodes_of(allocation, servers, host)
    tasks = [node for node, count in zip(nodes, counts or [1] * len(nodes), strict=True) for _ in range(count)]
    hostfile = directory / "hosts"
    gpus = allocation.gpus_per_node
    return EngineCommand(
        engine=allocation.version,
        argv=(
            "srun",
            f"--nodes={len(set(tasks))}",
            f"--ntasks={len(tasks)}",
            "--distribution=arbitrary",  # as SLURM_HOSTFILE says: Slurm would sort a list of nodes
            "--overlap",
            "--mem=0",  # all that the job has
            *(() if gpus is None else (f"--gres=gpu:{gpus}",)),
            "--cpu-bind=none",
            "--overcommit" if counts else "--mpi=none",  # a job may have fewer cores than devices
            "--kill-on-bad-exit=0",
            "--wait=0",
            "--input=none",
            "--unbuffered",
            "--export=ALL",
            f"--chdir={cwd}",
            *options,
            *agent,
        ),
        env={"SLURM_HOSTFILE": str(hostfile), **dict.fromkeys(_OF_TASKS)},
        files={hostfile: "".join(f"{node}\n" for node in tasks)},
    )


def nodes_of(allocation: Allocation, servers: Sequence[Server], host: Host | None = None) -> tuple[str, ...]:
    """Return the node of the allocation that each server is, by names and addresses. Asks the resolver if names differ.

    A server may come several times, where ranks are dealt out to servers in turn.

    Raises:
        RefusedLayoutError: a server is no node of the allocation, or could be several.
    """
    distinct = tuple(dict.fromkeys(servers))
    by_names = []  # without asking a resolver
    for node in allocation.nodes:
        address = address_of(node.address)
        known = frozenset() if address is None else frozenset({address})
        by_names.append(tuple(Host(name, known) for name in _names(node)))
    claims = _claims(allocation.nodes, ServerIndex(distinct), by_names)
    unanswered: list[str] = []
    if any(len(nodes) != 1 for nodes in claims):
        meant = host or read_host(name for server in distinct for name in names_of(server))
        meanings = _meanings(allocation.nodes)
        unanswered = [name for name, meaning in meanings.items() if not meaning.answered]
        claims = _claims(
            allocation.nodes, ServerIndex(distinct, meant.resolved), _resolved(allocation, meant, meanings)
        )
    missing = [server.server_id for server, nodes in zip(distinct, claims, strict=True) if len(nodes) != 1]
    if missing:
        names, ids = [node.name for node in allocation.nodes], [server.server_id for server in distinct]
        hint = "run without --rank-table on the nodes that it gives"
        if all(map(is_host_name, ids)):  # nothing odd is to be copied to a shell
            hint = f"ask Slurm for the table's servers: --nodelist={','.join(ids)}, or {hint}"
        are = "is no node" if len(missing) == 1 else "are no nodes"
        silence = (
            f"; the resolver does not answer for {_listed(unanswered)}: is the name server up?" if unanswered else ""
        )
        raise RefusedLayoutError(
            f"{_listed(missing)} of the rank table {are} of job {allocation.job_id}, which has {_listed(names)}{silence}",
            hint=hint,
        )
    names_of_servers = {server: name for server, nodes in zip(distinct, claims, strict=True) for name in nodes}
    return tuple(names_of_servers[server] for server in servers)


def cpus_notes(allocation: Allocation, servers: Sequence[Server], host: Host | None = None) -> tuple[str, ...]:
    """Return warnings about nodes that have fewer CPUs than ranks. Asks the resolver as `nodes_of` does.

    Raises:
        RefusedLayoutError: a server is no node of the allocation, or could be several.
    """
    names = [node.name for node in allocation.nodes]
    if len(allocation.cpus_per_node) != len(names):
        return ()
    cpus = dict(zip(names, allocation.cpus_per_node, strict=True))
    placed = zip(nodes_of(allocation, servers, host), servers, strict=True)
    return short_of_cpus((name, cpus[name], len(server.devices)) for name, server in placed)


def _claims(nodes: Sequence[Node], register: ServerIndex, hosts: Sequence[Sequence[Host]]) -> list[set[str]]:
    claims: list[set[str]] = [set() for _ in register.servers]
    for node, as_hosts in zip(nodes, hosts, strict=True):
        for known in as_hosts:
            for place in register.find(known.name, known.addresses):
                claims[place].add(node.name)
    return claims


@lru_cache(maxsize=1)
def _meanings(nodes: Sequence[Node]) -> Mapping[str, Resolved]:
    """Return the addresses of all names of the nodes. A silent name server is waited for once."""
    names = dict.fromkeys(name for node in nodes for name in (*_names(node), node.address))
    return resolve(names, patience_s(len(names)))


def _resolved(allocation: Allocation, meant: Host, meanings: Mapping[str, Resolved]) -> list[tuple[Host, ...]]:
    """Return the hosts that each name stands for, by node."""
    resolved = []
    for node in allocation.nodes:
        found = addresses_of(text for name in (*_names(node), node.address) for text in meanings[name].addresses)
        if node.name == allocation.here:
            found |= meant.addresses  # a machine may have its own name at 127.0.1.1 only
        resolved.append(tuple(Host(name, found, meant.resolved) for name in _names(node)))
    return resolved


def _names(node: Node) -> Sequence[str]:
    own = (node.name, node.hostname) if address_of(node.address) else (node.name, node.hostname, node.address)
    return tuple(dict.fromkeys(own))


def _listed(names: Sequence[str]) -> str:
    return some_of([*map(escaped, names)], SHOWN)
