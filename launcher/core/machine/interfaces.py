"""The addresses of this machine's network interfaces, and the choice of the interface for traffic to other servers.

By default libraries choose an interface themselves: gloo the one of the hostname, NCCL one called ib*, HCCL the first
by name. With several networks that may not be the network of the rank table. Addresses are listed in getifaddrs(3)
order, because libraries use the first address of an interface.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path

from launcher.core.frozen import frozen
from launcher.core.records import Server

Address = IPv4Address | IPv6Address


@lru_cache(maxsize=1 << 14)
def address_of(text: str) -> Address | None:
    """Parse an IP address and ignore its zone, such as "%eth0". Return None if `text` is not an address."""
    try:
        return ip_address(text.partition("%")[0])
    except ValueError:
        return None


def addresses_of(texts: Iterable[str]) -> frozenset[Address]:
    return frozenset(address for text in texts if (address := address_of(text)))


def go_by_names(servers: Sequence[Server]) -> bool:
    """Return True if there are several servers and the rank table lists some of them by name only."""
    return len(servers) > 1 and any(address_of(server.server_id) is None for server in servers)


def names_of(server: Server) -> tuple[str, ...]:
    """Return all names and addresses that the rank table has for a server. The first one is the server id."""
    container_ip = dict(server.options).get("container_ip")
    others = (server.host_ip, server.host_nic_ip, container_ip)
    return tuple(dict.fromkeys((server.server_id, *(name for name in others if name and address_of(name)))))


# How to set the interface of each library. gloo and tensorpipe (torch's RPC) take a name. NCCL and HCCL match prefixes
# (eth1 matches eth10) unless the name starts with =. Sources: torch.distributed's documentation, NCCL's user guide
# (env.html), CANN's reference of environment variables.
INTERFACE_VARIABLES: Mapping[str, str] = {
    "GLOO_SOCKET_IFNAME": "{}",
    "TP_SOCKET_IFNAME": "{}",
    "NCCL_SOCKET_IFNAME": "={}",
    "HCCL_SOCKET_IFNAME": "={}",
}
_TRAFFIC = Path("/proc/net/dev")
# Constants of linux/netlink.h, linux/rtnetlink.h and linux/if_addr.h
_GET_ADDRESSES, _NEW_ADDRESS, _ERROR, _DONE = 22, 20, 2, 3
_REQUEST_DUMP = 0x301
_IFA_ADDRESS, _IFA_LOCAL, _IFA_LABEL = 1, 2, 3
_HEADER, _ADDRESS_MESSAGE, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBBBI"), struct.Struct("=HH")
_ANSWER_BYTES = 1 << 16
_PATIENCE_S = 5.0


@frozen
class Held:
    """An address of a network interface on this machine."""

    interface: str  # the interface itself: eth0 for an address labelled eth0:1
    label: str  # the name under which libraries find this address
    address: Address
    prefix: int  # length of the network prefix, in bits

    def shares_network(self, address: Address) -> bool:
        return address in ip_network((self.address, self.prefix), strict=False)


def held_addresses() -> tuple[Held, ...]:
    """Return all addresses of this machine's interfaces in the kernel's order, or () if they cannot be listed."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
            kernel.settimeout(_PATIENCE_S)
            kernel.send(_HEADER.pack(_HEADER.size + 1, _GET_ADDRESSES, _REQUEST_DUMP, 1, 0) + b"\0")
            return tuple(_answers(kernel))
    except OSError:
        return ()


def interface_of(
    called: Sequence[str],
    held: Sequence[Held],
    meanings: Mapping[str, frozenset[Address]],
    *,
    on_loopback: bool = False,
) -> str | None:
    """Return the interface that ranks should use to reach other servers, or None to let libraries choose.

    This is the interface with the server's address in the rank table. `called` are the server's names and addresses
    in the table; addresses take precedence. `meanings` are the resolved addresses of names. Returns None in these
    cases:

    * No interface has such an address, for example because of NAT or in a container.
    * Several interfaces have it.
    * The interface's first address, which libraries use, is in another network.
    * It is the loopback interface, unless all servers of the table are on it (`on_loopback`).
    """
    written = [frozenset({address}) for name in called if (address := address_of(name))]
    meant = [meanings[name] for name in called if meanings.get(name)]
    for wanted in (*written, *meant):
        if all(one.is_loopback for one in wanted):
            found = {one.interface for one in held if one.address.is_loopback}
            return found.pop() if on_loopback and len(found) == 1 else None
        having = [one for one in held if one.address in wanted]
        if having:
            interface = having[0].interface
            taken = next((one for one in held if one.label == interface), None)
            is_only = all(one.interface == interface for one in having)
            shares = taken and any(taken.shares_network(one.address) for one in having)
            return interface if is_only and shares else None
    return None


def are_on_loopback(servers: Iterable[Server]) -> bool:
    """Return True if all servers have loopback addresses, as in a test on one machine."""
    addresses = [(server.server_id, address_of(server.server_id)) for server in servers]
    return all(name == "localhost" or (address and address.is_loopback) for name, address in addresses)


def interface_variables(interface: str | None) -> dict[str, str]:
    return {} if interface is None else {name: how.format(interface) for name, how in INTERFACE_VARIABLES.items()}


def traffic(path: Path = _TRAFFIC) -> dict[str, int]:
    """Return the number of bytes that each interface has received and sent, or {} if it is unknown."""
    try:
        rows = [line.partition(":") for line in path.read_text(encoding="utf-8", errors="replace").splitlines()[2:]]
        # Fields: received bytes and seven other counters, then sent bytes
        return {name.strip(): int(fields[0]) + int(fields[8]) for name, _, rest in rows if (fields := rest.split())}
    except (OSError, ValueError, IndexError):
        return {}


# --- rtnetlink(7) ---


def _answers(kernel: socket.socket) -> Iterator[Held]:
    while True:
        for kind, message in _parts(kernel.recv(_ANSWER_BYTES), _HEADER):
            if kind in {_DONE, _ERROR}:
                return
            if kind == _NEW_ADDRESS and (held := _held(message)):
                yield held


def _held(message: bytes) -> Held | None:
    """Parse the address in an RTM_NEWADDR message. Return None if it is not an IP address of an interface."""
    family, prefix, _, _, index = _ADDRESS_MESSAGE.unpack_from(message)
    if family not in {socket.AF_INET, socket.AF_INET6}:
        return None
    attributes = dict(_parts(message[_ADDRESS_MESSAGE.size :], _ATTRIBUTE))
    packed = attributes.get(_IFA_LOCAL) or attributes.get(_IFA_ADDRESS)  # in a tunnel, the latter is the peer's
    try:
        interface = socket.if_indextoname(index)
    except OSError:  # the interface has just been removed
        return None
    label = os.fsdecode(attributes.get(_IFA_LABEL, b"").rstrip(b"\0"))
    return None if packed is None else Held(interface, label or interface, ip_address(packed), prefix)


def _parts(data: bytes, header: struct.Struct) -> Iterator[tuple[int, bytes]]:
    """Yield (kind, content) of each message or attribute in `data`. Each header starts with a length and a kind."""
    while len(data) >= header.size:
        length, kind, *_ = header.unpack_from(data)
        if length < header.size:
            return
        yield kind, data[header.size : length]
        data = data[(length + 3) & ~3 :]  # they are aligned
