"""When the process that attends a server's agent tells its coordinator that nothing of the ranks is left there."""

import pytest

from launcher.cli.launch.server_agent import _Silent
from launcher.core.events import AgentEnded, Cause, TimestampedEvent, Unkillable


@pytest.mark.parametrize(("events", "frees"), [
    ([AgentEnded(Cause.COORDINATOR_LOST, 1)], True), ([AgentEnded(Cause.AGENT_LOST, 1)], True),
    ([AgentEnded(Cause.FAILED, 1)], False), ([Unkillable((7,)), AgentEnded(Cause.COORDINATOR_LOST, 1)], False), ([], False),
], ids=["nobody hears it", "it was killed", "it has said so itself", "something is left", "nothing is known"])  # fmt: skip
def test_a_server_is_free_where_nothing_is_left_and_its_agent_could_not_say_so(events, frees):
    """Ranks of the next attempt may start there as soon as that is told."""
    observer = _Silent()
    for number, event in enumerate(events):
        observer.event(TimestampedEvent(number, 0, event))
    assert observer.frees is frees
