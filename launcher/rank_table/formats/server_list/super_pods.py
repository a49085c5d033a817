"""Rules for super pods of v1.2 tables: A3 servers with direct links between them.

HCCL reads super_pod_list only on an A3, so these rules do not apply to other chips.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count as count_from
from itertools import pairwise

from launcher.rank_table.catalogue import Finding, rule, warning
from launcher.rank_table.model import DeviceRow, PodRow, ServerRow, Table, read_decimal, text_at
from launcher.rank_table.positions import Pointer
from launcher.rank_table.rules.shared import repeated
from launcher.rank_table.table_format import SERVER_LISTS, Format

POD_TABLES = frozenset({Format.V1_2})
POD_NAME_LIMIT = 127  # bytes
NO_DEVICE = 0xFFFFFFFF  # HCCL's value for a missing super_device_id
_SDID = "the SDID that `npu-smi info -t spod-info -i CARD -c CHIP` shows on that server"


@rule("RT345", "a super_device_id that cannot be read", formats=POD_TABLES, ascend_only=True)
def super_device_unreadable(table: Table) -> Iterator[Finding]:
    """super_device_id is optional. If present, it is a decimal number of at most 32 bits, written as a string.

    HCCL reads the largest 32-bit number as "no device", and refuses it if the table has super pods.
    """
    for device in table.devices:
        written = text_at(device.fields, "super_device_id")
        if written is None:
            continue
        number = read_decimal(written)
        if number is None:
            message = f'super_device_id is "{written[:20]}", not a decimal number'
            yield Finding(device.at("super_device_id"), message, f"write {_SDID}")
        elif number == NO_DEVICE and _pods(table):
            message = f'super_device_id {number} means "no device" to HCCL, but the table has super pods'
            yield Finding(device.at("super_device_id"), message, f"write {_SDID}")


@rule("RT346", "a device of a super pod without super_device_id", formats=POD_TABLES, ascend_only=True)
def super_device_missing(table: Table) -> Iterator[Finding]:
    """If the table has super pods, every device needs a super_device_id: its number within its super pod.

    If the table has no super_pod_list, super_device_id is optional, and HCCL connects servers as for a v1.0 table.
    """
    for device in table.devices if _pods(table) else ():
        if "super_device_id" not in device.fields:
            message = "this device has no super_device_id, but the table has super pods"
            yield Finding(device.at(), message, f'add "super_device_id": {_SDID}')


@rule("RT347", "a super_device_id used twice in one super pod", formats=POD_TABLES, ascend_only=True)
def super_device_repeated(table: Table) -> Iterator[Finding]:
    """A super_device_id identifies a device within its super pod. Different super pods may use the same numbers."""
    placed: list[tuple[tuple[Pointer, int], DeviceRow]] = []  # devices whose number in a super pod is known
    for server in table.servers if _pods(table) else ():
        pod_of_server = table.pod_of_server.get(server.server_id)
        for one in server.devices if pod_of_server is not None else ():
            number = read_decimal(one.fields.get("super_device_id"))
            if pod_of_server is not None and number is not None and number != NO_DEVICE:
                placed.append(((pod_of_server.pointer, number), one))
    for device, earlier in repeated(placed):
        pod = table.pod_of_server[table.servers[device.server].server_id]
        number = read_decimal(device.fields["super_device_id"])
        message = f'super_device_id {number} is used twice in super pod "{pod.name}"'
        yield Finding(device.at("super_device_id"), message, f"write {_SDID}", earlier.at("super_device_id"))


@rule("RT348", "a super pod without a usable name", formats=POD_TABLES, ascend_only=True)
def pod_name_unusable(table: Table) -> Iterator[Finding]:
    """super_pod_id may be any name of 1 to 127 bytes: the super pod's hardware number, or a custom name."""
    names = _free_names(table)
    for pod in _pods(table):
        length = None if pod.super_pod_id is None else len(pod.super_pod_id.encode(errors="surrogatepass"))
        if length == 0:
            yield Finding(pod.at("super_pod_id"), "super_pod_id is empty", f'write "{next(names)}", or any name')
        elif length is not None and length > POD_NAME_LIMIT:
            message = f"super_pod_id has {length} bytes, but HCCL allows {POD_NAME_LIMIT}"
            hint = f'write "{next(names)}", or a shorter name'
            yield Finding(pod.at("super_pod_id"), message, hint)


