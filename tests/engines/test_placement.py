"""Cores for ranks: pure arithmetic on a machine that is described, and the reading of this one."""

import os
from itertools import chain

import pytest

from launcher.core.errors import RefusedLayoutError
from launcher.engines import placement
from launcher.engines.placement import Machine, Node, read_machine, shares_of
from tests.servers import uniform

SIBLINGS = tuple((core, core + 8) for core in range(8))  # as kernels count: first threads first
TWO_NODES = Machine((Node(0, SIBLINGS[:4]), Node(1, SIBLINGS[4:])))
UNEVEN = Machine((Node(0, tuple((cpu,) for cpu in range(6))), Node(3, ((6,), (7,)))))


def cpus(shares):
    return [share.cpus for share in shares]


@pytest.mark.parametrize(
    ("machine", "ranks", "threads"),
    [*((uniform(cores), ranks, threads) for cores, ranks, threads in [(8, 2, 4), (8, 3, 2), (2, 8, 1), (64, 1, 64)]),
     (TWO_NODES, 2, 4)],
    ids=str,
)  # fmt: skip
def test_without_binding_threads_are_a_share_of_all_cores(machine, ranks, threads):
    shares = shares_of(ranks, "none", machine)
    assert cpus(shares) == [None] * ranks
    assert {share.threads for share in shares} == {threads}


def test_core_keeps_siblings_together_and_nodes_apart():
    shares = shares_of(3, "core", TWO_NODES)
    assert cpus(shares) == [(0, 1, 8, 9), (2, 3, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)]
    assert [share.threads for share in shares] == [2, 2, 4]


@pytest.mark.parametrize("ranks", range(1, 9))
@pytest.mark.parametrize("machine", [TWO_NODES, UNEVEN, uniform(8)], ids=["even", "uneven", "uniform"])
def test_core_shares_are_disjoint_and_leave_no_core_idle(machine, ranks):
    shares = cpus(shares_of(ranks, "core", machine))
    assert all(shares)
    assert sorted(chain(*shares)) == sorted(cpu for node in machine.nodes for cpu in node.cpus)


def test_core_with_too_few_cores_is_refused_with_numbers():
    with pytest.raises(RefusedLayoutError) as refused:
        shares_of(9, "core", TWO_NODES)
    assert "9 ranks and 8 usable cores" in refused.value.message
    assert "--bind none" in refused.value.hint


def test_numa_gives_each_rank_a_whole_node_in_order():
    """Five ranks on two nodes are three and two, next to each other; threads are the node's cores shared among them.

    A node of six cores takes three of four ranks, one of two cores the other; numbers may have gaps.
    """
    shares = shares_of(5, "numa", TWO_NODES)
    first, second = TWO_NODES.nodes
    assert cpus(shares) == [first.cpus] * 3 + [second.cpus] * 2
    assert [share.threads for share in shares] == [1, 1, 1, 2, 2]
    assert [(share.node, share.threads) for share in shares_of(4, "numa", UNEVEN)] == [(0, 2)] * 3 + [(3, 2)]


@pytest.mark.parametrize(("ranks", "machine", "bound"), [
    (2, TWO_NODES, True),
    (8, TWO_NODES, True),
    (1, TWO_NODES, False),  # half of the machine would be idle
    (9, TWO_NODES, False),  # more ranks than cores
    (4, uniform(8), False),  # nothing to gain
])  # fmt: skip
def test_auto_binds_where_memory_is_not_uniform_and_nothing_is_lost(ranks, machine, bound):
    assert shares_of(ranks, "auto", machine) == shares_of(ranks, "numa" if bound else "none", machine)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_system_is_read_for_usable_cpus_only(tmp_path, monkeypatch):
    monkeypatch.setattr(placement.os, "sched_getaffinity", lambda _: {0, 1, 4, 6}, raising=False)
    for node, listed in enumerate(["0-1,4-5", "2-3", "6-7\n"]):
        write(tmp_path / f"node/node{node}/cpulist", listed)
    for cpu, listed in {0: "0,4", 1: "1,5", 4: "0,4", 6: "6-7"}.items():
        write(tmp_path / f"cpu/cpu{cpu}/topology/thread_siblings_list", listed)
    assert read_machine(tmp_path) == Machine((Node(0, ((0, 4), (1,))), Node(2, ((6,),))))


def test_a_system_that_says_nothing_is_uniform(tmp_path, monkeypatch):
    monkeypatch.setattr(placement.os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    write(tmp_path / "cpu/cpu3/topology/thread_siblings_list", "not a list")
    assert read_machine(tmp_path) == Machine((Node(0, ((3,), (5,))),))


def test_this_machine_has_the_cpus_that_this_process_may_use():
    found = sorted(cpu for node in read_machine().nodes for cpu in node.cpus)
    assert found == sorted(os.sched_getaffinity(0))
