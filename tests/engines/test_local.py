"""The agent as a forked child: what it leaves when it breaks."""

import dataclasses

import pytest

from launcher.core.records import Cluster, Device, Layout, Server, Supervision
from launcher.core.run_dir import RunDir
from launcher.engines.assemble import Request, assemble
from launcher.engines.local import signals_held_back, start_agent
from tests.servers import uniform


@pytest.mark.parametrize(("env", "code", "error"), [({"UNWRITABLE": "\ud800"}, 1, "UnicodeEncodeError"), ({}, 0, None)])
def test_a_broken_agent_leaves_its_traceback_in_the_run_directory(tmp_path, env, code, error):
    """What no agent can write to env.log ends it, and agent.log says where; a sound one leaves none."""
    cluster = Cluster((Server("127.0.0.1", (Device(0, 0, "127.0.0.1"),)),), source=None)
    request = Request(
        cluster=cluster, layout=Layout(dp=1), argv=("true",), cwd=tmp_path, runs_dir=tmp_path / "runs",
        supervision=Supervision(grace_s=1.0), user_env={}, inherited_env={}, machine=uniform(1),
    )  # fmt: skip
    spec = assemble(request, name="n", master_port=29500)
    (rank,) = spec.ranks
    spec = dataclasses.replace(spec, ranks=(dataclasses.replace(rank, env={**rank.env, **env}),))
    RunDir(spec.run_dir).device(0).mkdir(parents=True)
    with signals_held_back():
        agent = start_agent(spec)
    while agent.read() is not None:
        pass
    assert agent.wait() == code
    log = spec.run_dir / "agent.log"
    assert log.exists() == (error is not None)
    assert error is None or error in log.read_text()