@rule("RT349", "a super_pod_id used twice", formats=POD_TABLES, ascend_only=True)
def pod_name_repeated(table: Table) -> Iterator[Finding]:
    """super_pod_id identifies a super pod and must be unique. List all servers of a super pod in one entry."""
    names = _free_names(table)
    for pod, earlier in repeated((pod.super_pod_id, pod) for pod in _pods(table) if pod.super_pod_id):
        message = f'super_pod_id "{pod.name}" is used twice'
        hint = f'write "{next(names)}", or put the servers of one super pod into one entry'
        yield Finding(pod.at("super_pod_id"), message, hint, earlier.at("super_pod_id"))


@rule("RT350", "a super pod with a server that the table does not have", formats=POD_TABLES, ascend_only=True)
def member_unknown(table: Table) -> Iterator[Finding]:
    """Each server in super_pod_list must also be in the table's server_list, with the same server_id."""
    known = {server.server_id for server in table.servers}
    if not known or not known.isdisjoint({None, ""}):  # an unreadable name may be the missing one
        return
    left_over = iter(_outside(table))
    for pod in _pods(table):
        for pointer, server_id in pod.members:
            if server_id is not None and server_id not in known:
                message = f'server "{server_id[:64]}" of this super pod is not in server_list'
                server = next(left_over, None)
                hint = "remove the entry, or add the server to server_list"
                if server is not None:
                    hint = f'write "{server.name}", which is in no super pod'
                yield Finding((*pointer, "server_id"), message, hint)


@rule("RT631", "a server outside all super pods", formats=POD_TABLES, ascend_only=True)
def server_outside(table: Table) -> Iterator[Finding]:
    """If a table has super pods, every server must belong to one of them."""
    known = {server.server_id for server in table.servers}
    members = [server_id for pod in _pods(table) for _, server_id in pod.members]
    # If a member names no server, only that is reported, not the server that it should name.
    if not table.complete or not members or not known.issuperset(members) or any(not pod.members for pod in table.pods):
        return
    count = "1 entry" if len(table.pods) == 1 else f"{len(table.pods)} entries"
    for server in _outside(table):
        hint = 'add {"server_id": "..."} with this name to the server_list of the super pod to which it belongs'
        message = f'server "{server.name}" is in no super pod, but super_pod_list has {count}'
        yield Finding(server.at("server_id"), message, hint)


@warning("RT421", "a server named twice in super_pod_list", formats=POD_TABLES)
def member_repeated(table: Table) -> Iterator[Finding]:
    """A server may belong to only one super pod. If several super pods list a server, HCCL uses the last super pod."""
    known = {server.server_id for server in table.servers} - {None}
    members = ((server_id, (pointer, server_id)) for pod in _pods(table) for pointer, server_id in pod.members)
    for (pointer, server_id), (earlier, _) in repeated(member for member in members if member[0] in known):
        message = f'server "{(server_id or "")[:64]}" is twice in super_pod_list, and HCCL uses the last entry'
        yield Finding((*pointer, "server_id"), message, "remove one of the two entries", (*earlier, "server_id"))


@warning("RT422", "servers of super pods in mixed order", formats=POD_TABLES)
def pods_interleaved(table: Table) -> Iterator[Finding]:
    """HCCL's documentation requires servers of a super pod to be consecutive, but its parser does not check this."""
    if not _pods(table):
        return
    placed = [(server, table.pod_of_server.get(server.server_id)) for server in table.servers]
    left: set[Pointer] = set()
    for (before, pod_before), (server, pod) in pairwise(placed):
        if pod is None or pod_before is None or pod is pod_before:
            continue
        left.add(pod_before.pointer)
        if pod.pointer in left:
            message = (
                f'server "{server.name}" of super pod "{pod.name}" comes after '
                f'server "{before.name}" of another super pod'
            )
            yield Finding(server.at("server_id"), message, "list the servers of each super pod one after another")
            return


@warning("RT423", "super pods in a v1.0 table", formats=SERVER_LISTS - POD_TABLES)
def pods_ignored(table: Table) -> Iterator[Finding]:
    """HCCL reads super_pod_list and super_device_id only if `version` is "1.2", and ignores them in a v1.0 table."""
    if "super_pod_list" in table.fields:
        message = "super_pod_list is ignored in a v1.0 table"
        yield Finding(("super_pod_list",), message, 'write "1.2" as version, or remove super_pod_list', at_key=True)


def _pods(table: Table) -> tuple[PodRow, ...]:
    return table.pods if table.chip.reads_super_pods else ()


def _outside(table: Table) -> list[ServerRow]:
    placed = table.pod_of_server
    return [server for server in table.servers if server.server_id and server.server_id not in placed]


def _free_names(table: Table) -> Iterator[str]:
    used = {pod.super_pod_id for pod in table.pods}
    return (name for name in map(str, count_from()) if name not in used)
