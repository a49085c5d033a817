"""Interfaces, ports, and whether two servers of the table are one machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from launcher.core.interfaces import Address, addresses_of
from launcher.core.records import HOST_RANK
from launcher.doctor.facts import Facts, Interface
from launcher.doctor.finding import Evidence, Finding, Severity, Topic, all_but_most, groups
from launcher.doctor.names import is_loopback

_PREFIXES = (
    "NCCL_SOCKET_IFNAME",
    "HCCL_SOCKET_IFNAME",
)  # their names are beginnings; ^ excludes, = means the whole name


def missing_interfaces(evidence: Evidence) -> Iterator[Finding]:
    for index, facts in sorted(evidence.facts.items()):
        names = [interface.name for interface in facts.interfaces if interface.up]
        for variable, value in facts.interface_variables:
            if not _chosen(variable, value, facts):
                wanted = "an address" if variable == "HCCL_IF_IP" else "an interface that is up"
                yield Finding(
                    "no-such-interface", Topic.NETWORK, Severity.BREAKS, (index,),
                    f"{variable}={value} is not {wanted} of {evidence.named([index])}, where there are {', '.join(names)}",
                    "`ip addr` shows them; servers whose interfaces have different names need a value each",
                )  # fmt: skip


def unfit_interfaces(evidence: Evidence) -> Iterator[Finding]:
    """Those that are there, but lead to no other server, or to others than were tried."""
    if not evidence.has_several_servers:
        return
    for index, facts in sorted(evidence.facts.items()):
        used = _by_table(evidence, index, facts)
        for variable, value in facts.interface_variables:
            chosen = _chosen(variable, value, facts)
            outer = [interface for interface in chosen if not _is_loopback(interface)]
            if chosen and not outer:
                yield Finding(
                    "loopback-interface", Topic.NETWORK, Severity.BREAKS, (index,),
                    f"{variable}={value} chooses loopback on {evidence.named([index])}: what listens there is reached by "
                    "no other server",
                    "`ip addr` shows which interface has the address that the table gives",
                )  # fmt: skip
            elif chosen and used is not None and used.name not in {interface.name for interface in outer}:
                yield Finding(
                    "other-interface", Topic.NETWORK, Severity.RISKY, (index,),
                    f"{variable}={value} chooses {', '.join(interface.name for interface in outer)} on "
                    f"{evidence.named([index])}; its address in the table is {used.name}'s, and only there was it tried "
                    "whether other servers reach it",
                    "fine where that is a network between all servers; a bridge of containers (docker0) is none",
                )  # fmt: skip


def carried_by(carriers: Sequence[str], evidence: Evidence) -> tuple[str, ...]:
    """Returns of each server the one of its `carriers` that has its address in the table, else the busiest."""
    found = []
    for index, names in enumerate(carriers):
        wanted, each = _having_address(evidence, index), names.split(",")
        found.append(next((name for name in each if name in wanted), each[0]))
    return tuple(found)


def elsewhere(measured: Sequence[str], evidence: Evidence) -> Iterator[Finding]:
    """Of servers whose data went by another interface than the one that has their address. `measured`: of each server.

    Of an interface that a variable chooses another finding tells already.
    """
    said: dict[int, str | None] = {}
    for index, name in enumerate(measured):
        wanted, told = _having_address(evidence, index), evidence.facts.get(index)
        if told is None or not wanted or not name or name in wanted:
            continue
        chosen = {one.name for each in told.interface_variables for one in _chosen(*each, told)}
        if name not in chosen:
            said[index] = f"{name}, and not by {', '.join(wanted)}, which has its address in the table"
    for way, servers in groups(said).items():
        yield Finding(
            "other-network", Topic.NETWORK, Severity.RISKY, servers,
            f"data of ranks on {evidence.named(servers)} went by {way}",
            "tlaunch sets GLOO_, NCCL_, HCCL_ and TP_SOCKET_IFNAME where one interface alone has the address, as its first "
            "one; --env sets them otherwise",
        )  # fmt: skip


def mtu_differs(evidence: Evidence) -> Iterator[Finding]:
    """Of the interfaces that servers reach each other by. Large packets are then lost on some ways, small ones are not."""
    used = {index: _used_interface(evidence, index, facts) for index, facts in evidence.facts.items()}
    sizes = groups({index: str(one.mtu) for index, one in used.items() if one is not None and one.mtu is not None})
    if len(sizes) > 1:
        said = "; ".join(f"{size} on {evidence.named(servers)}" for size, servers in sizes.items())
        yield Finding(
            "mtu-differs", Topic.NETWORK, Severity.RISKY, all_but_most(sizes), f"the MTU is {said}",
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


def _chosen(variable: str, value: str, facts: Facts) -> list[Interface]:
    """Those that the library would take. Syntax: NCCL's and HCCL's documentation of the variables."""
    if variable == "HCCL_IF_IP":
        wanted_addresses = addresses_of([value])
        return [one for one in facts.interfaces if wanted_addresses & addresses_of(one.addresses)]
    up = {interface.name: interface for interface in facts.interfaces if interface.up}
    return [up[name] for name in _chosen_names(variable, value, list(up))]


def _chosen_names(variable: str, value: str, names: list[str]) -> list[str]:
    if variable not in _PREFIXES:
        wanted = value.split(",")
        return wanted if all(name in names for name in wanted) else []
    text = value.removeprefix("!").removeprefix("^")
    exact = text.startswith("=")
    wanted = [name.partition(":")[0] for name in text.removeprefix("=").split(",") if name]
    matched = {name for name in names for one in wanted if (name == one if exact else name.startswith(one))}
    excludes = value.startswith(("^", "!"))
    return [name for name in names if (name in matched) is not excludes]


def _used_interface(evidence: Evidence, index: int, facts: Facts) -> Interface | None:
    """That of the address by which the table calls the server; else that of the default route."""
    by_route = (one for one in facts.interfaces if one.name == facts.default_interface)
    return _by_table(evidence, index, facts) or next(by_route, None)


def _by_table(evidence: Evidence, index: int, facts: Facts) -> Interface | None:
    wanted = _outer(evidence.name(index), facts)
    return next((one for one in facts.interfaces if wanted & addresses_of(one.addresses)), None)


def _outer(server_id: str, facts: Facts) -> frozenset[Address]:
    """What the name means on its own server, but for loopback."""
    meaning = facts.meaning(server_id)
    return addresses_of(one for one in meaning.addresses if not is_loopback(one)) if meaning else frozenset()


def _having_address(evidence: Evidence, index: int) -> tuple[str, ...]:
    """Interfaces that have the address by which the table calls a server; eth0 where the address is labelled eth0:1."""
    facts = evidence.facts.get(index)
    if facts is None:
        return ()
    if facts.ranks_interface is not None:
        return (facts.ranks_interface,)
    wanted = _outer(evidence.name(index), facts)
    names = (one.name.partition(":")[0] for one in facts.interfaces if wanted & addresses_of(one.addresses))
    return tuple(dict.fromkeys(names))


def _is_loopback(interface: Interface) -> bool:
    return interface.name == "lo" or (bool(interface.addresses) and all(map(is_loopback, interface.addresses)))
