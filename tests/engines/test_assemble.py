"""From request to RunSpec: pure arithmetic on names and numbers."""

from pathlib import Path

import pytest

from launcher.core.records import Cluster, Device, Layout, Server
from launcher.engines.assemble import Request, assemble, used_cluster

TWO_SERVERS = Cluster(
    (
        Server("10.0.0.2", (Device(4, 2, "1.1.1.3"), Device(5, 3, "1.1.1.4"))),
        Server("10.0.0.1", (Device(6, 0, "1.1.1.1"), Device(7, 1, "1.1.1.2"))),
    ),
    source=Path("/tables/four.json"),
)


def request(cluster, layout, **changes):
    wanted = {
        "argv": ("python", "train.py"),
        "cwd": Path("/home/me"),
        "runs_dir": Path("/runs"),
        "grace_s": 15.0,
        "console_ranks": (0,),
        "user_env": {},
        "inherited_env": {},
        "usable_cores": 8,
        **changes,
    }
    return Request(cluster=cluster, layout=layout, **wanted)


def test_ranks_of_several_servers():
    """Ranks are in order; local ranks, server indices and the first server's address follow from the table."""
    spec = assemble(request(TWO_SERVERS, Layout(dp=4)), name="n", master_port=29500)
    assert [(rank.global_rank, rank.local_rank, rank.server_index, rank.device_id) for rank in spec.ranks] == [
        (0, 0, 1, 6), (1, 1, 1, 7), (2, 0, 0, 4), (3, 1, 0, 5),
    ]  # fmt: skip
    assert spec.master_addr == "10.0.0.1"
    assert {rank.env["MASTER_ADDR"] for rank in spec.ranks} == {"10.0.0.1"}
    assert [rank.env["GROUP_RANK"] for rank in spec.ranks] == ["1", "1", "0", "0"]
    assert {rank.env["GROUP_WORLD_SIZE"] for rank in spec.ranks} == {"2"}
    assert {rank.env["RANK_TABLE_FILE"] for rank in spec.ranks} == {"/tables/four.json"}


def test_idle_devices_take_their_server_away():
    """With the last two ranks idle one server is left, and it is number 0 of 1 and this machine."""
    spec = assemble(request(TWO_SERVERS, Layout(mp=2)), name="n", master_port=29500)
    assert spec.master_addr == "127.0.0.1"
    assert spec.idle_device_count == 2
    assert [rank.env["GROUP_RANK"] for rank in spec.ranks] == ["0", "0"]
    assert {rank.env["RANK_TABLE_FILE"] for rank in spec.ranks} == {"/runs/n/rank_table.json"}
    assert [server.server_id for server in used_cluster(TWO_SERVERS, 2).servers] == ["10.0.0.1"]


@pytest.mark.parametrize(("cores", "ranks", "threads"), [(8, 2, "4"), (8, 3, "2"), (2, 8, "1"), (64, 1, "64")])
def test_threads_are_a_share_of_the_cores(cores, ranks, threads):
    """OMP_NUM_THREADS is cores / local ranks, rounded down, at least 1."""
    spec = assemble(request(Cluster.local(ranks), Layout(dp=ranks), usable_cores=cores), name="n", master_port=1)
    assert spec.ranks[-1].env["OMP_NUM_THREADS"] == threads


def test_a_persons_choices_stand():
    """What is inherited is not overridden; what --env says overrides."""
    inherited = {"OMP_NUM_THREADS": "3", "PYTHONUNBUFFERED": ""}
    spec = assemble(request(Cluster.local(1), Layout(), inherited_env=inherited), name="n", master_port=1)
    assert not {"OMP_NUM_THREADS", "PYTHONUNBUFFERED"} & spec.ranks[0].env.keys()
    chosen = request(Cluster.local(1), Layout(), inherited_env=inherited, user_env={"OMP_NUM_THREADS": "5", "X": "y"})
    spec = assemble(chosen, name="n", master_port=1)
    assert (spec.ranks[0].env["OMP_NUM_THREADS"], spec.ranks[0].env["X"]) == ("5", "y")


def test_layout_and_run_reach_the_ranks():
    """Sizes of all axes, micro batches, the run's directory and name are in every rank's environment."""
    layout = Layout(dp=1, mp=2, pp=2, micro_batches=4)
    spec = assemble(request(Cluster.local(4), layout), name="n", master_port=1)
    wanted = {
        "TLAUNCH_DP": "1", "TLAUNCH_MP": "2", "TLAUNCH_PP": "2", "TLAUNCH_MICRO_BATCHES": "4",
        "TLAUNCH_RUN_DIR": "/runs/n", "TLAUNCH_RUN_ID": "n", "RANK_TABLE_FILE": None, "WORLD_SIZE": "4",
    }  # fmt: skip
    for rank in spec.ranks:
        assert wanted.items() <= rank.env.items()
        assert rank.env["RANK"] == rank.env["RANK_ID"] == str(rank.global_rank)
