"""Rules for the formats without a version: groups, instances and their counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count

from launcher.rank_table.catalogue import Finding, rule, warning
from launcher.rank_table.model import GroupRow, InstanceRow, Table, entry_count, read_decimal, text_at
from launcher.rank_table.positions import Pointer
from launcher.rank_table.profile import CHIP_INFOS
from launcher.rank_table.rules.shared import count_differs, name_unusable, repeated
from launcher.rank_table.table_format import GROUP_LISTS, Format

NAME_LIMIT = 127  # bytes of a group_name or pod_name
PARTS_OF_A_SERVER = frozenset({1, 2, 4, 8, 16})  # allowed values of device_num / server_num
_LAB = frozenset({Format.LAB})
_CLOUD = frozenset({Format.CLOUD})


@rule("RT601", "group_count differs from the number of groups", formats=GROUP_LISTS)
def groupcount_differs(table: Table) -> Iterator[Finding]:
    """`group_count` must be the length of `group_list`, written as a string. HCCL refuses the table otherwise."""
    yield from count_differs((), table.fields, "group_count", entry_count(table.fields, "group_list"), "group")


@rule("RT602", "instance_count differs from the number of instances", formats=GROUP_LISTS)
def instancecount_differs(table: Table) -> Iterator[Finding]:
    """`instance_count` must be the length of the group's `instance_list`, written as a string. HCCL checks this."""
    for group in table.groups:
        yield from count_differs(group.pointer, group.fields, "instance_count", group.instance_count, "instance")


@rule("RT603", "device_num or device_count differs from the number of devices", formats=GROUP_LISTS)
def devicecount_differs(table: Table) -> Iterator[Finding]:
    """`device_num` (`device_count` in a legacy-cloud table) is the number of devices of a group, as a string.

    HCCL counts the devices of all instances, and refuses the table if the sum differs from this number.
    """
    key = "device_num" if table.format is Format.LAB else "device_count"
    for group in table.groups:
        yield from count_differs(group.pointer, group.fields, key, _device_count(table, group), "device")


@rule("RT604", "server_num differs from the number of servers", formats=_LAB)
def server_num_differs(table: Table) -> Iterator[Finding]:
    """`server_num` must be the number of different values of `server_id` in the group.

    HCCL adds up the `server_num` of all groups, and refuses a table with more or fewer servers than this sum.
    """
    for group in table.groups:
        sizes = _server_sizes(group)
        # If servers must have equal sizes, unequal ones are already reported: a mistyped name adds a server.
        if not (table.chip.equal_servers and len(set(sizes.values())) > 1 and _written(group, "server_num")):
            yield from count_differs(group.pointer, group.fields, "server_num", len(sizes), "server")


@rule("RT605", "a number of devices per server that HCCL does not support", formats=_LAB, ascend_only=True)
def part_of_server_unknown(table: Table) -> Iterator[Finding]:
    """The number of devices per server, `device_num` divided by `server_num`, must be 1, 2, 4, 8 or 16.

    A 910 does not allow 16 devices (see RT341). A 300I Duo allows any number.
    """
    if table.chip.equal_servers:
        return
    for group in table.groups:
        devices, servers = _written(group, "device_num"), _written(group, "server_num")
        is_right = devices == _device_count(table, group) and servers == len(_server_sizes(group))
        if devices and servers and is_right and devices / servers not in PARTS_OF_A_SERVER:
            message = f"{devices} devices on {servers} servers: HCCL allows 1, 2, 4, 8 or 16 on each"
            yield Finding((*group.pointer, "server_num"), message, "use 1, 2, 4, 8 or 16 devices on each server")


@rule("RT606", "a server in two groups", formats=_LAB, ascend_only=True)
def server_in_two_groups(table: Table) -> Iterator[Finding]:
    """All instances of a server must be in one group. Otherwise HCCL counts the server once for each group."""
    first: dict[str, tuple[GroupRow, InstanceRow]] = {}
    reported: set[str] = set()
    for group in table.groups:
        for instance in group.instances:
            name = instance.server_id
            if name is None or name in reported:
                continue
            earlier_group, earlier = first.setdefault(name, (group, instance))
            if earlier_group is not group:
                reported.add(name)
                message = f'server "{name[:64]}" also has instances in another group'
                hint = "put all instances of a server into one group"
                yield Finding((*instance.pointer, "server_id"), message, hint, (*earlier.pointer, "server_id"))


@rule("RT607", "an instance with several devices", formats=_LAB)
def instance_has_several_devices(table: Table) -> Iterator[Finding]:
    """In a legacy-lab table, each instance has only one rank. HCCL cannot assign a rank to a second device."""
    for group in table.groups:
        for instance in group.instances:
            count = instance.device_count or 0
            if count > 1:
                message = f"this instance has {count} devices and one rank_id"
                hint = "write one instance for each device, each with a unique rank_id"
                yield Finding((*instance.pointer, "devices"), message, hint)


