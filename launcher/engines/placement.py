"""The cores of this machine that each rank may use, and its number of threads. Pure, but for `read_machine`.

Words: a *cpu* is what the system schedules on (a hardware thread), a *core* is what computes: one cpu, or the siblings
that share it. A *node* is a part of the machine whose cores reach their memory equally fast.

Why nothing is bound where memory is uniform: the system moves a thread to an idle core, binding forbids it, and gains
nothing back. Where memory is not uniform, a rank that wanders between nodes leaves its memory behind; so ranks are kept
on one node each, free to move inside it. Why OMP_NUM_THREADS is the rank's share: without it every rank starts a thread
for every core of the machine; torchrun's 1 leaves all cores but one per rank idle. Threads are counted in cores, not in
cpus: siblings share the units that multiply.
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
    """A part of the machine, cut to the cores that this process may use."""

    number: int
    cores: tuple[Core, ...]  # Invariant: not empty, ascending by their first cpu

    @property
    def cpus(self) -> tuple[int, ...]:
        return _cpus_of(self.cores)


@frozen
class Machine:
    """The cores that this process may use. Invariant: at least one node; no cpu in two nodes."""

    nodes: tuple[Node, ...]

    @property
    def core_count(self) -> int:
        return sum(len(node.cores) for node in self.nodes)


@frozen
class Share:
    """The cores of one rank."""

    cpus: tuple[int, ...] | None  # the only ones that it may use; None: all of the launcher's
    threads: int  # a sensible OMP_NUM_THREADS
    reason: str  # how it came to that many threads, in a few words
    node: int | None = None  # where all its cpus are, if it is bound to a whole node


def read_machine(system: Path = SYSTEM) -> Machine:
    """Return the cpus that this process may use, as the system describes them. What it leaves out is taken to be uniform."""
    has_affinity = hasattr(os, "sched_getaffinity")
    usable = tuple(sorted(os.sched_getaffinity(0)) if has_affinity else range(os.cpu_count() or 1))
    by_first: dict[int, Core] = {}  # the usable cpus, grouped by the core that they share
    for cpu in usable:
        siblings = _cpu_list(system / f"cpu/cpu{cpu}/topology/thread_siblings_list") or {cpu}
        core = tuple(sorted({cpu} | siblings.intersection(usable)))
        by_first.setdefault(core[0], core)
    cores = [by_first[first] for first in sorted(by_first)]
    lists = (system / "node").glob("node[0-9]*/cpulist")  # none if the system does not say
    node_of = {cpu: int(path.parent.name.removeprefix("node")) for path in lists for cpu in _cpu_list(path)}
    numbers = sorted({node_of.get(core[0], 0) for core in cores})
    return Machine(
        tuple(Node(number, tuple(core for core in cores if node_of.get(core[0], 0) == number)) for number in numbers)
    )


def shares_of(local_world_size: int, bind: Bind, machine: Machine) -> tuple[Share, ...]:
    """Return the share of each local rank, in their order.

    none: every rank may use everything. core: disjoint runs of neighbouring cores, siblings together, inside one node
    where there are as many ranks as nodes. numa: all cores of one node, as many ranks on each as its cores allow, in
    order. auto: numa where there are several nodes, each gets a rank, and there are as many cores as ranks; else none.

    Raises:
        RefusedLayoutError: `core`, and there are fewer cores than ranks.
    """
    # Fewer ranks than nodes would leave nodes idle; more ranks than cores need every freedom they have.
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
            f"--bind core gives each rank cores of its own, but {local_world_size} ranks would share "
            f"{machine.core_count} usable cores",
            hint="--bind none lets all ranks share all cores",
        )
    if local_world_size < len(machine.nodes):
        parts = _cut(tuple(core for node in machine.nodes for core in node.cores), local_world_size)
    else:
        counts = _ranks_per_node(local_world_size, machine)
        parts = [part for node, count in zip(machine.nodes, counts, strict=True) for part in _cut(node.cores, count)]
    return tuple(Share(_cpus_of(part), len(part), f"{len(part)} cores of its own") for part in parts)


def _ranks_per_node(local_world_size: int, machine: Machine) -> list[int]:
    """Return how many ranks each node gets: one if there are enough; each next rank goes where it finds most cores, to the first such node.

    Equal nodes get equal numbers, the first ones one more where that does not come out even: 5 ranks on 2 nodes are
    3 and 2. A node of 6 cores and one of 2 get 3 and 1 of 4 ranks. No node gets more ranks than cores while another
    one has a core left.
    """
    one_each = local_world_size >= len(machine.nodes)
    counts = [int(one_each)] * len(machine.nodes)
    for _ in range(local_world_size - sum(counts)):
        room = [len(node.cores) / (count + 1) for node, count in zip(machine.nodes, counts, strict=True)]
        counts[room.index(max(room))] += 1
    return counts


def _cut(cores: tuple[Core, ...], count: int) -> list[tuple[Core, ...]]:
    """`cores` in `count` runs whose lengths differ by one at most.

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
    """Return the cpus of a file in the kernel's notation, as 0-3,8; empty if it cannot be read."""
    try:
        runs = [run.partition("-") for run in path.read_text(encoding="ascii").strip().split(",") if run]
        return {cpu for first, _, last in runs for cpu in range(int(first), int(last or first) + 1)}
    except (OSError, ValueError):
        return set()
