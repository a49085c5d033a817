"""Which events of a server's agent concern the whole run, and how they read there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from launcher.core.events import (
    AgentStarted,
    Event,
    Hung,
    Killing,
    Leftovers,
    Preloaded,
    Preloading,
    RankEnded,
    RankStarted,
    Slow,
    TimestampedEvent,
    Trouble,
    Unkillable,
    from_line,
)
from launcher.core.records import Server

# What an agent says of attempts, verdicts and ends is the coordinator's own word, come back.
_PASSED_ON = (
    AgentStarted, Preloading, Preloaded, RankStarted, RankEnded, Slow, Hung, Leftovers, Killing, Unkillable,
)  # fmt: skip


def passed_on(line: str, ahead_ns: int, server: Server, server_index: int) -> Iterator[TimestampedEvent]:
    """The event with the coordinator's time, if it is one for all: `ahead_ns` is how far the server's clock is ahead.

    A server speaks of itself and of its own ranks only.
    """
    try:
        stamped = from_line(line)
    except (ValueError, RecursionError):
        return
    if stamped is None or not _is_of(server, stamped.event):
        return
    stamped = replace(stamped, time_ns=stamped.time_ns - ahead_ns, server_index=server_index)
    if isinstance(stamped.event, Trouble):
        yield replace(stamped, event=Trouble(f"server {server.server_id}: {stamped.event.message}"))
    elif isinstance(stamped.event, _PASSED_ON):
        yield stamped


def _is_of(server: Server, event: Event) -> bool:
    own = {device.global_rank for device in server.devices}
    if isinstance(event, RankStarted | RankEnded | Slow):
        return event.global_rank in own
    return not isinstance(event, Hung) or own.issuperset(event.global_ranks)
