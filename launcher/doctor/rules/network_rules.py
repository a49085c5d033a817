"""Rules about interfaces, ports, and servers of the table that are the same machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from launcher.core.machine.interfaces import Address, addresses_of
from launcher.core.records import HOST_RANK
from launcher.doctor.facts import Facts, Interface
from launcher.doctor.finding import Evidence, Finding, Rule, Severity, Topic, groups, minority
from launcher.doctor.network_facts import is_loopback

# Values of these variables are prefixes of names; ^ excludes, = requires the full name.
_PREFIXES = ("NCCL_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME")


def chosen_interfaces(evidence: Evidence) -> Iterator[Finding]:
    """Check that interfaces chosen by environment variables exist, and that they lead to the other servers."""
    for index, facts in evidence.answers():
        for variable, value in facts.interface_variables:
            if (finding := _judge_choice(evidence, index, variable, value)) is not None:
                yield finding


def _judge_choice(evidence: Evidence, index: int, variable: str, value: str) -> Finding | None:
    facts = evidence.facts[index]
    chosen = _chosen(variable, value, facts)
    outer = [
        one.name for one in chosen if one.name != "lo" and not (one.addresses and all(map(is_loopback, one.addresses)))
    ]
    used = _by_table(evidence, index, facts)
    if not chosen:
        wanted = "address" if variable == "HCCL_IF_IP" else "interface that is up"
        names = ", ".join(interface.name for interface in facts.interfaces if interface.up)
        return Finding(
            "no-such-interface", Topic.NETWORK, Severity.BREAKS, (index,),
            f"{variable}={value} matches no {wanted} on {evidence.named([index])}, which has {names}",
            "choose one that `ip addr` shows; if interface names differ, set a value per server",
        )  # fmt: skip
    if not evidence.has_several_servers:
        return None
    if not outer:
        return Finding(
            "loopback-interface", Topic.NETWORK, Severity.BREAKS, (index,),
            f"{variable}={value} chooses loopback on {evidence.named([index])}, which other servers cannot reach",
            "choose the interface with the address in the table, as `ip addr` shows it",
        )  # fmt: skip
    if used is None or used.name in outer:
        return None
    return Finding(
        "other-interface", Topic.NETWORK, Severity.RISKY, (index,),
        f"{variable}={value} chooses {', '.join(outer)} on {evidence.named([index])}; its address in the table "
        f"belongs to {used.name}, and only that one was tested",
        "check that this interface connects all servers; a container bridge (docker0) does not",
    )  # fmt: skip


def carried_by(carriers: Sequence[str], evidence: Evidence) -> tuple[str, ...]:
    """Return one used interface per server: if possible the one with its address in the table, else the busiest one."""
    found = []
    for index, names in enumerate(carriers):
        wanted, each = _having_address(evidence, index), names.split(",")
        found.append(next((name for name in each if name in wanted), each[0]))
    return tuple(found)


def unexpected_interface(measured: Sequence[str], evidence: Evidence) -> Iterator[Finding]:
    """Report servers that did not send data over the interface that has their address in the table.

    `measured` names the interface that each server used. `chosen_interfaces` checks interfaces that variables choose.
    """
    said = {}
    for index, name in enumerate(measured):
        wanted, facts = _having_address(evidence, index), evidence.facts.get(index)
        if facts is None or not wanted or not name or name in wanted:
            continue
        if name not in {one.name for each in facts.interface_variables for one in _chosen(*each, facts)}:
            said[index] = f"{name}, not by {', '.join(wanted)}, which has its address in the table"
    for way, servers in groups(said).items():
        yield Finding(
            "other-network", Topic.NETWORK, Severity.RISKY, servers,
            f"data of ranks on {evidence.named(servers)} was sent by {way}",
            "use --env to set GLOO_, NCCL_, HCCL_ and TP_SOCKET_IFNAME: tlaunch sets them only if exactly one interface "
            "has the address as its first one",
        )  # fmt: skip


def mtu_differs(evidence: Evidence) -> Iterator[Finding]:
    """Check that the interfaces between servers have the same MTU. If they do not, large packets may be lost."""
    used = {
        index: _by_table(evidence, index, facts)
        or next((one for one in facts.interfaces if one.name == facts.default_interface), None)
        for index, facts in evidence.facts.items()
    }
    sizes = groups({index: one.mtu for index, one in used.items() if one is not None and one.mtu is not None})
    if len(sizes) > 1:
        yield Finding(
            "mtu-differs", Topic.NETWORK, Severity.RISKY, minority(sizes), f"the MTU differs: {evidence.each(sizes)}",
            "set the same MTU with `ip link set mtu`, since connections may hang after they are established",
        )  # fmt: skip


def ports(evidence: Evidence) -> Iterator[Finding]:
    """Check that the chosen ports are free, and are not in the kernel's ephemeral port range."""
    for index, facts in evidence.answers():
        first, last = facts.first_ephemeral_port, facts.last_ephemeral_port
        for port in facts.ports:
            if port.trouble is not None:
                yield Finding(
                    "port-taken", Topic.NETWORK, Severity.BREAKS, (index,),
                    f"port {port.number} cannot be used on {evidence.named([index])}: {port.trouble}",
                    f"find its user with `ss -ltnp 'sport = {port.number}'`, or choose another with --master-port",
                )  # fmt: skip
            elif first is not None and last is not None and first <= port.number <= last:
                yield Finding(
                    "port-may-be-taken", Topic.NETWORK, Severity.NOTE, (index,),
                    f"port {port.number} is in the range of automatic ports of {evidence.name(index)}, {first}-{last}: "
                    "another program may use it when a run starts",
                    "choose a port outside the range with --master-port, or let tlaunch choose",
                )  # fmt: skip


