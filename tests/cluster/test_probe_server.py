"""A server that is examined, over a real connection."""

import errno
import os
import threading
import time

import pytest

from launcher.cluster.join import Session
from launcher.cluster.probe_server import serve_probes
from launcher.core.channel import Channel
from launcher.core.events import Cause
from launcher.core.messages import Finish, ProbeAnswer, ProbeQuestion, Welcome

PATIENCE_S = 20


@pytest.fixture
def examined(connected):
    """Gives the coordinator's end of the connection to a server that asks `also` first."""
    ours, theirs = map(Channel, connected)
    threads = []

    def start(also):
        membership = Session(theirs, Welcome("", 0, "examination", silence_s=PATIENCE_S))
        threads.append(threading.Thread(target=serve_probes, args=(membership, also)))
        threads[-1].start()
        return ours

    yield start
    ours.send(Finish(Cause.FINISHED, 0))
    ours.drain(time.monotonic() + PATIENCE_S)
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def answer_to(channel, ask):
    channel.send(ask)
    return next(iter(channel.wait_for(time.monotonic() + PATIENCE_S)))


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), KeyError("port"), RuntimeError("x")]
)
def test_a_question_that_fails_is_answered_with_why_and_the_next_one_is_heard(examined, error):

    def also(message, _is_over):
        if message["do"] == "fail":
            raise error
        return {"well": True}

    channel = examined(also)
    assert answer_to(channel, ProbeQuestion(1, {"do": "fail"})) == ProbeAnswer(
        1, {"trouble": f"{type(error).__name__}: {error}"}
    )
    assert answer_to(channel, ProbeQuestion(2, {"do": "else"})) == ProbeAnswer(2, {"well": True})
