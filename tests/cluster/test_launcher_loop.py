"""What the launcher does for an agent that is lost."""

import os
import time
from dataclasses import replace

from launcher.cluster.launcher_loop import OrphanCleanup
from launcher.core.events import Stopping
from launcher.core.records import Supervision
from launcher.supervise.tree import RunGroup


def test_what_a_lost_agent_left_has_no_longer_than_a_batch_system_leaves(spec):
    """By the same rule as ranks that an agent ends."""
    until = replace(spec, supervision=Supervision(grace_s=1000, killed_at_s=time.time() + 60))
    [read, write] = os.pipe()
    child = os.fork()  # for it ends whatever its process has started
    if child == 0:
        told = []
        group = RunGroup(os.getpid())
        OrphanCleanup(until, group, 1, lambda stamped: told.append(stamped.event)).run()
        group.remove()
        [stopping] = [event for event in told if isinstance(event, Stopping)]
        os.write(write, str(stopping.grace_s).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        grace_s = float(answer.read())
    os.waitpid(child, 0)

    assert 0 < grace_s < 60
