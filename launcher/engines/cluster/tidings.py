"""Which events of a server's agent concern the whole run, and how they read there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from launcher.core.events import (
    AgentStarted,
    Hung,
    Killing,
    Leftovers,
    Preloaded,
    Preloading,
    RankEnded,
    RankStarted,
    Slow,
    Stamped,
    Trouble,
    Unkillable,
    from_line,
)

# What an agent says of attempts, verdicts and ends is the coordinator's own word, come back.
_PASSED_ON = (
    AgentStarted, Preloading, Preloaded, RankStarted, RankEnded, Slow, Hung, Leftovers, Killing, Unkillable,
)  # fmt: skip


def passed_on(line: str, ahead_ns: int, server_id: str) -> Iterator[Stamped]:
    """The event with the coordinator's time, if it is one for all: `ahead_ns` is how far the server's clock is ahead."""
    try:
        stamped = from_line(line)
    except ValueError:
        return
    if stamped is None:
        return
    time_ns = stamped.time_ns - ahead_ns
    if isinstance(stamped.event, Trouble):
        yield replace(stamped, time_ns=time_ns, event=Trouble(f"server {server_id}: {stamped.event.message}"))
    elif isinstance(stamped.event, _PASSED_ON):
        yield replace(stamped, time_ns=time_ns)
