"""Warnings about a Slurm job with fewer CPUs than ranks on a node, from its environment. Pure.

salloc and sbatch give a task one CPU unless they are asked for more: under task/cgroup all ranks of a node share it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping


def cpus_per_node(environment: Mapping[str, str]) -> tuple[int, ...]:
    """Return the CPUs of the job on each of its nodes, in Slurm's order; empty if unknown.

    >>> cpus_per_node({"SLURM_JOB_CPUS_PER_NODE": "72(x2),36"})
    (72, 72, 36)
    """
    told = environment.get("SLURM_JOB_CPUS_PER_NODE", "")
    counts = [re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part, re.ASCII) for part in told.split(",")]
    if not all(counts):
        return ()
    return tuple(int(count[1]) for count in counts if count for _ in range(int(count[2] or 1)))


def short_here(environment: Mapping[str, str], ranks: int) -> tuple[str, ...]:
    """Return warnings about `ranks` ranks on this node of a job; none outside of a job."""
    node, told = environment.get("SLURMD_NODENAME", ""), environment.get("SLURM_CPUS_ON_NODE", "")
    if not node or not environment.get("SLURM_JOB_ID") or not re.fullmatch(r"\d+", told, re.ASCII):
        return ()
    return short_of_cpus([(node, int(told), ranks)])


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
