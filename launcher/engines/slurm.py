"""One agent per server by `srun`, inside an allocation: the exact command, and what the allocation says.

Measured with Slurm 22.05: one agent that fails or is killed leaves the others alone. Where GPUs were asked for by task
or for the whole job, a step gets one of them, or is refused, unless it asks for a number per node. Without --overlap it
waits for other steps to end.

salloc and sbatch give a task one CPU unless they are asked for more: under task/cgroup all ranks of a node share it.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from launcher.core.errors import RefusedLayoutError, UnreadableError, UsageError
from launcher.core.frozen import frozen
from launcher.core.interfaces import address_of, addresses_of, names_of
from launcher.core.records import Cluster, Server
from launcher.core.text import some_of
from launcher.doctor.facts import Resolved
from launcher.doctor.network import patience_s, resolve
from launcher.engines.command import START_DIRECTORY, EngineCommand
from launcher.engines.host_match import Host, ServerIndex, read_host
from launcher.engines.render.kinds import check_host_name
from launcher.logs.terminal import escaped
from launcher.rank_table.generate import devices_per_server
from launcher.rank_table.hostfiles import Place, counted_cluster, expand, is_host_name

ASK_TIMEOUT_S = 30.0  # for scontrol and squeue: a controller under load takes its time
SHOWN = 4  # names in a message; the others are counted
HINT_ALLOCATE = (
    "start it in a job: salloc --nodes=2 --exclusive ..., or sbatch; `tlaunch render slurm` writes a script for it"
)
# Options of sbatch and salloc about tasks, which srun would take for wishes of the agents: an agent is one task, and
# needs all that the job has on its node.
_OF_TASKS = (
    "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_NTASKS_PER_SOCKET", "SLURM_NTASKS_PER_CORE",
    "SLURM_NTASKS_PER_GPU", "SLURM_NTASKS_PER_TRES", "SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_GPUS_PER_TASK",
    "SLURM_TRES_PER_TASK", "SLURM_GPU_BIND", "SLURM_TRES_BIND", "SLURM_CPU_BIND", "SLURM_DISTRIBUTION", "SLURM_EXACT",
    "SLURM_EXCLUSIVE", "SLURM_THREADS_PER_CORE", "SLURM_HINT",
)  # fmt: skip


@frozen
class Node:
    """A node under the names that Slurm has for it."""

    name: str
    hostname: str
    address: str  # an address, or a name of it


@frozen
class Allocation:
    job_id: str
    nodes: tuple[Node, ...]  # in Slurm's order
    ends_at_s: float | None  # wall clock; None: not in Slurm's environment
    gpus_per_node: int | None  # on each of the nodes; None: unknown
    here: str | None  # the node that this process is on; None: on another machine, or unknown
    version: str  # "Slurm 22.05.8"
    cpus_per_node: tuple[int, ...] = ()  # of the job on each of the nodes; empty: unknown


def read_allocation(environment: Mapping[str, str]) -> Allocation:
    """Return the Slurm job that this process is in. Asks the controller for its nodes.

    Raises:
        UsageError: this process is not in a job.
        UnreadableError: Slurm does not answer, or with what is not understood.
    """
    job_id, listed = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_JOB_NODELIST", "")
    if not job_id or not listed:
        raise UsageError("this is no job of Slurm: SLURM_JOB_ID and SLURM_JOB_NODELIST are not set", hint=HINT_ALLOCATE)
    names = tuple(expand(listed, Place("SLURM_JOB_NODELIST", 1)))
    found: dict[str, Node] = {}
    for line in ask(("scontrol", "--oneliner", "show", "node", listed), environment).splitlines():
        fields: dict[str, str] = dict(re.findall(r"(?:^|\s)(NodeName|NodeAddr|NodeHostName)=(\S+)", line))
        if name := fields.get("NodeName"):
            found[name] = Node(name, fields.get("NodeHostName", name), fields.get("NodeAddr", name))
    for name in names:
        check_host_name(name)
    ends_at = environment.get("SLURM_JOB_END_TIME", "")
    return Allocation(
        job_id=job_id,
        nodes=tuple(found.get(name) or Node(name, name, name) for name in names),
        ends_at_s=float(ends_at) if ends_at.isdecimal() else None,
        gpus_per_node=_gpus_per_node(environment, len(names)),
        here=environment.get("SLURMD_NODENAME"),
        version=f"Slurm {ask(('scontrol', '--version'), environment).split()[-1]}",  # Debian calls it slurm-wlm
        cpus_per_node=cpus_per_node(environment),
    )


def cluster_of(allocation: Allocation, devices_per_node: int | None = None) -> Cluster:
    """Return the nodes as servers, each with as many devices as its GPUs, or as asked for.

    Raises:
        UsageError: neither Slurm nor the user says how many.
    """
    count = allocation.gpus_per_node if devices_per_node is None else devices_per_node
    if count is None:
        raise UsageError(
            f"Slurm does not say how many devices the nodes of job {allocation.job_id} have",
            hint="--devices N says how many each has, or ask for them: salloc --gpus-per-node=8",
        )
    counts = devices_per_server(str(count), len(allocation.nodes))
    return counted_cluster([(node.name, number) for node, number in zip(allocation.nodes, counts, strict=True)])


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


def _gpus_per_node(environment: Mapping[str, str], node_count: int) -> int | None:
    """Return the GPUs per node, however they were asked for. Only the first node of a batch job knows its own number."""
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"):
        if count := _gpus(environment, name):
            return count
    tasks = [int(count) for count in re.findall(r"(\d+)(?:\(x\d+\))?", environment.get("SLURM_TASKS_PER_NODE", ""))]
    if (per_task := _gpus(environment, "SLURM_GPUS_PER_TASK")) and tasks:
        return per_task * min(tasks)
    whole = _gpus(environment, "SLURM_GPUS")
    return whole // node_count if whole and whole % node_count == 0 else None


def _gpus(environment: Mapping[str, str], name: str) -> int | None:
    """8, or of named kinds: a100:4,v100:4."""
    parts = [part.rpartition(":")[2] for part in environment.get(name, "").split(",")]
    return sum(map(int, parts)) if all(part.isdecimal() for part in parts) else None


def ask(argv: tuple[str, ...], environment: Mapping[str, str]) -> str:
    """Return the stdout of a Slurm command.

    Raises:
        UnreadableError: it does not answer, or says that it failed.
    """
    done = answer_of(argv, environment)
    if done.returncode:
        said = escaped(done.stderr.strip().partition("\n")[0][:200])
        raise UnreadableError(f"{' '.join(argv)} failed: {said}", hint="is slurmctld up, and the job still there?")
    return done.stdout


def answer_of(
    argv: tuple[str, ...], environment: Mapping[str, str], text: str = "", *, timeout_s: float = ASK_TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """Run a Slurm command with `text` on stdin and return its result, whatever its exit code.

    Raises:
        UnreadableError: it is not there, or does not answer.
    """
    try:
        return subprocess.run(
            argv, env=dict(environment), input=text, capture_output=True, text=True, errors="surrogateescape",
            timeout=timeout_s, check=False,
        )  # fmt: skip
    except OSError as error:
        raise UnreadableError(
            f"{argv[0]} cannot be started: {error.strerror}", hint="is Slurm installed here?"
        ) from None
    except subprocess.TimeoutExpired:
        raise UnreadableError(f"{argv[0]} does not answer within {timeout_s:.0f} s", hint="is slurmctld up?") from None


def _listed(names: Sequence[str]) -> str:
    return some_of([*map(escaped, names)], SHOWN)


def cpus_per_node(environment: Mapping[str, str]) -> tuple[int, ...]:
    """Return the CPUs of the job on each of its nodes, in Slurm's order; empty if unknown.

    >>> cpus_per_node({"SLURM_JOB_CPUS_PER_NODE": "72(x2),36"})
    (72, 72, 36)
    """
    parts = environment.get("SLURM_JOB_CPUS_PER_NODE", "").split(",")
    counts = [re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part, re.ASCII) for part in parts]
    if not all(counts):
        return ()
    return tuple(int(count[1]) for count in counts if count for _ in range(int(count[2] or 1)))


def short_here(environment: Mapping[str, str], ranks: int) -> tuple[str, ...]:
    """Return warnings about `ranks` ranks on this node of a job; none outside of a job."""
    node, cpus = environment.get("SLURMD_NODENAME", ""), environment.get("SLURM_CPUS_ON_NODE", "")
    if not node or not environment.get("SLURM_JOB_ID") or not re.fullmatch(r"\d+", cpus, re.ASCII):
        return ()
    return short_of_cpus([(node, int(cpus), ranks)])


def short_of_cpus(nodes: Iterable[tuple[str, int, int]]) -> tuple[str, ...]:
    """Return warnings about `nodes`, each given with its CPUs and ranks; none if each rank has a CPU."""
    short = [(ranks / max(cpus, 1), name, cpus, ranks) for name, cpus, ranks in nodes if cpus < ranks]
    if not short:
        return ()
    _, name, cpus, ranks = max(short, key=lambda one: one[0])
    others = f", and too few on {len(short) - 1} more" if len(short) > 1 else ""
    note = (
        f"warning: this job of Slurm has {cpus} CPU{'' if cpus == 1 else 's'} on {name} for {ranks} ranks{others}; "
        f"--exclusive, or --cpus-per-task={ranks} at least, asks salloc or sbatch for more"
    )
    return (note,)
