"""Resolve names. A silent name server costs 5 to 30 s a name, so all names are resolved at once, with a deadline."""

from __future__ import annotations

import math
import queue
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from launcher.core.interfaces import address_of
from launcher.doctor.facts import Resolved

MAX_AT_ONCE = 32
RESOLVE_S = 15.0  # a name server that is dead costs 5 s, and then the next one is asked
MAX_PATIENCE_S = 60.0  # for thousands of names
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


def patience_s(count: int) -> float:
    """Return how long to wait for that many names, each of which may wait for a dead name server first."""
    return min(MAX_PATIENCE_S, RESOLVE_S * max(1, math.ceil(count / MAX_AT_ONCE)))


def resolve(names: Iterable[str], patience_s: float) -> dict[str, Resolved]:
    """Return the addresses of every name; an address has itself. Blocks for `patience_s` at most.

    A name without an answer by then has none. The system's resolver cannot be interrupted: its threads are daemons, and
    are left behind at the deadline.
    """
    wanted = tuple(dict.fromkeys(names))
    found = {name: Resolved(name, (name,)) for name in wanted if is_address(name)}
    unknown = [name for name in wanted if name not in found]
    asked: queue.SimpleQueue[str] = queue.SimpleQueue()
    answers: queue.SimpleQueue[Resolved] = queue.SimpleQueue()
    for name in unknown:
        asked.put(name)
    for _ in range(min(MAX_AT_ONCE, len(unknown))):
        threading.Thread(target=_work, args=(asked, answers), daemon=True).start()
    deadline = time.monotonic() + patience_s
    for _ in unknown:
        try:
            answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        found[answer.name] = answer
    return {name: found.get(name, Resolved(name, (), patience_s, answered=False)) for name in wanted}


def is_address(text: str) -> bool:
    return address_of(text) is not None


def is_loopback(text: str) -> bool:
    address = address_of(text)
    return address is not None and address.is_loopback


def _work(asked: queue.SimpleQueue[str], answers: queue.SimpleQueue[Resolved]) -> None:
    with suppress(queue.Empty):
        while True:
            name = asked.get_nowait()
            started_s, queued_s = time.monotonic(), _queued_s()
            addresses = _addresses(name)
            seconds = time.monotonic() - started_s - (_queued_s() - queued_s)
            answers.put(Resolved(name, addresses, max(0.0, seconds)))


def _queued_s() -> float:
    """Return how long this thread has waited for a processor, which is not the name server's fault; 0 if unknown.

    Source: Documentation/scheduler/sched-stats.rst of Linux, /proc/<pid>/schedstat.
    """
    try:
        return int(_SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _addresses(name: str) -> tuple[str, ...]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, ValueError):
        return ()
    return tuple(dict.fromkeys(str(where[0]) for *_, where in found))
