"""The addresses of this machine's network interfaces, and which interface ranks are to use to reach other servers.

Libraries choose an interface by themselves: gloo the one that the own hostname means, NCCL one called ib*, HCCL the first by
name. On a machine with several networks that need not be the network of the rank table's addresses. What is read here is
what getifaddrs(3) reads, in the same order, as libraries look for the first address of an interface.
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


# How each library gets an interface. gloo and tensorpipe (torch's RPC) take a name; of NCCL and HCCL names are
# beginnings (eth1 is eth10 too) unless = stands before them. Sources: torch.distributed's documentation, NCCL's user
# guide (env.html), CANN's reference of environment variables.
INTERFACE_VARIABLES: Mapping[str, str] = {
    "GLOO_SOCKET_IFNAME": "{}",
    "TP_SOCKET_IFNAME": "{}",
    "NCCL_SOCKET_IFNAME": "={}",
    "HCCL_SOCKET_IFNAME": "={}",
}
_TRAFFIC = Path("/proc/net/dev")
# Of linux/netlink.h, linux/rtnetlink.h and linux/if_addr.h
_GET_ADDRESSES, _NEW_ADDRESS, _ERROR, _DONE = 22, 20, 2, 3
_REQUEST_DUMP = 0x301
_IFA_ADDRESS, _IFA_LOCAL, _IFA_LABEL = 1, 2, 3
_HEADER, _ADDRESS_MESSAGE, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBBBI"), struct.Struct("=HH")
_ANSWER_BYTES = 1 << 16
_PATIENCE_S = 5.0


@frozen
class Held:
    """An address that an interface of this machine has."""

    interface: str  # the interface itself: eth0 where the address is labelled eth0:1
    label: str  # the name by which libraries find this address
    address: Address
    prefix: int  # bits of its network

    def shares_network(self, address: Address) -> bool:
        return address in ip_network((self.address, self.prefix), strict=False)


def held_addresses() -> tuple[Held, ...]:
    """Return all addresses of this machine's interfaces, in the kernel's order; empty if it does not list them."""
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
    """Return the interface by which ranks of this server are to reach the others, or None to let libraries choose.

    It is the one that has what the table calls the server by: of `called` an address, else what a name means here
    (`meanings`). None where no interface has such an address (it is translated, or a container's host has it), where
    several have it, and where the first address of the interface, which libraries take, is of another network. Loopback
    leads to no other server, unless all servers of the table are on it (`on_loopback`), as they are on one machine.
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
    """Return True if all servers of a table are on the loopback interface, as in a trial on one machine."""
    addresses = [(server.server_id, address_of(server.server_id)) for server in servers]
    return all(name == "localhost" or (address and address.is_loopback) for name, address in addresses)


def interface_variables(interface: str | None) -> dict[str, str]:
    return {} if interface is None else {name: how.format(interface) for name, how in INTERFACE_VARIABLES.items()}


def traffic(path: Path = _TRAFFIC) -> dict[str, int]:
    """Return the bytes that each interface has received and sent in all; empty if the system does not count them."""
    try:
        rows = [line.partition(":") for line in path.read_text(encoding="utf-8", errors="replace").splitlines()[2:]]
        # Fields: bytes and seven more received, then bytes sent
        return {name.strip(): int(fields[0]) + int(fields[8]) for name, _, rest in rows if (fields := rest.split())}
    except (OSError, ValueError, IndexError):
        return {}


# --- rtnetlink(7) ---


def _answers(kernel: socket.socket) -> Iterator[Held]:
    while True:
        data = kernel.recv(_ANSWER_BYTES)
        while data:
            length, kind, _, _, _ = _HEADER.unpack_from(data)
            if kind in {_DONE, _ERROR} or length < _HEADER.size:
                return
            if kind == _NEW_ADDRESS and (held := _held(data[_HEADER.size : length])):
                yield held
            data = data[_aligned(length) :]


def _held(message: bytes) -> Held | None:
    """Return the address of one message, or None. Of a tunnel, IFA_LOCAL is this end and IFA_ADDRESS the other one."""
    family, prefix, _, _, index = _ADDRESS_MESSAGE.unpack_from(message)
    if family not in {socket.AF_INET, socket.AF_INET6}:
        return None
    attributes = dict(_attributes(message[_ADDRESS_MESSAGE.size :]))
    packed = attributes.get(_IFA_LOCAL) or attributes.get(_IFA_ADDRESS)
    try:
        interface = socket.if_indextoname(index)
    except OSError:  # it has just gone
        return None
    label = os.fsdecode(attributes.get(_IFA_LABEL, b"").rstrip(b"\0"))
    return None if packed is None else Held(interface, label or interface, ip_address(packed), prefix)


def _attributes(data: bytes) -> Iterable[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        if length < _ATTRIBUTE.size:
            return
        yield kind, data[_ATTRIBUTE.size : length]
        data = data[_aligned(length) :]


def _aligned(length: int) -> int:
    return (length + 3) & ~3
