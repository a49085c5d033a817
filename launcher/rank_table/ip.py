"""Parse IP addresses as HCCL does."""

from __future__ import annotations

import socket
from socket import inet_pton

FAMILY_NAMES = {4: "IPv4", 6: "IPv6"}
_LOOPBACK_NAMES = frozenset({"localhost", "localhost.localdomain", "::1"})
_FAMILY_OF_LENGTH = {4: 4, 16: 6}
_AFTER_ADDRESS = {
    "/": "it must not contain a prefix length",
    ":": "it must not contain a port",
    ";": "use a comma to separate two addresses",
}
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
_IPV4, _IPV6 = int(socket.AF_INET), int(socket.AF_INET6)  # plain numbers: this runs for each device
UNSET_ADDRESS = "-.-.-.-"  # printed by hccn_tool for a device without an address
# In the driver's tools and files, these mean that no address is set.
UNSET = ("", UNSET_ADDRESS, "0.0.0.0", "::")  # noqa: S104 - compared, not listened on


def address_family(address: str) -> int | None:
    """Return 4 or 6 for an IPv4 or IPv6 address, or None if HCCL cannot parse the address."""
    return family_of(packed_address(address))


def is_loopback(name: str | None) -> bool:
    return name is not None and (name.startswith("127.") or name in _LOOPBACK_NAMES)


def family_of(packed: bytes | None) -> int | None:
    """Return the IP version of a packed address, 4 or 6, or None if `packed` is None."""
    return None if packed is None else _FAMILY_OF_LENGTH[len(packed)]


def why_no_address(address: str) -> str:
    """Return the reason why `address` is invalid, to append to a message. Return "" if there is no specific reason.

    >>> why_no_address("10.277.0.10"), why_no_address("10.1.1"), why_no_address("node1")
    (': 277 is more than 255', ': it has 3 numbers, not 4', '')
    """
    reason = _ipv6_fault(address) if address.count(":") >= 2 else _ipv4_fault(address)
    return f": {reason}" if reason else ""


def _ipv4_fault(address: str) -> str:
    parts = address.split(".")
    if not address or address != address.strip():
        return "it starts or ends with a blank" if address else "it is empty"
    if not any(part.isdecimal() for part in parts):  # a name, a placeholder
        return ""
    for mark, reason in _AFTER_ADDRESS.items():
        if mark in address and packed_address(address.partition(mark)[0]) is not None:
            return reason
    of_parts = next(filter(None, map(_part_fault, parts)), "")
    return of_parts or f"it has {len(parts)} number{'s' * (len(parts) > 1)}, not 4"


def _part_fault(part: str) -> str:
    if not (part.isdecimal() and part.isascii()):
        return f'"{part[:20]}" is not a number' if part else "a number is missing next to a dot"
    if len(part) > 3 or int(part) > 255:
        return f"{part[:20]} is more than 255"
    return f"{part} starts with a zero" if len(part) > 1 and part.startswith("0") else ""


def _ipv6_fault(address: str) -> str:
    bare = address.partition("%")[0]
    if bare.count("::") > 1 or ":::" in bare:
        return 'it may contain only one "::"'
    groups = [group for group in bare.split(":") if group]
    for group in groups[:-1] if "." in bare else groups:
        if len(group) > 4 or not set(group) <= _HEX_DIGITS:
            return f'"{group[:20]}" is not a group of 1 to 4 hexadecimal digits'
    if "%" in address and not address.partition("%")[2]:
        return "the zone after % is empty"
    return "" if "." in bare or "::" in bare else f"it has {len(groups)} groups, not 8"


def is_unspecified(packed: bytes | None) -> bool:
    """Return True if the address is unspecified (0.0.0.0 or ::). HCCL treats 0.0.0.0 as unset."""
    return packed is not None and not any(packed)


def what_it_is_instead(address: str, owner: str) -> str:
    """Describe why `address` cannot be the address of `owner`, for example "device"."""
    if packed_address(address) is None:
        return f"not an IP address{why_no_address(address)}"
    return f"unspecified, and cannot be the address of a {owner}"


def packed_address(address: str) -> bytes | None:
    """Return the 4 or 16 bytes of an address without its zone, or None if HCCL cannot parse the address."""
    if "%" in address:
        address, _, zone = address.partition("%")
        if not zone:
            return None
    try:
        return inet_pton(_IPV6 if address.count(":") >= 2 else _IPV4, address)
    except (OSError, ValueError):  # ValueError: a NUL or a character outside ASCII
        return None
