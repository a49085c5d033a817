"""How long a restart waits for a server that is not heard: until its agent says that no rank is left, or for sure."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from launcher.cluster import lost_agents as unheard
from launcher.cluster.agent_connection import listen
from launcher.cluster.lost_agents import LostAgents, longest_s, report_freed
from launcher.control.messages import Freed, proof_of
from tests.conftest import PATIENCE_S


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    monkeypatch.setattr(unheard, "CONNECT_S", PATIENCE_S)


@pytest.fixture
def connect():
    with ThreadPoolExecutor() as pool:
        yield lambda port, agent, token="token": pool.submit(
            report_freed, ("127.0.0.1", port), token, agent, PATIENCE_S
        )


def test_the_wait_lasts_until_ranks_have_ended_by_themselves():
    assert longest_s(15.0, 20.0) > 15.0 + 20.0
    lost = LostAgents()
    assert lost.until == 0
    before = time.monotonic()
    lost.note("a", 50.0)
    lost.note("b", 20.0)
    assert before + 50 <= lost.until <= time.monotonic() + 50
    lost.forget()
    assert lost.until == 0
    # An agent may say so before its loss is noticed: of two connections the later one may be heard first.
    assert lost.hear(Freed(proof_of("token", "freed", "drawn", "a"), "a"), "token", "drawn")
    lost.note("a", 1000.0)
    assert lost.until == 0


def test_an_agent_that_comes_back_without_ranks_ends_the_wait_for_it(opened, agents, connect):
    future = agents.join(opened)
    opened.attend(future.done)
    membership, lost = future.result(), opened.registration.unheard
    assert membership.nonce == opened.registration.peers[0].hello.nonce
    assert membership.address == ("127.0.0.1", opened.port)
    lost.note(membership.nonce, 1000.0)
    lost.note("another", 500.0)
    freed = connect(opened.port, membership.nonce)
    opened.attend(lambda: lost.until <= time.monotonic() + 500)
    assert freed.result() is True
    assert lost.until > time.monotonic()
    connect(opened.port, "another")
    opened.attend(lambda: lost.until == 0)


@pytest.mark.parametrize(("agent", "token"), [("a", "another token"), ("of another attempt", "token")])
def test_no_other_agent_ends_it(opened, agents, agent, token):
    opened.registration.unheard.note("a", 1000.0)
    agents.say(opened, lambda drawn: Freed(proof_of(token, "freed", drawn, agent), agent))
    opened.attend(lambda: opened.dismissed or agent in opened.registration.unheard._freed)
    assert opened.registration.unheard.until > time.monotonic()


def test_it_connects_until_it_is_heard(house, connect):
    listener = listen()
    listener.setblocking(True)
    freed = connect(port := listener.getsockname()[1], "a")
    listener.accept()[0].close()
    listener.setblocking(False)
    opened = house(listener=listener)
    opened.registration.unheard.note("a", 1000.0)
    opened.attend(lambda: opened.registration.unheard.until == 0)
    assert freed.result() is True
    opened.close()
    assert report_freed(("127.0.0.1", port), "token", "a", 1000.0) is False


def test_an_engine_that_ends_the_agent_does_not_end_what_connects(opened):
    """It is in a session of its own, and holds nothing of what the agent had open."""
    opened.registration.unheard.note("a", 1000.0)
    code = (
        "import sys; from launcher.cluster.lost_agents import report_freed_in_background\n"
        "report_freed_in_background(('127.0.0.1', int(sys.argv[1])), 'token', 'a', 60.0)"
    )
    # Nobody takes it in yet: that it ends, and its output too, says that what agents has neither.
    argv = [sys.executable, "-c", code, str(opened.port)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False, start_new_session=True)
    assert (done.returncode, done.stderr) == (0, "")
    opened.attend(lambda: opened.registration.unheard.until == 0)
