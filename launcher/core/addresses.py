"""Addresses as numbers: one IPv6 address can be written in many ways."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

from launcher.core.records import Server

Address = IPv4Address | IPv6Address


@lru_cache(maxsize=1 << 14)
def address_of(text: str) -> Address | None:
    """Return the address that `text` is, without a zone after "%", or None if it is not an address."""
    try:
        return ip_address(text.partition("%")[0])
    except ValueError:
        return None


def addresses_of(texts: Iterable[str]) -> frozenset[Address]:
    return frozenset(address for text in texts if (address := address_of(text)))


def go_by_names(servers: Sequence[Server]) -> bool:
    """Return True if some of several servers are called by a name in the table, which mpirun then gets."""
    return len(servers) > 1 and any(address_of(server.server_id) is None for server in servers)


def names_of(server: Server) -> tuple[str, ...]:
    """Return all names and addresses that a table gives the server itself, its id first."""
    container_ip = dict(server.options).get("container_ip")
    others = (server.host_ip, server.host_nic_ip, container_ip)
    return tuple(dict.fromkeys((server.server_id, *(name for name in others if name and address_of(name)))))
