"""The network of this server: interfaces, routes, ports."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.core import interfaces as own
from launcher.core.interfaces import addresses_of
from launcher.doctor.facts import Interface, Port, Resolved

NET = Path("/proc/net")
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
RDMA = Path("/sys/class/infiniband")
# Variables that choose the interface of a library's connections. HCCL_IF_IP is an address, the others are names.
INTERFACE_VARIABLES = (*own.INTERFACE_VARIABLES, "HCCL_IF_IP")


def interfaces() -> tuple[Interface, ...]:
    """Return all interfaces, with their addresses of both families."""
    import psutil  # noqa: PLC0415 - only commands that need it load it

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
    """Return the interface of the IPv4 default route with the best metric; None if there is none."""
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
    """Return the interface that `tlaunch run` would set for ranks here."""
    addresses = {name: addresses_of(resolved[name].addresses) for name in called if name in resolved}
    return own.interface_of(called, own.held_addresses(), addresses)


def rdma_devices(directory: Path = RDMA) -> tuple[str, ...]:
    return tuple(sorted(os.listdir(directory))) if directory.is_dir() else ()  # noqa: PTH208 - names are wanted


def ephemeral_ports(path: Path = EPHEMERAL) -> tuple[int, int] | None:
    """Return the first and the last port that the kernel gives to connections that ask for none."""
    try:
        first, last = map(int, path.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return None
    return first, last


def try_port(number: int) -> Port:
    """Try to take the port, as torch's store would: on all addresses, with SO_REUSEADDR."""
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
        return OSError(errno.EINVAL, "no port has this number")
    return None
