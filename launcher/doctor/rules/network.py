"""Interfaces, ports, and whether two servers of the table are one machine."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.core.records import HOST_RANK
from launcher.doctor.facts import Facts, Interface
from launcher.doctor.finding import Evidence, Finding, Severity, Topic, groups
from launcher.doctor.names import is_loopback

_PREFIXES = (
    "NCCL_SOCKET_IFNAME",
    "HCCL_SOCKET_IFNAME",
)  # their names are beginnings; ^ excludes, = means the whole name


def missing_interfaces(evidence: Evidence) -> Iterator[Finding]:
    for index, facts in sorted(evidence.facts.items()):
        names = [interface.name for interface in facts.interfaces if interface.up]
        for variable, value in facts.interface_variables:
            if not _fits(variable, value, facts, names):
                wanted = "an address" if variable == "HCCL_IF_IP" else "an interface that is up"
                yield Finding(
                    "no-such-interface", Topic.NETWORK, Severity.BREAKS, (index,),
                    f"{variable}={value} is not {wanted} of {evidence.named([index])}, where there are {', '.join(names)}",
                    "`ip addr` shows them; servers whose interfaces have different names need a value each",
                )  # fmt: skip


def mtu_differs(evidence: Evidence) -> Iterator[Finding]:
    """Of the interfaces that servers reach each other by. Large packets are then lost on some ways, small ones are not."""
    used = {index: _used_interface(evidence, index, facts) for index, facts in evidence.facts.items()}
    sizes = groups({index: str(one.mtu) for index, one in used.items() if one is not None and one.mtu is not None})
    if len(sizes) > 1:
        said = "; ".join(f"{size} on {evidence.named(servers)}" for size, servers in sizes.items())
        fewer = sorted(server for servers in list(sizes.values())[1:] for server in servers)
        yield Finding(
            "mtu-differs", Topic.NETWORK, Severity.RISKY, tuple(fewer), f"the MTU is {said}",
            "connections that stand and then hang are typical; `ip link set mtu` makes them equal",
        )  # fmt: skip


def ports_taken(evidence: Evidence) -> Iterator[Finding]:
    for index, facts in sorted(evidence.facts.items()):
        for port in facts.ports:
            if port.trouble is not None:
                yield Finding(
                    "port-taken", Topic.NETWORK, Severity.BREAKS, (index,),
                    f"port {port.number} cannot be used on {evidence.named([index])}: {port.trouble}",
                    f"`ss -ltnp 'sport = {port.number}'` shows by whom; or choose another with --master-port",
                )  # fmt: skip


def ports_given_away(evidence: Evidence) -> Iterator[Finding]:
    """Any connection may be given such a port at any time."""
    for index, facts in sorted(evidence.facts.items()):
        first, last = facts.first_ephemeral_port, facts.last_ephemeral_port
        for port in facts.ports:
            if first is not None and last is not None and port.trouble is None and first <= port.number <= last:
                yield Finding(
                    "port-may-be-taken", Topic.NETWORK, Severity.NOTE, (index,),
                    f"port {port.number} is among those that {evidence.name(index)} gives to any connection, "
                    f"{first}-{last}: it may be taken when a run starts",
                    "choose one outside with --master-port, or let tlaunch choose",
                )  # fmt: skip


def one_machine(evidence: Evidence) -> Iterator[Finding]:
    """Two servers that are one machine share its network; worse, they may share devices."""
    known = groups({index: facts.machine or f"unknown {index}" for index, facts in evidence.facts.items()})
    for servers in known.values():
        if len(servers) > 1:
            ids = [
                device.device_id
                for server in servers
                for device in evidence.cluster.servers[server].devices
                if device.device_id != HOST_RANK
            ]
            has_devices = any(_devices(evidence.facts[server]) for server in servers)
            shared = has_devices and len(ids) > len(set(ids))
            yield Finding(
                "one-machine", Topic.NETWORK, Severity.BREAKS if shared else Severity.RISKY, servers,
                f"{evidence.named(servers)} are one machine, {evidence.facts[servers[0]].hostname}"
                + (", and the table gives both the same devices" if shared else ""),
                "make them one server of the table, with all its devices; or look which names lead to the same machine",
            )  # fmt: skip


def _devices(facts: Facts) -> tuple[int, ...]:
    return facts.ascend_devices or facts.nvidia_devices


def _fits(variable: str, value: str, facts: Facts, names: list[str]) -> bool:
    """Whether some interface would be chosen. Syntax: NCCL's and HCCL's documentation of the variables."""
    if variable == "HCCL_IF_IP":
        return any(value in interface.addresses for interface in facts.interfaces)
    if variable not in _PREFIXES:
        return all(name in names for name in value.split(","))
    text = value.removeprefix("!").removeprefix("^")
    exact = text.startswith("=")
    wanted = [name.partition(":")[0] for name in text.removeprefix("=").split(",") if name]
    matched = {name for name in names for one in wanted if (name == one if exact else name.startswith(one))}
    excludes = value.startswith(("^", "!"))
    return bool(set(names) - matched) if excludes else bool(matched)


def _used_interface(evidence: Evidence, index: int, facts: Facts) -> Interface | None:
    """That of the address by which the table calls the server; else that of the default route."""
    meaning = facts.meaning(evidence.name(index))
    wanted = {address for address in meaning.addresses if not is_loopback(address)} if meaning else set()
    by_address = (one for one in facts.interfaces if wanted.intersection(one.addresses))
    by_route = (one for one in facts.interfaces if one.name == facts.default_interface)
    return next(by_address, None) or next(by_route, None)
