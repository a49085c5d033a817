"""The Slurm job of this process: its nodes with their devices and CPUs, from the environment and the controller.

By default, salloc and sbatch give a task one CPU. With task/cgroup, all ranks of a node share that CPU.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping

from launcher.core.errors import UnreadableError, UsageError
from launcher.core.frozen import frozen
from launcher.core.machine.engine_rank import counts_per_node
from launcher.core.records import Cluster
from launcher.core.text import counted, some_of
from launcher.engines.render.kinds import check_host_name
from launcher.logs.terminal import escaped
from launcher.rank_table.generate import devices_per_server
from launcher.rank_table.hostfiles import Place, counted_cluster
from launcher.rank_table.nodelists import expand

SHOWN = 4  # names listed in a message
ASK_TIMEOUT_S = 30.0  # for scontrol and squeue: a busy controller needs time
HINT_ALLOCATE = (
    "start it in a job, with salloc --nodes=2 --exclusive ... or sbatch; `tlaunch render slurm` writes a script"
)


@frozen
class Node:
    name: str
    hostname: str
    address: str  # its address, or a name that resolves to it


@frozen
class Allocation:
    job_id: str
    nodes: tuple[Node, ...]  # in Slurm's order
    ends_at_s: float | None  # wall clock; None: not in Slurm's environment
    gpus_per_node: int | None  # on each node; None: unknown
    here: str | None  # index of the node with this process; None: on another machine, or unknown
    version: str  # "Slurm 22.05.8"
    cpus_per_node: tuple[int, ...] = ()  # of the job on each node; empty: unknown
    groups: int = 1  # number of node groups; `nodes` are those of the first group of a heterogeneous job


def read_allocation(environment: Mapping[str, str]) -> Allocation:
    """Return this process's Slurm job. Raises UsageError outside a job, UnreadableError if Slurm does not answer."""
    job_id, listed = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_JOB_NODELIST", "")
    if not job_id or not listed:
        raise UsageError("not in a Slurm job: SLURM_JOB_ID or SLURM_JOB_NODELIST is not set", hint=HINT_ALLOCATE)
    names = tuple(expand(listed, Place("SLURM_JOB_NODELIST", 1)))
    found: dict[str, Node] = {}
    for line in ask(("scontrol", "--oneliner", "show", "node", listed), environment).splitlines():
        fields: dict[str, str] = dict(re.findall(r"(?:^|\s)(NodeName|NodeAddr|NodeHostName)=(\S+)", line))
        if name := fields.get("NodeName"):
            found[name] = Node(name, fields.get("NodeHostName", name), fields.get("NodeAddr", name))
    for name in names:
        check_host_name(name)
    ends_at = environment.get("SLURM_JOB_END_TIME", "")
    # The components of a heterogeneous job, which was called a pack before Slurm 20.02.
    groups = environment.get("SLURM_HET_SIZE") or environment.get("SLURM_PACK_SIZE") or ""
    return Allocation(
        job_id=job_id,
        nodes=tuple(found.get(name) or Node(name, name, name) for name in names),
        ends_at_s=float(ends_at) if ends_at.isdecimal() else None,
        gpus_per_node=_gpus_per_node(environment, len(names)),
        here=environment.get("SLURMD_NODENAME"),
        version=f"Slurm {ask(('scontrol', '--version'), environment).split()[-1]}",  # Debian's name is slurm-wlm
        cpus_per_node=counts_per_node(environment, "SLURM_JOB_CPUS_PER_NODE"),
        groups=int(groups) if re.fullmatch(r"[1-9]\d{0,5}", groups, re.ASCII) else 1,
    )


