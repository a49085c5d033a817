"""The network of this server: names and addresses, interfaces, routes and ports."""

from __future__ import annotations

import errno
import math
import os
import queue
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from launcher.core.machine import interfaces as own
from launcher.core.machine.interfaces import address_of, addresses_of
from launcher.core.machine.proc import core_wait_s
from launcher.doctor.facts import Interface, Port, Resolved

NET = Path("/proc/net")
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
RDMA = Path("/sys/class/infiniband")
# Variables that choose the interface of a library's connections. HCCL_IF_IP is an address; the others are names.
INTERFACE_VARIABLES = (*own.INTERFACE_VARIABLES, "HCCL_IF_IP")
MAX_AT_ONCE = 32
RESOLVE_S = 15.0  # a dead name server costs 5 s, then the next one is used
MAX_PATIENCE_S = 60.0  # for thousands of names


def interfaces() -> tuple[Interface, ...]:
    """Return all network interfaces with their IPv4 and IPv6 addresses."""
    import psutil  # noqa: PLC0415 - slow import

    stats = psutil.net_if_stats()
    families = (socket.AF_INET, socket.AF_INET6)
    found = {
        name: tuple(entry.address.partition("%")[0] for entry in entries if entry.family in families)
        for name, entries in psutil.net_if_addrs().items()
    }
    return tuple(
        Interface(name, addresses, stats[name].mtu if name in stats else None, name not in stats or stats[name].isup)
        for name, addresses in sorted(found.items())
    )


def default_interface(net: Path = NET) -> str | None:
    """Return the interface of the IPv4 default route with the lowest metric, or None if there is no default route."""
    try:
        rows = [line.split() for line in (net / "route").read_text(encoding="ascii").splitlines()[1:]]
    except (OSError, ValueError):
        return None
    # Fields: interface, destination, gateway, flags, ..., metric, mask
    routes = [(int(row[6]), row[0]) for row in rows if len(row) > 7 and int(row[1], 16) == int(row[7], 16) == 0]
    return min(routes, default=(0, None))[1]


def interface_variables(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, environment[name]) for name in INTERFACE_VARIABLES if environment.get(name))


def ranks_interface(called: Sequence[str], resolved: Mapping[str, Resolved]) -> str | None:
    """Return the interface that `tlaunch run` would choose for ranks on this server."""
    addresses = {name: addresses_of(resolved[name].addresses) for name in called if name in resolved}
    return own.interface_of(called, own.held_addresses(), addresses)


def rdma_devices(directory: Path = RDMA) -> tuple[str, ...]:
    return tuple(sorted(os.listdir(directory))) if directory.is_dir() else ()  # noqa: PTH208 - only names


def ephemeral_ports(path: Path = EPHEMERAL) -> tuple[int, int] | None:
    """Return the first and last port of the kernel's ephemeral port range."""
    try:
        first, last = map(int, path.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return None
    return first, last


def try_port(number: int) -> Port:
    """Try to bind the port in the same way as torch's store: on all addresses, with SO_REUSEADDR."""
    trouble = _trouble(socket.AF_INET6, number)
    if trouble is not None and trouble.errno not in {errno.EADDRINUSE, errno.EACCES}:  # a machine without IPv6
        trouble = _trouble(socket.AF_INET, number)
    return Port(number, None if trouble is None else trouble.strerror)


def _trouble(family: socket.AddressFamily, number: int) -> OSError | None:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", number))
    except OSError as error:
        return error
    except OverflowError:
        return OSError(errno.EINVAL, "invalid port number")
    return None


def patience_s(count: int) -> float:
    """Return the number of seconds to wait for `count` names to resolve if the name server does not answer."""
    return min(MAX_PATIENCE_S, RESOLVE_S * max(1, math.ceil(count / MAX_AT_ONCE)))


def resolve(names: Iterable[str], patience_s: float) -> dict[str, Resolved]:
    """Resolve names to addresses in parallel, and block for up to `patience_s`. An address resolves to itself.

    A silent name server takes 5 to 30 s per name, so all names are resolved in parallel. Names that are not resolved by
    the deadline have no answer. The system's resolver cannot be interrupted, so its daemon threads are abandoned then.
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
            started_s, waited_s = time.monotonic(), core_wait_s("thread-self") or 0.0
            addresses = _addresses(name)
            # Subtract the time in which this thread waited for a core.
            seconds = time.monotonic() - started_s - ((core_wait_s("thread-self") or 0.0) - waited_s)
            answers.put(Resolved(name, addresses, max(0.0, seconds)))


def _addresses(name: str) -> tuple[str, ...]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, ValueError):
        return ()
    return tuple(dict.fromkeys(str(where[0]) for *_, where in found))
