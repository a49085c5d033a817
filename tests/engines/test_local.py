"""The agent as a forked child: what it leaves when it breaks."""

import dataclasses

from launcher.core.records import Cluster, Device, Layout, Server, Supervision
from launcher.core.run_dir import RunDir
from launcher.engines.assemble import Request, assemble
from launcher.engines.local import signals_held_back, start_agent
from launcher.engines.placement import Machine


def run_to_end(spec):
    """The agent's exit code."""
    RunDir(spec.run_dir).device(0).mkdir(parents=True)
    with signals_held_back():
        agent = start_agent(spec)
    while agent.read() is not None:
        pass
    return agent.wait()


def one_rank(tmp_path, **env):
    cluster = Cluster((Server("127.0.0.1", (Device(0, 0, "127.0.0.1"),)),), source=None)
    request = Request(
        cluster=cluster, layout=Layout(dp=1), argv=("true",), cwd=tmp_path, runs_dir=tmp_path / "runs",
        supervision=Supervision(grace_s=1.0), user_env={}, inherited_env={}, machine=Machine.uniform(1),
    )  # fmt: skip
    spec = assemble(request, name="n", master_port=29500)
    (rank,) = spec.ranks
    return dataclasses.replace(spec, ranks=(dataclasses.replace(rank, env={**rank.env, **env}),))


def test_a_broken_agent_leaves_its_traceback_in_the_run_directory(tmp_path):
    """What no agent can write to env.log ends it, and agent.log says where."""
    spec = one_rank(tmp_path, UNWRITABLE="\ud800")
    assert run_to_end(spec) == 1
    assert "UnicodeEncodeError" in (spec.run_dir / "agent.log").read_text()


def test_a_sound_agent_leaves_no_agent_log(tmp_path):
    spec = one_rank(tmp_path)
    assert run_to_end(spec) == 0
    assert not (spec.run_dir / "agent.log").exists()