def cluster_of(allocation: Allocation, devices_per_node: int | None = None) -> Cluster:
    """Return a cluster of the nodes. Raises UsageError if their devices are unknown or the job is heterogeneous."""
    if allocation.groups > 1:
        first = some_of([escaped(node.name) for node in allocation.nodes], SHOWN)
        raise UsageError(
            f"job {allocation.job_id} is heterogeneous and has {allocation.groups} node groups, but tlaunch can "
            f"use only the first group: {first}",
            hint="request all nodes in one group, without `hetjob` or `:`, or list the first group's nodes in a --rank-table",
        )
    count = allocation.gpus_per_node if devices_per_node is None else devices_per_node
    if count is None:
        raise UsageError(
            f"the number of devices per node is unknown for job {allocation.job_id}",
            hint="add --devices N (devices per node), or request GPUs, for example with salloc --gpus-per-node=8",
        )
    counts = devices_per_server(str(count), len(allocation.nodes))
    return counted_cluster([(node.name, number) for node, number in zip(allocation.nodes, counts, strict=True)])


def _gpus_per_node(environment: Mapping[str, str], node_count: int) -> int | None:
    """Return the number of GPUs per node (in a batch job, of the first node), or None if the number is unknown."""
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"):
        if count := _gpus(environment, name):
            return count
    tasks = counts_per_node(environment, "SLURM_TASKS_PER_NODE")
    if (per_task := _gpus(environment, "SLURM_GPUS_PER_TASK")) and tasks:
        return per_task * min(tasks)
    whole = _gpus(environment, "SLURM_GPUS")
    return whole // node_count if whole and whole % node_count == 0 else None


def _gpus(environment: Mapping[str, str], name: str) -> int | None:
    """Return the total number of GPUs in a variable such as "8" or "a100:4,v100:4"."""
    parts = [part.rpartition(":")[2] for part in environment.get(name, "").split(",")]
    return sum(map(int, parts)) if all(part.isdecimal() for part in parts) else None


def shortage_warnings(environment: Mapping[str, str], ranks: int) -> tuple[str, ...]:
    """Return a warning if this node of a Slurm job has fewer CPUs than `ranks`, or else ()."""
    node, cpus = environment.get("SLURMD_NODENAME", ""), environment.get("SLURM_CPUS_ON_NODE", "")
    if not node or not environment.get("SLURM_JOB_ID") or not re.fullmatch(r"\d+", cpus, re.ASCII):
        return ()
    return short_of_cpus([(node, int(cpus), ranks)])


def short_of_cpus(nodes: Iterable[tuple[str, int, int]]) -> tuple[str, ...]:
    """Return a warning if any of the `nodes` (name, CPUs, ranks) has fewer CPUs than ranks, or else ()."""
    short = [(ranks / max(cpus, 1), name, cpus, ranks) for name, cpus, ranks in nodes if cpus < ranks]
    if not short:
        return ()
    _, name, cpus, ranks = max(short, key=lambda one: one[0])
    others = f", and too few on {len(short) - 1} more" if len(short) > 1 else ""
    note = (
        f"warning: this Slurm job has {counted(cpus, 'CPU')} on {name} for {ranks} ranks{others}; "
        f"request more from salloc or sbatch: --exclusive, or at least --cpus-per-task={ranks}"
    )
    return (note,)


def ask(argv: tuple[str, ...], environment: Mapping[str, str]) -> str:
    """Run a Slurm command and return its stdout. Raises UnreadableError if it fails."""
    done = answer_of(argv, environment)
    if done.returncode:
        said = escaped(done.stderr.strip().partition("\n")[0][:200])
        raise UnreadableError(
            f"{' '.join(argv)} failed: {said}", hint="check that slurmctld is running and the job still exists"
        )
    return done.stdout


def answer_of(
    argv: tuple[str, ...], environment: Mapping[str, str], text: str = "", *, timeout_s: float = ASK_TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """Run a Slurm command with `text` on stdin. Raises UnreadableError if it does not answer in time."""
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
        raise UnreadableError(f"{argv[0]} did not answer within {timeout_s:.0f} s", hint="is slurmctld up?") from None
