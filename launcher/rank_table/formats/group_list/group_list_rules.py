"""Rules for the formats without a version: groups, instances and how many there are of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count

from launcher.rank_table.catalogue import Finding, rule, warning
from launcher.rank_table.model import GroupRow, InstanceRow, Table, entry_count, groups_of, read_decimal, text_at
from launcher.rank_table.positions import Pointer
from launcher.rank_table.profile import CHIP_INFOS
from launcher.rank_table.rules.shared import count_differs, name_unusable, repeated
from launcher.rank_table.table_format import GROUP_LISTS, Format

NAME_LIMIT = 127  # bytes of a group_name or pod_name
PARTS_OF_A_SERVER = frozenset({1, 2, 4, 8, 16})  # what HCCL takes for device_num / server_num
_LAB = frozenset({Format.LAB})
_CLOUD = frozenset({Format.CLOUD})


@rule("RT601", "group_count differs from the number of groups", formats=GROUP_LISTS)
def groupcount_differs(table: Table) -> Iterator[Finding]:
    """`group_count` repeats the length of `group_list`, as a string; HCCL refuses a table where they differ."""
    yield from count_differs((), table.fields, "group_count", entry_count(table.fields, "group_list"), "group")


@rule("RT602", "instance_count differs from the number of instances", formats=GROUP_LISTS)
def instancecount_differs(table: Table) -> Iterator[Finding]:
    """`instance_count` repeats the length of its group's `instance_list`, as a string; HCCL compares the two."""
    for group in groups_of(table):
        yield from count_differs(group.pointer, group.fields, "instance_count", group.instance_count, "instance")


@rule("RT603", "device_num or device_count differs from the number of devices", formats=GROUP_LISTS)
def devicecount_differs(table: Table) -> Iterator[Finding]:
    """`device_num`, in a cloud's table `device_count`, repeats how many devices its group has, as a string.

    HCCL counts the devices of all instances and refuses a table where the two differ.
    """
    key = "device_num" if table.format is Format.LAB else "device_count"
    for group in groups_of(table):
        yield from count_differs(group.pointer, group.fields, key, _device_count(table, group), "device")


@rule("RT604", "server_num differs from the number of servers", formats=_LAB)
def server_num_differs(table: Table) -> Iterator[Finding]:
    """`server_num` says on how many servers the instances of a group are: how many different `server_id` they have.

    HCCL adds it up over all groups, and refuses a table that names more or fewer servers.
    """
    for group in groups_of(table):
        sizes = _server_sizes(group)
        # Where servers must be alike, unequal ones are a fault already: a name that is mistyped makes a server too many.
        is_known = table.chip.equal_servers and len(set(sizes.values())) > 1 and _written(group, "server_num")
        if not is_known:
            yield from count_differs(group.pointer, group.fields, "server_num", len(sizes), "server")


@rule("RT605", "parts of servers that HCCL does not know", formats=_LAB, ascend_only=True)
def part_of_server_unknown(table: Table) -> Iterator[Finding]:
    """`device_num` divided by `server_num` is 1, 2, 4, 8 or 16.

    A 910 is stricter, and has a rule of its own; on a 300I Duo any number will do.
    """
    if table.chip.equal_servers:
        return
    for group in groups_of(table):
        devices, servers = _written(group, "device_num"), _written(group, "server_num")
        is_right = devices == _device_count(table, group) and servers == len(_server_sizes(group))
        if devices and servers and is_right and devices / servers not in PARTS_OF_A_SERVER:
            message = f"{devices} devices on {servers} servers: HCCL takes 1, 2, 4, 8 or 16 on each"
            hint = "use 1, 2, 4, 8 or 16 devices on each server"
            yield Finding((*group.pointer, "server_num"), message, hint)


@rule("RT606", "a server in two groups", formats=_LAB, ascend_only=True)
def server_in_two_groups(table: Table) -> Iterator[Finding]:
    """All instances of a server stand in one group: HCCL adds up `server_num`, and would count the server twice."""
    first: dict[str, tuple[GroupRow, InstanceRow]] = {}
    reported: set[str] = set()
    for group in groups_of(table):
        for instance in group.instances:
            name = instance.server_id
            if name is None or name in reported:
                continue
            earlier_group, earlier = first.setdefault(name, (group, instance))
            if earlier_group is not group:
                reported.add(name)
                message = f'server "{name[:64]}" has instances in another group already'
                hint = "put all instances of a server into one group"
                yield Finding((*instance.pointer, "server_id"), message, hint, (*earlier.pointer, "server_id"))


@rule("RT607", "an instance with several devices", formats=_LAB)
def instance_has_several_devices(table: Table) -> Iterator[Finding]:
    """In a lab's table each instance is one rank with one device; HCCL has no rank for a second one."""
    for group in groups_of(table):
        for instance in group.instances:
            count = instance.device_count or 0
            if count > 1:
                message = f"this instance has {count} devices and one rank_id"
                hint = "write one instance for each device, with a rank_id of its own"
                yield Finding((*instance.pointer, "devices"), message, hint)