def one_machine(evidence: Evidence) -> Iterator[Finding]:
    """Check that no two servers are the same machine, because they would share its network and perhaps its devices."""
    known = groups({index: facts.machine or f"unknown {index}" for index, facts in evidence.facts.items()})
    for servers in (servers for servers in known.values() if len(servers) > 1):
        devices = [device.device_id for index in servers for device in evidence.cluster.servers[index].devices]
        ids = [device for device in devices if device != HOST_RANK]
        facts = [evidence.facts[server] for server in servers]
        shared = any(one.ascend_devices or one.nvidia_devices for one in facts) and len(ids) > len(set(ids))
        yield Finding(
            "one-machine", Topic.NETWORK, Severity.BREAKS if shared else Severity.RISKY, servers,
            f"{evidence.named(servers)} are the same machine, {facts[0].hostname}"
            + (", with the same devices in the table" if shared else ""),
            "make them one server of the table, with all its devices, or check the names for a wrong address",
        )  # fmt: skip


RULES: tuple[Rule, ...] = (chosen_interfaces, mtu_differs, ports, one_machine)


def _chosen(variable: str, value: str, facts: Facts) -> list[Interface]:
    """Return the interfaces that a variable with this value selects. The value has the syntax of NCCL or HCCL."""
    if variable == "HCCL_IF_IP":
        wanted_addresses = addresses_of([value])
        return [one for one in facts.interfaces if wanted_addresses & addresses_of(one.addresses)]
    up = {interface.name: interface for interface in facts.interfaces if interface.up}
    if variable not in _PREFIXES:
        wanted = value.split(",")
        return [up[name] for name in wanted] if all(name in up for name in wanted) else []
    text = value.removeprefix("!").removeprefix("^")
    exact = text.startswith("=")
    wanted = [name.partition(":")[0] for name in text.removeprefix("=").split(",") if name]
    matched = {name for name in up for one in wanted if (name == one if exact else name.startswith(one))}
    excludes = value.startswith(("^", "!"))
    return [interface for name, interface in up.items() if (name in matched) is not excludes]


def _by_table(evidence: Evidence, index: int, facts: Facts) -> Interface | None:
    wanted = _outer(evidence.name(index), facts)
    return next((one for one in facts.interfaces if wanted & addresses_of(one.addresses)), None)


def _outer(server_id: str, facts: Facts) -> frozenset[Address]:
    """Return the addresses, other than loopback, to which a server resolves its own name."""
    resolution = facts.resolution(server_id)
    return addresses_of(one for one in resolution.addresses if not is_loopback(one)) if resolution else frozenset()


def _having_address(evidence: Evidence, index: int) -> tuple[str, ...]:
    """Return a server's interfaces that have the address listed for the server in the table."""
    facts = evidence.facts.get(index)
    if facts is None:
        return ()
    if facts.ranks_interface is not None:
        return (facts.ranks_interface,)
    wanted = _outer(evidence.name(index), facts)
    names = (one.name.partition(":")[0] for one in facts.interfaces if wanted & addresses_of(one.addresses))
    return tuple(dict.fromkeys(names))
