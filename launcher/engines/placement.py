"""Choose the cores and the number of threads of each rank on this machine. Pure, except `read_machine`.

Terms: a *cpu* is a hardware thread, the unit that the system schedules on. A *core* is one cpu, or the siblings that
share its units. A *node* is a NUMA node: a part of the machine whose cores access its memory equally fast.

With uniform memory nothing is bound: the system moves threads to idle cores, and binding would only prevent that. With
non-uniform memory, a rank that moves to another node leaves its memory behind. Therefore each rank is kept on one node
and may move inside it. OMP_NUM_THREADS is the rank's share of cores: without it, every rank starts one thread per core
of the machine; torchrun's value 1 leaves all but one core per rank idle. Threads are counted in cores, because siblings
share their arithmetic units.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from launcher.core.errors import RefusedLayoutError
from launcher.core.frozen import frozen
from launcher.core.text import counted

Bind = Literal["auto", "numa", "core", "none"]
BINDS: tuple[Bind, ...] = ("auto", "numa", "core", "none")
Core = tuple[int, ...]  # its cpus, ascending
SYSTEM = Path("/sys/devices/system")


@frozen
class Node:
    """A NUMA node with only the cores that this process may use."""

    number: int
    cores: tuple[Core, ...]  # Invariant: not empty, ascending by first cpu

    @property
    def cpus(self) -> tuple[int, ...]:
        return _cpus_of(self.cores)


@frozen
class Machine:
    """The cores that this process may use. There is at least one node, and no cpu is in two nodes."""

    nodes: tuple[Node, ...]

    @property
    def core_count(self) -> int:
        return sum(len(node.cores) for node in self.nodes)


@frozen
class Share:
    cpus: tuple[int, ...] | None  # the only cpus that it may use; None: all of the launcher's
    threads: int  # a suitable OMP_NUM_THREADS
    reason: str  # the reason for this number of threads, in a few words
    node: int | None = None  # the node of all its cpus, if it is bound to a whole node


def read_machine(system: Path = SYSTEM) -> Machine:
    """Return the NUMA nodes and cores that this process may use. If nodes are unknown, all cores are one node."""
    has_affinity = hasattr(os, "sched_getaffinity")
    usable = tuple(sorted(os.sched_getaffinity(0)) if has_affinity else range(os.cpu_count() or 1))
    by_first: dict[int, Core] = {}  # the usable cpus, grouped by shared core
    for cpu in usable:
        siblings = _cpu_list(system / f"cpu/cpu{cpu}/topology/thread_siblings_list") or {cpu}
        core = tuple(sorted({cpu} | siblings.intersection(usable)))
        by_first.setdefault(core[0], core)
    cores = [by_first[first] for first in sorted(by_first)]
    lists = (system / "node").glob("node[0-9]*/cpulist")  # empty if the system does not report any
    node_of = {cpu: int(path.parent.name.removeprefix("node")) for path in lists for cpu in _cpu_list(path)}
    numbers = sorted({node_of.get(core[0], 0) for core in cores})
    return Machine(
        tuple(Node(number, tuple(core for core in cores if node_of.get(core[0], 0) == number)) for number in numbers)
    )


def shares_of(local_world_size: int, bind: Bind, machine: Machine) -> tuple[Share, ...]:
    """Return the cores and the number of threads of each local rank, in order.

    none: every rank may use all cores.
    core: consecutive, disjoint cores for each rank, including siblings; inside one node if there are at least as many
    ranks as nodes.
    numa: each rank may use all cores of one node. Nodes get ranks in proportion to their cores, in order.
    auto: numa if there are several nodes, every node gets a rank, and there are as many cores as ranks; else none.
    Raises RefusedLayoutError for `core` with fewer cores than ranks.
    """
    # Fewer ranks than nodes would leave nodes idle; more ranks than cores must be free to move.
    fits = 1 < len(machine.nodes) <= local_world_size <= machine.core_count
    chosen = ("numa" if fits else "none") if bind == "auto" else bind
    if chosen == "core":
        return _by_core(local_world_size, machine)
    if chosen == "numa":
        return tuple(
            Share(node.cpus, *_threads(len(node.cores), count, f" of node {node.number}"), node.number)
            for node, count in zip(machine.nodes, _ranks_per_node(local_world_size, machine), strict=True)
            for _ in range(count)
        )
    return (Share(None, *_threads(machine.core_count, local_world_size)),) * local_world_size


def _by_core(local_world_size: int, machine: Machine) -> tuple[Share, ...]:
    if machine.core_count < local_world_size:
        raise RefusedLayoutError(
            f"--bind core needs at least one core per rank, but there are {local_world_size} ranks and "
            f"{machine.core_count} usable cores",
            hint="use --bind none to let all ranks share all cores",
        )
    if local_world_size < len(machine.nodes):
        parts = _cut(tuple(core for node in machine.nodes for core in node.cores), local_world_size)
    else:
        counts = _ranks_per_node(local_world_size, machine)
        parts = [part for node, count in zip(machine.nodes, counts, strict=True) for part in _cut(node.cores, count)]
    return tuple(Share(_cpus_of(part), len(part), f"{counted(len(part), 'core')} of its own") for part in parts)


def _ranks_per_node(local_world_size: int, machine: Machine) -> list[int]:
    """Return the number of ranks of each node, in proportion to its cores. If possible, each node gets a rank.

    Equal nodes get equal numbers; a remainder goes to the first nodes: 5 ranks on 2 nodes are 3 and 2. With 4 ranks, a
    node of 6 cores and one of 2 get 3 and 1. No node gets more ranks than cores while another one has a free core.
    """
    one_each = local_world_size >= len(machine.nodes)
    counts = [int(one_each)] * len(machine.nodes)
    for _ in range(local_world_size - sum(counts)):
        room = [len(node.cores) / (count + 1) for node, count in zip(machine.nodes, counts, strict=True)]
        counts[room.index(max(room))] += 1
    return counts


def _cut(cores: tuple[Core, ...], count: int) -> list[tuple[Core, ...]]:
    """Split `cores` into `count` consecutive parts whose lengths differ by at most one.

    >>> _cut(((0,), (1,), (2,), (3,), (4,)), 2)
    [((0,), (1,)), ((2,), (3,), (4,))]
    """
    return [cores[len(cores) * index // count : len(cores) * (index + 1) // count] for index in range(count)]


def _threads(core_count: int, rank_count: int, where: str = "") -> tuple[int, str]:
    reason = f"{counted(core_count, 'core')}{where} for {counted(rank_count, 'rank')}"
    return max(1, core_count // rank_count), reason


def _cpus_of(cores: tuple[Core, ...]) -> tuple[int, ...]:
    return tuple(sorted(cpu for core in cores for cpu in core))


def _cpu_list(path: Path) -> set[int]:
    """Parse a file with a list of cpus, such as 0-3,8. Return an empty set if it cannot be read."""
    try:
        runs = [run.partition("-") for run in path.read_text(encoding="ascii").strip().split(",") if run]
        return {cpu for first, _, last in runs for cpu in range(int(first), int(last or first) + 1)}
    except (OSError, ValueError):
        return set()
