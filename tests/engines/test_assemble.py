"""From request to RunSpec: pure arithmetic on names and numbers."""

from pathlib import Path

import pytest

from launcher.core.errors import RefusedLayoutError
from launcher.core.records import Cluster, Device, DeviceAssignment, Elastic, Layout, Server, Supervision
from launcher.engines.assemble import Request, assemble, assemble_attempt, draft, used_cluster
from tests.servers import uniform

TWO_SERVERS = Cluster(
    (
        Server("10.0.0.2", (Device(4, 2, "1.1.1.3"), Device(5, 3, "1.1.1.4"))),
        Server("10.0.0.1", (Device(6, 0, "1.1.1.1"), Device(7, 1, "1.1.1.2"))),
    ),
    source=Path("/tables/four.json"),
)


def request(cluster, layout, **changes):
    wanted = {
        "argv": ("python", "train.py"), "cwd": Path("/home/me"), "runs_dir": Path("/runs"), "user_env": {},
        "supervision": Supervision(), "inherited_env": {}, "machine": uniform(8),
    }  # fmt: skip
    return Request(cluster=cluster, layout=layout, **{**wanted, **changes})


def spec_of(cluster, layout, **changes):
    return assemble(request(cluster, layout, **changes), name="n", master_port=29500)


def test_ranks_of_several_servers():
    spec = spec_of(TWO_SERVERS, Layout(dp=4))
    assert [(rank.global_rank, rank.local_rank, rank.server_index, rank.device_id) for rank in spec.ranks] == [
        (0, 0, 1, 6), (1, 1, 1, 7), (2, 0, 0, 4), (3, 1, 0, 5),
    ]  # fmt: skip
    assert spec.master_addr == "10.0.0.1"
    assert {rank.env["MASTER_ADDR"] for rank in spec.ranks} == {"10.0.0.1"}
    assert [rank.env["GROUP_RANK"] for rank in spec.ranks] == ["1", "1", "0", "0"]
    assert {rank.env["GROUP_WORLD_SIZE"] for rank in spec.ranks} == {"2"}
    assert {rank.env["RANK_TABLE_FILE"] for rank in spec.ranks} == {str(spec.run_dir / "rank_table.json")}


def test_idle_devices_take_their_server_away():
    spec = spec_of(TWO_SERVERS, Layout(mp=2))
    assert spec.master_addr == "127.0.0.1"
    assert len(spec.ranks) == 2
    assert [rank.env["GROUP_RANK"] for rank in spec.ranks] == ["0", "0"]
    assert {rank.env["RANK_TABLE_FILE"] for rank in spec.ranks} == {"/runs/n/rank_table.json"}
    assert [server.server_id for server in used_cluster(TWO_SERVERS, 2).servers] == ["10.0.0.1"]


def test_layout_and_run_reach_the_ranks():
    spec = spec_of(Cluster.local(4), Layout(dp=1, mp=2, pp=2, micro_batches=4), supervision=Supervision(max_restarts=3))
    wanted = {
        "TLAUNCH_DP": "1", "TLAUNCH_MP": "2", "TLAUNCH_PP": "2", "TLAUNCH_MICRO_BATCHES": "4",
        "TLAUNCH_RUN_DIR": "/runs/n", "TLAUNCH_RUN_ID": "n", "RANK_TABLE_FILE": None, "WORLD_SIZE": "4",
        "TORCHELASTIC_MAX_RESTARTS": "3", "TLAUNCH_MAX_RESTARTS": "3", "TORCHELASTIC_RESTART_COUNT": "0",
        "TLAUNCH_ATTEMPT": "0",
    }  # fmt: skip
    for rank in spec.ranks:
        assert wanted.items() <= rank.env.items()
        assert rank.env["RANK"] == rank.env["RANK_ID"] == str(rank.global_rank)
        assert rank.env["TLAUNCH_HEARTBEAT_FILE"] == f"/runs/n/device{rank.global_rank}/heartbeat"
    assert spec.supervision.max_restarts == 3


def test_binding_is_part_of_the_spec():
    spec = spec_of(Cluster.local(2), Layout(dp=2), bind="core")
    assert [rank.cpus for rank in spec.ranks] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert {rank.env["OMP_NUM_THREADS"] for rank in spec.ranks} == {"4"}
    assert {rank.cpus for rank in spec_of(TWO_SERVERS, Layout(dp=4), bind="core").ranks} == {None}


ELASTIC = Supervision(elastic=Elastic((1, 1, 0, 0), (None, *(Layout(dp=count) for count in range(1, 5)))))


def test_ranks_on_one_other_server_alone_are_not_bound():
    """That server binds them to its own cores: here, the attempt has none."""
    wanted = request(TWO_SERVERS, Layout(dp=4), bind="core", here=1, supervision=ELASTIC)
    for devices, cpus in (((0, 1), [(0, 1, 2, 3), (4, 5, 6, 7)]), ((2, 3), [None, None])):
        spec = assemble_attempt(wanted, DeviceAssignment(devices, Layout(dp=2)), 1, name="n", master_port=29500)
        assert [rank.cpus for rank in spec.ranks] == cpus


