"""IP addresses as HCCL reads them."""

from __future__ import annotations

import socket
from socket import inet_pton

FAMILY_NAMES = {4: "IPv4", 6: "IPv6"}
_LOOPBACK_NAMES = frozenset({"localhost", "localhost.localdomain", "::1"})
_FAMILY_OF_LENGTH = {4: 4, 16: 6}
_IPV4, _IPV6 = int(socket.AF_INET), int(socket.AF_INET6)  # plain numbers: this is asked for each device


def address_family(address: str) -> int | None:
    """4, 6, or None where HCCL would not read an address: two colons make it IPv6, a zone after % is allowed."""
    return family_of(packed_address(address))


def is_loopback(name: str | None) -> bool:
    """Whether a host means itself by `name`."""
    return name is not None and (name.startswith("127.") or name in _LOOPBACK_NAMES)


def family_of(packed: bytes | None) -> int | None:
    """4 or 6 for the bytes that `packed_address` gives."""
    return None if packed is None else _FAMILY_OF_LENGTH[len(packed)]


def is_unspecified(packed: bytes | None) -> bool:
    """Whether these bytes are 0.0.0.0 or ::, the address of nobody. HCCL takes 0.0.0.0 for an address that is not set."""
    return packed is not None and not any(packed)


def packed_address(address: str) -> bytes | None:
    """The 4 or 16 bytes of an address, its zone left out; None where HCCL would not read one."""
    if "%" in address:
        address, _, zone = address.partition("%")
        if not zone:
            return None
    try:
        return inet_pton(_IPV6 if address.count(":") >= 2 else _IPV4, address)
    except (OSError, ValueError):  # ValueError: a NUL or a character outside ASCII
        return None