@rule("RT611", "a group_name used twice", formats=GROUP_LISTS)
def group_name_repeated(table: Table) -> Iterator[Finding]:
    """`group_name` identifies a group and must be unique. At most one group may have an empty name."""
    groups = table.groups
    names = {text_at(group.fields, "group_name") for group in groups}
    named = ((text_at(group.fields, "group_name"), (number, group)) for number, group in enumerate(groups))
    for (number, group), (_, earlier) in repeated(one for one in named if one[0] is not None):
        free = next(f"group{number}" for number in count(number) if f"group{number}" not in names)
        message = f'group_name "{group.fields["group_name"][:40]}" is used twice'
        hint = f'write "{free}", which no group has'
        yield Finding((*group.pointer, "group_name"), message, hint, (*earlier.pointer, "group_name"))


@rule("RT612", "a pod_name used twice", formats=_CLOUD)
def pod_name_repeated(table: Table) -> Iterator[Finding]:
    """Each process finds its ranks by the name of its pod. So no two pods of a table may have the same name."""
    for (at, name), (earlier, _) in repeated((name, (at, name)) for at, name in _pod_names(table) if name):
        yield Finding(at, f'pod_name "{name[:64]}" is used twice', "write this pod's own name", earlier)


@rule("RT613", "a pod without a name", formats=_CLOUD)
def pod_name_empty(table: Table) -> Iterator[Finding]:
    """Each process finds its ranks by the name of its pod. HCCL refuses to start if the pod of a process has no name."""
    for at, name in _pod_names(table):
        if not name:
            hint = "write the name that the pod's processes have in RANK_ID"
            yield Finding(at, "pod_name is empty, so the pod's processes cannot find their ranks", hint)


@rule("RT614", "a name that is too long", formats=GROUP_LISTS)
def name_too_long(table: Table) -> Iterator[Finding]:
    """group_name and pod_name may have at most 127 bytes each."""
    names = [((*group.pointer, "group_name"), text_at(group.fields, "group_name") or "") for group in table.groups]
    for at, name in (*names, *(_pod_names(table) if table.format is Format.CLOUD else ())):
        yield from name_unusable(at, name, NAME_LIMIT, "write a shorter name; it only has to be unique")


@rule("RT615", "network cards that HCCL does not use", formats=_LAB, ascend_only=True)
def nic_location_unsupported(table: Table) -> Iterator[Finding]:
    """Devices communicate over their own network cards, so `para_plane_nic_location` must be "device".

    HCCL refuses "host" (the servers' network cards) when it reads the table. It refuses any other value later.
    """
    location = text_at(table.fields, "para_plane_nic_location")
    if location is not None and location != "device":
        message = f'para_plane_nic_location is "{location[:20]}", but HCCL uses only the devices\' cards'
        yield Finding(("para_plane_nic_location",), message, 'write "device"')


@warning("RT411", "chip_info names no chip", formats=_LAB)
def chip_info_unknown(table: Table) -> Iterator[Finding]:
    """`chip_info` names the chip that a table was written for, usually "910".

    HCCL ignores this key and asks the driver. Without `--chip`, tlaunch checks the table for the chip in `chip_info`.
    """
    written = text_at(table.fields, "chip_info")
    if written is not None and written not in CHIP_INFOS:
        hint = f'write "{table.chip.name if table.chip.name in CHIP_INFOS else "910"}"'
        yield Finding(("chip_info",), f'chip_info "{written[:20]}" is not one of {", ".join(CHIP_INFOS)}', hint)


@warning("RT412", "para_plane_nic_num differs from para_plane_nic_name", formats=_LAB)
def nic_num_differs(table: Table) -> Iterator[Finding]:
    """`para_plane_nic_num` is the number of network cards in `para_plane_nic_name`. Current HCCL ignores both keys."""
    cards = entry_count(table.fields, "para_plane_nic_name")
    yield from count_differs((), table.fields, "para_plane_nic_num", cards, "network card")


def _device_count(table: Table, group: GroupRow) -> int | None:
    """Return the correct device count of a group, or None if an instance has no device list.

    Each instance of a legacy-lab table counts as one device: a second device is a fault of the instance, not of the
    count.
    """
    if table.format is Format.LAB:
        return group.instance_count
    counts = [instance.device_count for instance in group.instances]
    if None in counts or len(counts) != group.instance_count:
        return None
    return sum(count for count in counts if count is not None)


def _server_sizes(group: GroupRow) -> Counter[str]:
    """Count the instances of each server. The counter is empty if any instance does not name its server."""
    names = [instance.server_id for instance in group.instances if instance.server_id is not None]
    return Counter(names) if len(names) == group.instance_count else Counter()


def _written(group: GroupRow, key: str) -> int | None:
    return read_decimal(text_at(group.fields, key))


def _pod_names(table: Table) -> list[tuple[Pointer, str]]:
    return [
        ((*instance.pointer, "pod_name"), name)
        for group in table.groups
        for instance in group.instances
        if (name := text_at(instance.fields, "pod_name")) is not None
    ]
