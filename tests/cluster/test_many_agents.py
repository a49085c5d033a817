"""A coordinator with more agents than any test has servers: simulated agents stand for all of them, and no rank is started."""

import json
import os
import resource
import sys
from pathlib import Path

import pytest

from launcher.cluster import shutdown as departure
from launcher.cluster.agent_connection import listen
from launcher.cluster.coordinator import Coordinator
from launcher.cluster.job import Plan
from launcher.core import env
from launcher.core.errors import EXIT_FAILURE
from launcher.core.events import AgentEnded, AttemptStarted, Cause, Judged, NotBegun, RankEnded, RankStarted
from launcher.core.machine.proc import SPARE
from launcher.core.records import Cluster, Layout, RankSpec, RunSpec
from launcher.core.run_dir import RunDir
from launcher.core.verdict import Confidence
from launcher.engines.engine_command import EngineCommand
from launcher.engines.local import signals_held_back, start_child
from tests.servers import servers

SIMULATION = Path(__file__).parents[2] / "benchmarks" / "programs" / "simulated_agents.py"
COUNT, RANKS = 50, 2
TOKEN = "known to all"


def spec_in(folder, count):
    cluster = Cluster(servers(*(f"10.7.0.{index + 1}" for index in range(count)), each=RANKS))
    ranks = tuple(
        RankSpec(device.global_rank, device.device_id, server.server_id, index, device.device_id, ("true",), {})
        for index, server in enumerate(cluster.servers)
        for device in server.devices
    )
    (folder / "run").mkdir()
    return RunSpec("run", folder / "run", cluster, Layout(dp=len(ranks)), ranks, folder, "10.7.0.1", 0)


@pytest.fixture
def coordinate(tmp_path, monkeypatch):
    """Gives a function that has simulated agents coordinated until nothing is left: exit code, events, and its notes if it was let end by itself."""
    monkeypatch.setattr(departure, "PATIENCE_S", 60.0)  # for the simulation to write its notes

    def run(*options, count=COUNT, join_timeout_s=60.0):
        spec = spec_in(tmp_path, count)
        listed, notes = tmp_path / "servers", tmp_path / "notes"
        listed.write_text("\n".join(server.server_id for server in spec.cluster.servers))
        argv = (sys.executable, str(SIMULATION), "--servers", str(listed), "--ranks", str(RANKS), "--notes", str(notes))
        with signals_held_back(), listen() as listener:
            endpoint = {
                env.TLAUNCH_COORDINATOR: f"127.0.0.1:{listener.getsockname()[1]}",
                env.TLAUNCH_COORDINATOR_TOKEN: TOKEN,
                "PYTHONPATH": os.pathsep.join(sys.path),
            }
            plan = Plan(
                listener=listener, token=TOKEN, shared_token="", silence_s=30.0, join_timeout_s=join_timeout_s,
                engine=EngineCommand("simulated agents", (*argv, *options), endpoint, {}), brings_all=True, job="a job", agreement={},
            )  # fmt: skip
            child = start_child(lambda head: Coordinator(spec, plan, head).run(), RunDir(spec.run_dir))
        events = []
        while (read := child.read()) is not None:
            events += read
        code = child.wait()
        assert not RunDir(spec.run_dir).agent_log.exists(), RunDir(spec.run_dir).agent_log.read_text()
        return code, events, json.loads(notes.read_text()) if notes.exists() else None

    return run


def of(kind, events):
    return [stamped.event for stamped in events if isinstance(stamped.event, kind)]


def test_all_of_them_begin_and_end_together(coordinate):
    """Every rank's start and end is reported once, by the server that it is on.

    They are more than files may be open: the coordinator raises its own limit; what the engine starts keeps the one
    that the person has set.
    """
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (SPARE + 20, before[1]))
    try:
        code, events, notes = coordinate(count=100)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (code, notes["limit_found"]) == (0, SPARE + 20)
    assert len(of(AttemptStarted, events)) == 1
    for kind in (RankStarted, RankEnded):
        found = [(one.server_index, one.event.global_rank) for one in events if isinstance(one.event, kind)]
        assert sorted(found) == [(rank // RANKS, rank) for rank in range(100 * RANKS)]
    assert {"welcomed", "begun", "ranks told", "finish"} <= notes["stages"].keys()
    assert of(AgentEnded, events) == [AgentEnded(Cause.FINISHED, 0)]


def test_one_that_vanishes_is_named_and_the_others_end(coordinate):
    code, events, _ = coordinate("--vanishing", "17", "--stay", "600")
    assert code == EXIT_FAILURE
    [judged] = of(Judged, events)
    assert judged.verdict.server == "10.7.0.18"
    assert judged.verdict.confidence is Confidence.CERTAIN
    ended = {event.global_rank for event in of(RankEnded, events)}
    assert ended == set(range(COUNT * RANKS)) - {17 * RANKS, 17 * RANKS + 1}


def test_one_that_leaves_before_all_are_ready_is_named_and_nothing_begins(coordinate):
    """No engine brings it again: it is not waited for until --join-timeout. test_joining_by_hand has one that never comes."""
    code, events, _ = coordinate("--leaving", "3", join_timeout_s=3600.0)
    assert code == EXIT_FAILURE
    [refusal] = of(NotBegun, events)
    assert "server 10.7.0.4 was lost before its ranks were started: the connection was closed" in refusal.message
    assert not of(AttemptStarted, events)
