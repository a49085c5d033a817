"""The agent as a forked child: what it leaves when it breaks."""

from launcher.core.records import Cluster, Layout, Supervision
from launcher.core.run_dir import RunDir
from launcher.engines.assemble import Request, assemble
from launcher.engines.local import signals_held_back, start_agent
from tests.servers import uniform


def test_a_broken_agent_leaves_its_traceback_in_the_run_directory(tmp_path):
    request = Request(
        cluster=Cluster.local(1), layout=Layout(), argv=("true",), cwd=tmp_path, runs_dir=tmp_path / "runs",
        supervision=Supervision(grace_s=1.0), user_env={"UNWRITABLE": "\ud800"}, inherited_env={}, machine=uniform(1),
    )  # fmt: skip
    spec = assemble(request, name="n", master_port=29500)
    RunDir(spec.run_dir).device(0).mkdir(parents=True)
    with signals_held_back():
        agent = start_agent(spec)
    while agent.read() is not None:
        pass
    assert agent.wait() == 1
    agent.forget()
    assert "UnicodeEncodeError" in RunDir(spec.run_dir).agent_log.read_text()
