"""What servers of a run leave in its directory, which they may share."""

import os
from pathlib import Path

import pytest

from launcher.cluster import coordinator_files
from launcher.cluster.agent_setup import AgentSetup, awaited_begin
from launcher.cluster.join import Session, take_place
from launcher.control.messages import Refused, Welcome
from launcher.core.errors import TlaunchError, UsageError
from launcher.core.records import Cluster, Layout, Supervision
from launcher.core.run_dir import RunDir
from launcher.engines.assemble import Request
from launcher.engines.placement import Machine
from launcher.supervise.channel import Channel

REQUEST = Request(Cluster.local(1), Layout(), ("true",), Path("/"), Path("/"), Supervision(), {}, {}, Machine(()))
WELCOME = Welcome("", 1, "a-run", 60.0, mark="a-mark", key="the key")


@pytest.mark.parametrize("is_shared", [False, True], ids=["own", "shared"])
def test_the_way_to_a_coordinator_that_starts_nothing_is_removed(spec, connected, is_shared):
    coordinator, channel = map(Channel, connected)
    run_dir = RunDir(spec.run_dir, 1)
    membership = Session(channel, WELCOME)
    if is_shared:
        (run_dir.root / "a-mark").touch()
        coordinator_files.write_endpoint(run_dir, coordinator_files.ControlEndpoint((("10.0.0.1", 1),), "the key"))
    assert membership.compare_files(run_dir) is is_shared
    assert coordinator_files.read_endpoint(run_dir) is not None
    coordinator.send(Refused("another server lacks the program"))
    with pytest.raises(TlaunchError, match="lacks the program"):
        awaited_begin(AgentSetup(spec, 1, None, {}, REQUEST), membership, lambda _waiting: None)
    assert (coordinator_files.read_endpoint(run_dir) is not None) is is_shared


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_a_directory_of_another_user_is_not_filled(spec):
    run_dir = RunDir(spec.run_dir, 1)
    take_place(spec, 1, {})
    for directory in (run_dir.root, run_dir.report.parent, run_dir.device(spec.ranks[-1].global_rank)):
        os.chown(directory, 65534, 65534)
        with pytest.raises(UsageError, match="65534"):
            take_place(spec, 1, {})
        os.chown(directory, 0, 0)
    run_dir.root.symlink_to(run_dir.root.rename(run_dir.root.with_name("moved")))
    take_place(spec, 1, {})
    os.lchown(run_dir.root, 65534, 65534)
    with pytest.raises(UsageError, match="65534"):
        take_place(spec, 1, {})


def test_a_server_that_sees_the_mark_shares_the_directory(tmp_path, monkeypatch):
    ours, others, missing = (RunDir(tmp_path / name) for name in ("ours", "others", "missing"))
    for run_dir in (ours, others):
        run_dir.root.mkdir()
    mark, other, nothing = map(coordinator_files.leave_mark, (ours, others, missing))
    assert (mark != other, nothing) == (True, None)
    assert [coordinator_files.sees_mark(run_dir, mark) for run_dir in (ours, others, missing)] == [True, False, False]
    for run_dir in (ours, missing):
        coordinator_files.remove_marks(run_dir)
    assert list(ours.root.iterdir()) == []
    monkeypatch.setattr("os.scandir", os.readlink)  # fails, as on a file system that is gone
    coordinator_files.remove_marks(ours)
