"""What is left on a server whose part of a run never begins."""

import socket

import pytest

from launcher.cluster.agent_setup import AgentSetup, awaited_begin
from launcher.cluster.coordinator_files import AskerEndpoint, read_endpoint, write_endpoint
from launcher.cluster.join import Session
from launcher.core.channel import Channel
from launcher.core.errors import TlaunchError
from launcher.core.messages import Refused, Welcome
from launcher.core.records import Cluster, Device, Layout, RankSpec, RunSpec, Server, Supervision
from launcher.core.run_dir import RunDir

SERVERS = (Server("10.0.0.1", (Device(0, 0),)), Server("10.0.0.2", (Device(0, 1),)))
RANKS = tuple(RankSpec(rank, 0, server.server_id, rank, 0, ("true",), {}) for rank, server in enumerate(SERVERS))
WELCOME = Welcome("", 1, "a-run", 60.0, mark="a-mark", key="the key")


@pytest.fixture
def spec(tmp_path):
    return RunSpec(
        name="a-run", run_dir=tmp_path, cluster=Cluster(SERVERS), layout=Layout(dp=2), ranks=RANKS, cwd=tmp_path,
        master_addr="10.0.0.1", master_port=0, supervision=Supervision(),
    )  # fmt: skip


@pytest.fixture
def connected():
    """The coordinator's end of a connection, and the agent's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = Channel(socket.create_connection(server.getsockname()))
        ours = Channel(server.accept()[0])
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.mark.parametrize("is_shared", [False, True], ids=["own", "shared"])
def test_the_way_to_a_coordinator_that_starts_nothing_is_removed(spec, connected, is_shared):
    """Unless it is the coordinator's own, which this server sees."""
    coordinator, channel = connected
    run_dir = RunDir(spec.run_dir, 1)
    membership = Session(channel, WELCOME)
    if is_shared:
        (run_dir.root / "a-mark").touch()
        write_endpoint(run_dir, AskerEndpoint((("10.0.0.1", 1),), "the key"))
    assert membership.compare_files(run_dir) is is_shared
    assert read_endpoint(run_dir) is not None
    coordinator.send(Refused("another server lacks the program"))
    with pytest.raises(TlaunchError, match="lacks the program"):
        awaited_begin(AgentSetup(spec, 1, None, {}), membership, lambda _waiting: None)
    assert (read_endpoint(run_dir) is not None) is is_shared