@rule("RT611", "a group_name used twice", formats=GROUP_LISTS)
def group_name_repeated(table: Table) -> Iterator[Finding]:
    """Groups are distinguished by `group_name`, compared as text. It may be empty, but only once."""
    groups = groups_of(table)
    names = {text_at(group.fields, "group_name") for group in groups}
    named = ((text_at(group.fields, "group_name"), (number, group)) for number, group in enumerate(groups))
    for (number, group), (_, earlier) in repeated(one for one in named if one[0] is not None):
        free = next(f"group{number}" for number in count(number) if f"group{number}" not in names)
        message = f'group_name "{group.fields["group_name"][:40]}" is used twice'
        hint = f'write "{free}", which no group has'
        yield Finding((*group.pointer, "group_name"), message, hint, (*earlier.pointer, "group_name"))


@rule("RT612", "a pod_name used twice", formats=_CLOUD)
def pod_name_repeated(table: Table) -> Iterator[Finding]:
    """A process finds its ranks by the name of its pod, so no two pods may share one, in whatever group they are."""
    for (at, name), (earlier, _) in repeated((name, (at, name)) for at, name in _pod_names(table) if name):
        yield Finding(at, f'pod_name "{name[:64]}" is used twice', "write this pod's own name", earlier)


@rule("RT613", "a pod without a name", formats=_CLOUD)
def pod_name_empty(table: Table) -> Iterator[Finding]:
    """A process finds its ranks by the name of its pod; without one it has none, and HCCL refuses to start it."""
    for at, name in _pod_names(table):
        if not name:
            hint = "write the name that the pod's processes are given as RANK_ID"
            yield Finding(at, "pod_name is empty, so no process of this pod finds its rank", hint)


@rule("RT614", "a name that is too long", formats=GROUP_LISTS)
def name_too_long(table: Table) -> Iterator[Finding]:
    """group_name and pod_name have at most 127 bytes."""
    names = [((*group.pointer, "group_name"), text_at(group.fields, "group_name") or "") for group in groups_of(table)]
    for at, name in (*names, *(_pod_names(table) if table.format is Format.CLOUD else ())):
        yield from name_unusable(at, name, NAME_LIMIT, "write a shorter name; it only has to be unique")


@rule("RT615", "network cards that HCCL does not use", formats=_LAB, ascend_only=True)
def nic_location_unsupported(table: Table) -> Iterator[Finding]:
    """Devices talk over their own network cards: `para_plane_nic_location` is "device".

    "host", the servers' cards, is refused while the table is read, anything else at the latest after it.
    """
    location = text_at(table.fields, "para_plane_nic_location")
    if location is not None and location != "device":
        message = f'para_plane_nic_location is "{location[:20]}", HCCL uses the cards of the devices only'
        yield Finding(("para_plane_nic_location",), message, 'write "device"')


@warning("RT411", "chip_info names no chip", formats=_LAB)
def chip_info_unknown(table: Table) -> Iterator[Finding]:
    """`chip_info` says which chip a table was written for: "910" almost always.

    HCCL asks the driver instead. tlaunch takes it for the hardware to check for, where none is named.
    """
    written = text_at(table.fields, "chip_info")
    if written is not None and written not in CHIP_INFOS:
        hint = f'write "{table.chip.name if table.chip.name in CHIP_INFOS else "910"}"'
        yield Finding(("chip_info",), f'chip_info "{written[:20]}" is not one of {", ".join(CHIP_INFOS)}', hint)


@warning("RT412", "para_plane_nic_num differs from para_plane_nic_name", formats=_LAB)
def nic_num_differs(table: Table) -> Iterator[Finding]:
    """`para_plane_nic_num` repeats how many network cards `para_plane_nic_name` lists; HCCL reads neither any more."""
    cards = entry_count(table.fields, "para_plane_nic_name")
    yield from count_differs((), table.fields, "para_plane_nic_num", cards, "network card")


def _device_count(table: Table, group: GroupRow) -> int | None:
    """Return the number of devices that a group's count should have; None where an instance lists none.

    In a lab's table each instance is to have one, so a second one is that instance's fault and not the count's.
    """
    if table.format is Format.LAB:
        return group.instance_count
    counts = [instance.device_count for instance in group.instances]
    if None in counts or len(counts) != group.instance_count:
        return None
    return sum(count for count in counts if count is not None)


def _server_sizes(group: GroupRow) -> Counter[str]:
    """Return the number of instances of each server; empty where an instance names no server."""
    names = [instance.server_id for instance in group.instances if instance.server_id is not None]
    return Counter(names) if len(names) == group.instance_count else Counter()


def _written(group: GroupRow, key: str) -> int | None:
    return read_decimal(text_at(group.fields, key))


def _pod_names(table: Table) -> list[tuple[Pointer, str]]:
    return [
        ((*instance.pointer, "pod_name"), name)
        for group in groups_of(table)
        for instance in group.instances
        if (name := text_at(instance.fields, "pod_name")) is not None
    ]
