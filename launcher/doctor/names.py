"""What names mean here. A name server that is silent costs 5 to 30 s a name, so all are asked at once, with a deadline."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterable
from ipaddress import ip_address

from launcher.doctor.facts import Resolved

ASKED_AT_ONCE = 32


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
    return {name: found.get(name, Resolved(name, (), patience_s)) for name in wanted}


def is_address(text: str) -> bool:
    try:
        ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


def is_loopback(address: str) -> bool:
    return is_address(address) and ip_address(address.partition("%")[0]).is_loopback


def _work(asked: queue.SimpleQueue[str], answers: queue.SimpleQueue[Resolved]) -> None:
    while True:
        try:
            name = asked.get_nowait()
        except queue.Empty:
            return
        started_s = time.monotonic()
        addresses = _addresses(name)
        answers.put(Resolved(name, addresses, time.monotonic() - started_s))


def _addresses(name: str) -> tuple[str, ...]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, ValueError):
        return ()
    return tuple(dict.fromkeys(str(where[0]) for *_, where in found))
