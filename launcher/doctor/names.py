"""What names mean here. A name server that is silent costs 5 to 30 s a name, so all are asked at once, with a deadline."""

from __future__ import annotations

import math
import queue
import socket
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from launcher.core.interfaces import address_of
from launcher.doctor.facts import Resolved

ASKED_AT_ONCE = 32
RESOLVE_S = 15.0  # a name server that is dead costs 5 s, and then the next one is asked
MAX_S = 60.0  # for thousands of names; where no server answers, none would be known after any time
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


def patience_s(count: int) -> float:
    """How long to wait for so many names: where the first name server is dead, each waits for that."""
    return min(MAX_S, RESOLVE_S * max(1, math.ceil(count / ASKED_AT_ONCE)))


def resolve(names: Iterable[str], patience_s: float) -> dict[str, Resolved]:
    """Every name, an address being its own meaning. Blocks for `patience_s` at most: what is not answered is unknown.

    The system's resolver cannot be interrupted: its threads are daemons, and are left behind at the deadline.
    """
    wanted = tuple(dict.fromkeys(names))
    found = {name: Resolved(name, (name,)) for name in wanted if is_address(name)}
    unknown = [name for name in wanted if name not in found]
    asked: queue.SimpleQueue[str] = queue.SimpleQueue()
    answers: queue.SimpleQueue[Resolved] = queue.SimpleQueue()
    for name in unknown:
        asked.put(name)
    for _ in range(min(ASKED_AT_ONCE, len(unknown))):
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
    while True:
        try:
            name = asked.get_nowait()
        except queue.Empty:
            return
        started_s, held_up_s = time.monotonic(), _held_up_s()
        addresses = _addresses(name)
        seconds = time.monotonic() - started_s - (_held_up_s() - held_up_s)
        answers.put(Resolved(name, addresses, max(0.0, seconds)))


def _held_up_s() -> float:
    """How long this thread has waited for a processor, which is no name server's fault; 0 where nobody tells.

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
