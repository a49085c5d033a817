"""Which rank each of an engine's processes stands for."""

import pytest

from launcher.cluster import mpi_ranks
from launcher.cluster.mpi_ranks import ProcessPlace, check_server, gather, open_endpoint, place_of
from launcher.core.env import TLAUNCH_MEMBERS
from launcher.core.errors import RefusedLayoutError, TlaunchError, UsageError
from launcher.core.machine.engine_rank import EngineRank
from launcher.core.records import Device, Server


def server(name, *global_ranks):
    return Server(name, tuple(Device(index, rank) for index, rank in enumerate(global_ranks)))


def engine_rank(global_rank, world_size=None):
    return EngineRank("Open MPI", global_rank, world_size, None, None, "job")


@pytest.mark.parametrize(("servers", "text"), [
    ([server("a", 0, 1), server("b", 2, 3, 4)], "0x2,1x3"), ([server("a", 2, 3), server("b", 0, 1)], "1x2,0x2"),
    ([server("a", 0, 2), server("b", 1, 3)], "0x1,1x1,0x1,1x1"),
])  # fmt: skip
def test_processes_are_wanted_in_the_order_of_global_ranks(servers, text):
    assert mpi_ranks.members_text(mpi_ranks.stretches_of(servers)) == text
    for index, one in enumerate(servers):
        ranks = frozenset(device.global_rank for device in one.devices)
        for rank in ranks:
            assert place_of({TLAUNCH_MEMBERS: text}, engine_rank(rank)) == ProcessPlace(rank, index, ranks)


def test_the_lowest_of_a_server_becomes_its_agent_too():
    places = [place_of({TLAUNCH_MEMBERS: "0x1,1x2,0x1"}, engine_rank(rank)) for rank in range(4)]
    assert [place.is_lowest for place in places] == [True, True, False, False]
    assert place_of({}, engine_rank(0)) is None


@pytest.mark.parametrize(("text", "rank", "message"), [
    ("two", engine_rank(0), "is 'two'"), ("0x2", None, "mpirun or srun has not set the rank"),
    ("0x2", engine_rank(0, 3), "started 3 processes"),
    ("0x2", engine_rank(2), "started a process with rank 2, but the run needs 2 processes"),
])  # fmt: skip
def test_what_an_engine_makes_of_it_is_checked(text, rank, message):
    with pytest.raises(UsageError, match=message):
        place_of({TLAUNCH_MEMBERS: text}, rank)


def test_ranks_belong_where_the_table_has_them():
    place = ProcessPlace(1, 0, frozenset({0, 1}))
    servers = [server("a", 0, 1), server("b", 2)]
    check_server(place, 0, servers)
    with pytest.raises(RefusedLayoutError, match="rank 1 is on server b, but that rank belongs to a"):
        check_server(place, 1, servers)


def test_processes_that_do_not_come_are_named(tmp_path):
    place = ProcessPlace(0, 0, frozenset({0, 1, 2, 7}))
    members = open_endpoint(place, str(tmp_path))
    try:
        with pytest.raises(TlaunchError, match="ranks 0-2,7 did not connect"):
            gather(members, patience_s=0.01)
        with pytest.raises(TlaunchError, match="another agent of this run"):
            open_endpoint(place, str(tmp_path))
    finally:
        members.close()