def test_cores_have_to_suffice_for_the_most_ranks_that_an_elastic_run_may_have_here():
    """Although the first attempt has none of them on this server: a later one must not fail of it."""
    spare = {"bind": "core", "here": 0, "supervision": ELASTIC}
    assert spec_of(TWO_SERVERS, Layout(dp=2), machine=uniform(2), **spare)
    assert spec_of(TWO_SERVERS, Layout(dp=1), machine=uniform(1), **spare)
    with pytest.raises(RefusedLayoutError):
        spec_of(TWO_SERVERS, Layout(dp=2), machine=uniform(1), **spare)


def test_every_variable_has_its_origin():
    """What --env says overrides all else, and gives back what is taken away; the shell's own choices stand.

    What --env replaces is told truly: the environment's own value is no choice of tlaunch's.
    """
    inherited = {
        "RANK": "7", "OMP_NUM_THREADS": "3", "WORLD_SIZE": "2", "MS_ROLE": "MS_WORKER", "PMIX_RANK": "0",
        "NCCL_DEBUG": "INFO", "GLOO_SOCKET_IFNAME": "eth7",
    }  # fmt: skip
    user_env = {"PYTHONUNBUFFERED": "0", "PMIX_RANK": "0", "GLOO_SOCKET_IFNAME": "ib1", "X": "y"}
    wanted = request(TWO_SERVERS, Layout(dp=2), inherited_env=inherited, user_env=user_env, interfaces={0: "ib0"})
    one = draft(wanted, name="n", master_port=1)[1]
    found = {variable.name: variable for variable in one.variables}
    names = (*inherited, *user_env, "RANK_TABLE_FILE", "TLAUNCH_RUN_ID")
    assert {name: found[name].origin.value for name in names if name in found} == {
        "RANK": "rank table", "OMP_NUM_THREADS": "inherited", "WORLD_SIZE": "layout", "MS_ROLE": "removed",
        "PMIX_RANK": "--env", "GLOO_SOCKET_IFNAME": "--env", "X": "--env", "RANK_TABLE_FILE": "rank table",
        "PYTHONUNBUFFERED": "--env", "TLAUNCH_RUN_ID": "tlaunch",
    }  # fmt: skip
    assert (found["RANK"].value, found["RANK"].instead_of) == ("1", "7")
    assert found["WORLD_SIZE"].instead_of is None
    interface, unbuffered = found["GLOO_SOCKET_IFNAME"], found["PYTHONUNBUFFERED"]
    assert (interface.why, interface.instead_of) == ("", "eth7")
    assert (unbuffered.why, unbuffered.instead_of) == ("instead of tlaunch's 1", None)
    assert len(found) == len(one.variables)
    shown = {name: one.rank.env.get(name, "as it is") for name in (*user_env, "OMP_NUM_THREADS", "MS_ROLE")}
    assert shown == {**user_env, "OMP_NUM_THREADS": "as it is", "MS_ROLE": None}


@pytest.mark.parametrize("chosen", ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY"])
@pytest.mark.parametrize("by", ["inherited_env", "user_env"])
def test_how_long_threads_spin_is_the_users_choice(chosen, by):
    """Of either variable: GNU's OpenMP heeds the count, if there is one, and not the policy."""
    assert {rank.env["GOMP_SPINCOUNT"] for rank in spec_of(TWO_SERVERS, Layout(dp=4)).ranks} == {"1000"}
    for rank in spec_of(TWO_SERVERS, Layout(dp=4), **{by: {chosen: "7"}}).ranks:
        assert rank.env.get("GOMP_SPINCOUNT", "7") == "7"
        assert ("GOMP_SPINCOUNT" in rank.env) == (by == "user_env" and chosen == "GOMP_SPINCOUNT")


INTERFACE = {
    "GLOO_SOCKET_IFNAME": "ib0", "TP_SOCKET_IFNAME": "ib0", "NCCL_SOCKET_IFNAME": "=ib0", "HCCL_SOCKET_IFNAME": "=ib0",
}  # fmt: skip


@pytest.mark.parametrize("name", INTERFACE)
@pytest.mark.parametrize("how", ["inherited_env", "user_env"])
def test_ranks_get_the_interface_of_their_own_server_unless_the_user_has_chosen_one(name, how):
    for changes, chosen in (({}, {}), ({how: {name: "eth7"}}, {name: "eth7"})):
        spec = spec_of(TWO_SERVERS, Layout(dp=4), interfaces={1: "ib0"}, **changes)
        found = [{name: rank.env[name] for name in INTERFACE if name in rank.env} for rank in spec.ranks]
        ours = {name: value for name, value in INTERFACE.items() if name not in chosen}
        set_by_user = chosen if how == "user_env" else {}
        assert found == [ours | set_by_user] * 2 + [set_by_user] * 2


@pytest.mark.parametrize(("changes", "value"), [
    ({}, "^han"), ({"inherited_env": {"OMPI_MCA_coll": "tuned"}}, None),
    ({"user_env": {"OMPI_MCA_coll": "self"}}, "self"),
])  # fmt: skip
def test_what_the_ranks_mpi_needs_is_in_every_rank_unless_the_user_has_set_it(changes, value):
    spec = spec_of(TWO_SERVERS, Layout(dp=4), mpi_variables={"OMPI_MCA_coll": "^han"}, **changes)
    assert [rank.env.get("OMPI_MCA_coll") for rank in spec.ranks] == [value] * 4
