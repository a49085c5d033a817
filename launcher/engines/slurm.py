"""Build the `srun` command that starts one agent per server inside an allocation, and map servers to nodes.

Measured with Slurm 22.05: an agent that fails or is killed leaves the others running. If GPUs were requested per task
or for the whole job, a step gets only one of them, or is refused, unless it requests a number per node. Without
--overlap it waits for other steps to end.
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
from launcher.doctor.network_facts import patience_s, resolve
from launcher.engines.engine_command import START_DIRECTORY, EngineCommand
from launcher.engines.host_match import Host, ServerIndex, read_host
from launcher.engines.slurm_allocation import Allocation, Node, short_of_cpus
from launcher.logs.terminal import escaped
from launcher.rank_table.hostfiles import is_host_name

SHOWN = 4  # names listed in a message
_ALWAYS = ("--kill-on-bad-exit=0", "--wait=0", "--input=none", "--unbuffered", "--export=ALL")
# Task options of sbatch and salloc that srun would apply to the agents. An agent is one task and needs everything that
# the job has on its node.
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
    """Return the srun command that starts `agent` once on each server, or counts[i] times on servers[i].

    Processes are numbered in the order of `servers`. Agents get the whole environment of srun. With `counts`, srun also
    starts them as MPI processes, by the MPI plugin of --mpi or the cluster's default. `options`: the user's, one word
    each; the last of two equal options counts. `host`: this machine, with the addresses that it resolves for servers;
    determined if None. Blocks while resolving if the table's names differ from Slurm's.
    Raises RefusedLayoutError if a server is not a node of the allocation, or matches several.
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
            "--distribution=arbitrary",  # as in SLURM_HOSTFILE: Slurm would sort a list of nodes
            "--overlap",
            "--mem=0",  # everything that the job has
            *(() if gpus is None else (f"--gres=gpu:{gpus}",)),
            "--cpu-bind=none",
            "--overcommit" if counts else "--mpi=none",  # a job can have fewer cores than devices
            *_ALWAYS,
            f"--chdir={cwd}",
            *options,
            *agent,
        ),
        env={"SLURM_HOSTFILE": str(hostfile), **dict.fromkeys(_OF_TASKS)},
        files={hostfile: "".join(f"{node}\n" for node in tasks)},
    )


def nodes_of(allocation: Allocation, servers: Sequence[Server], host: Host | None = None) -> tuple[str, ...]:
    """Return the name of the allocated node for each server. May block to resolve names that do not match.

    `servers` may contain a server several times, if ranks are assigned to servers in turn.
    Raises RefusedLayoutError if a server is not a node of the allocation, or matches several.
    """
    distinct = tuple(dict.fromkeys(servers))
    by_names = []  # without resolving names
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
        hint = "run without --rank-table to use the allocated nodes"
        if all(map(is_host_name, ids)):  # the user may copy this into a shell
            hint = f"request the table's servers: --nodelist={','.join(ids)}, or {hint}"
        are = "is not a node" if len(missing) == 1 else "are not nodes"
        silence = f"; {_listed(unanswered)} cannot be resolved: is the name server up?" if unanswered else ""
        raise RefusedLayoutError(
            f"{_listed(missing)} of the rank table {are} of job {allocation.job_id}, which has {_listed(names)}{silence}",
            hint=hint,
        )
    names_of_servers = {server: name for server, nodes in zip(distinct, claims, strict=True) for name in nodes}
    return tuple(names_of_servers[server] for server in servers)


def cpus_notes(allocation: Allocation, servers: Sequence[Server], host: Host | None = None) -> tuple[str, ...]:
    """Return warnings about nodes that have fewer CPUs than ranks. Calls `nodes_of`, which may block or raise."""
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
    """Resolve all names of the nodes. The result is cached, so a dead name server delays only the first call."""
    names = dict.fromkeys(name for node in nodes for name in (*_names(node), node.address))
    return resolve(names, patience_s(len(names)))


def _resolved(allocation: Allocation, meant: Host, meanings: Mapping[str, Resolved]) -> list[tuple[Host, ...]]:
    resolved = []
    for node in allocation.nodes:
        found = addresses_of(text for name in (*_names(node), node.address) for text in meanings[name].addresses)
        if node.name == allocation.here:
            found |= meant.addresses  # a machine may resolve its own name only to 127.0.1.1
        resolved.append(tuple(Host(name, found, meant.resolved) for name in _names(node)))
    return resolved


def _names(node: Node) -> Sequence[str]:
    own = (node.name, node.hostname) if address_of(node.address) else (node.name, node.hostname, node.address)
    return tuple(dict.fromkeys(own))


def _listed(names: Sequence[str]) -> str:
    return some_of([*map(escaped, names)], SHOWN)
