"""A server that is examined, over a real connection; and the coordinator of an examination, in a process of its own."""

import errno
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from launcher.cluster.join import Session
from launcher.cluster.probe_server import serve_probes
from launcher.control.messages import Finish, ProbeAnswer, ProbeQuestion, Welcome
from launcher.core.events import Cause
from launcher.core.machine.proc import SPARE
from launcher.supervise.channel import Channel
from tests.conftest import PATIENCE_S

PREAMBLE = """
import json, resource, sys
from pathlib import Path
from launcher.core.machine.proc import own_limit
from launcher.core.records import Device, Server
from launcher.cluster.probe_session import ProbeSession
from launcher.cluster.job import EXAMINATION
from launcher.cluster.agent_connection import listen
from launcher.cluster.job import Plan
from launcher.engines.engine_command import EngineCommand

def session_of(count, code, alone=None, join_timeout_s=60.0):
    engine = EngineCommand("the engine", (sys.executable, "-c", code), {}, {})
    plan = Plan(
        listener=listen(), token="t", shared_token="", silence_s=60.0, join_timeout_s=join_timeout_s, engine=engine,
        brings_all=True, job=EXAMINATION, agreement={},
    )
    servers = tuple(Server(f"h{index}", (Device(0, index),)) for index in range(count))
    return ProbeSession(plan, servers, alone, Path(sys.argv[1]))
"""


def told_by(code, directory):
    argv = [sys.executable, "-c", PREAMBLE + code, directory]
    return json.loads(subprocess.check_output(argv, text=True, timeout=PATIENCE_S))


def test_there_is_room_for_a_connection_to_every_server(tmp_path):
    code = """
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
session = session_of(100, "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])")
session.gather(lambda missing: None)
with session.usual_limits():
    told = [own_limit(), (Path(sys.argv[1]) / "engine.log").read_text().strip()]
session.close()
print(json.dumps([*told, own_limit()]))
"""
    assert told_by(code, tmp_path) == [64, "64", 100 + SPARE]


def test_engines_that_hang_keep_no_other_from_being_started(tmp_path):
    code = """
import launcher.cluster.probe_session as module
module.MIN_ALONE_S, module.MAX_ENGINES = 0.2, 2
started = []
def alone(index, join_s):
    started.append(index)
    return EngineCommand(f"engine {index}", ("sleep", "1000"), {}, {})
session = session_of(5, "", alone, join_timeout_s=0.1)
session.gather(lambda missing: None)
session.close()
print(json.dumps([started, [session.join_failures[index].why for index in range(5)]]))
"""
    said = "no agent connected; engine {} did not exit within 0.2 s, without output"
    assert told_by(code, tmp_path) == [[0, 1, 2, 3, 4], [said.format(index) for index in range(5)]]


def test_a_server_that_is_started_once_more_adds_no_more_than_the_least_that_it_needs(tmp_path):
    code = """
import time
import launcher.cluster.probe_session as module
module.MIN_ALONE_S = 0.25
given = []
def alone(index, join_s):
    given.append(join_s)
    return EngineCommand("engine alone", ("sleep", "1000"), {}, {})
session = session_of(1, "import time; time.sleep(1000)", alone, join_timeout_s=2.0)
began = time.monotonic()
session.gather(lambda missing: None)
took_s = time.monotonic() - began
session.close()
print(json.dumps([took_s, given]))
"""
    took_s, (join_s,) = told_by(code, tmp_path)
    assert 2.0 <= took_s < 2.0 + 20.0  # and no such time as an agent of a run has to find its coordinator
    assert 0.125 <= join_s <= 0.5  # half of what was left of 2 s


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), KeyError("port"), RuntimeError("x")]
)
def test_a_question_that_fails_is_answered_with_why_and_the_next_one_is_heard(connected, error):
    coordinator, server = map(Channel, connected)
    answers, ends = [], time.monotonic() + PATIENCE_S

    def also(message, _is_over):
        if message["do"] == "fail":
            raise error
        return {"well": True}

    with ThreadPoolExecutor() as pool:
        session = Session(server, Welcome("", 0, "examination", silence_s=PATIENCE_S))
        served = pool.submit(serve_probes, session, also)
        for number, what in enumerate(("fail", "else")):
            coordinator.send(ProbeQuestion(number, {"do": what}))
            answers.append(next(iter(coordinator.wait_for(ends))))
        coordinator.send(Finish(Cause.FINISHED, 0))
        coordinator.drain(ends)
        served.result(PATIENCE_S)
    why = f"{type(error).__name__}: {error}"
    assert answers == [ProbeAnswer(0, {"trouble": why}), ProbeAnswer(1, {"well": True})]
