"""Rules of single readers of rank tables, beyond HCCL's. Silent unless that reader is named."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from launcher.rank_table.catalogue import Finding, Severity, rule
from launcher.rank_table.ip import address_family, why_no_address
from launcher.rank_table.model import Table, disorder, odd_numbers, read_decimal
from launcher.rank_table.rules.conventions import NAMED_SERVERS
from launcher.rank_table.table_format import RANKED, SERVER_LISTS, STRINGS, Format

for_mindspore, for_msrun, for_serving, for_mindie = (
    partial(rule, hccl_code=None, consumer=reader) for reader in ("mindspore", "msrun", "serving", "mindie")
)
SERVING_DEVICES = 8  # MindSpore Serving knows servers of eight devices
MINDIE_SERVERS, MINDIE_DEVICES = 4, 32
READ_BY_SERVING = SERVER_LISTS | {Format.LAB}


@for_mindspore(
    "RT501",
    "ranks against the order of server_id, for MindSpore",
    severity=Severity.WARNING,
    formats=NAMED_SERVERS,
    replaces="RT402",
)
def rank_order_refused(table: Table) -> Iterator[Finding]:
    """MindSpore's tutorials require ranks in the dictionary order of server_id, in which "10.0.0.10" precedes "10.0.0.9".

    For other readers this is the warning RT402.
    """
    for before, server in disorder(table):
        first = min(device.global_rank or 0 for device in server.devices)
        message = f'server "{server.server_id:.64}" holds rank {first}, after "{before.server_id:.64}"'
        hint = f'give its devices lower ranks than those of "{before.server_id:.64}"'
        yield Finding(server.at("server_id"), message, hint)


@for_mindspore("RT502", "a number that Python does not read, for MindSpore", formats=STRINGS, replaces="RT404")
def number_refused_by_python(table: Table) -> Iterator[Finding]:
    """MindSpore's scripts read rank_id and device_id with Python's int(), which refuses "3abc" where HCCL reads 3."""
    for device, key, written, number in odd_numbers(table):
        if not _is_python_int(written):
            message = f'{key} is "{written[:20]}": HCCL reads {number}, Python refuses it'
            yield Finding(device.at(key), message, f'write "{number}"', rewrite=f'"{number}"')


@for_msrun("RT511", "a server without pod_ip, for msrun", severity=Severity.WARNING, formats=SERVER_LISTS)
def pod_ip_missing(table: Table) -> Iterator[Finding]:
    """The scheduler of msrun looks for the ranks of a host under its pod_ip.

    Where any server has none, the ranks of the table are not used: processes are numbered in the order of their hosts'
    addresses as text, and HCCL refuses a table that says otherwise.
    """
    for server in table.servers:
        if "pod_ip" not in server.fields:
            message = (
                f'server "{(server.server_id or "")[:64]}" has no pod_ip, so msrun does not use the ranks of this table'
            )
            yield Finding(server.at(), message, 'add "pod_ip": the address by which the server reaches the others')


@for_msrun("RT512", "a pod_ip that is not an address, for msrun", formats=SERVER_LISTS)
def pod_ip_unusable(table: Table) -> Iterator[Finding]:
    """The scheduler of msrun compares pod_ip with each host's own address.

    A placeholder is never found; the log says that HOST_IP cannot be found, and the ranks are not used.
    """
    for server in table.servers:
        written = server.fields.get("pod_ip")
        if "pod_ip" in server.fields and (not isinstance(written, str) or address_family(written) is None):
            message = f"pod_ip is {_quoted(written)}, and msrun looks for the host's address there"
            yield Finding(server.at("pod_ip"), message, "write the address by which the server reaches the others")


@for_msrun("RT513", "a device that is not at its place in the list, for msrun", formats=SERVER_LISTS)
def device_misplaced(table: Table) -> Iterator[Finding]:
    """Local process i of msrun gets device i and the rank of entry i of the server's list: entry i has to be device i.

    Only where pod_ip is set, for else the ranks of the table are not used.
    """
    for server in table.servers:
        if "pod_ip" not in server.fields:
            continue
        for index, device in enumerate(server.devices):
            if device.device_id is not None and device.device_id != index:
                message = (
                    f"device_id {device.device_id} is entry {index} of its list, and msrun reads entry i as device i"
                )
                yield Finding(
                    device.at("device_id"), message, "list the devices 0, 1, 2 ... in this order, all of them"
                )
                break


@for_msrun("RT514", "a format whose ranks msrun does not use", severity=Severity.WARNING)
def format_unused_by_msrun(table: Table) -> Iterator[Finding]:
    """The scheduler of msrun looks for pod_ip in server_list, which only v1.0 and v1.2 have.

    With other formats processes are numbered in the order of their hosts' addresses as text.
    """
    if table.format not in SERVER_LISTS:
        message = f"msrun does not use the ranks of this format ({table.format.title})"
        yield Finding((), message, "convert it: tlaunch table convert FILE --to v1.0")


@for_serving("RT521", "a rank that is not its place in the file, for MindSpore Serving")
def rank_not_running(table: Table) -> Iterator[Finding]:
    """MindSpore Serving counts the devices of the file and requires that each rank_id is the number of its entry."""
    if table.format not in RANKED:
        return
    for index, device in enumerate(table.devices):
        if device.global_rank is not None and device.global_rank != index:
            message = f"rank_id {device.global_rank} stands in entry {index} of the file"
            yield Finding(device.at("rank_id"), message, "order the entries by rank_id; `tlaunch table fix` does so")
            return


@for_serving("RT522", "a number not written plainly, for MindSpore Serving", formats=STRINGS, replaces="RT404")
def number_refused_by_serving(table: Table) -> Iterator[Finding]:
    """MindSpore Serving reads digits only, without sign, blanks or leading zeros."""
    for device, key, written, number in odd_numbers(table):
        message = f'{key} is "{written[:20]}", and MindSpore Serving reads digits only'
        yield Finding(device.at(key), message, f'write "{number}"', rewrite=f'"{number}"')


@for_serving("RT523", "a device_id beyond 7, for MindSpore Serving")
def device_beyond_serving(table: Table) -> Iterator[Finding]:
    """MindSpore Serving knows servers of eight devices, numbered from 0 to 7."""
    for device in table.devices:
        if device.device_id is not None and SERVING_DEVICES <= device.device_id < table.chip.device_id_limit:
            message = f"device_id {device.device_id} is beyond {SERVING_DEVICES - 1}"
            yield Finding(device.at("device_id"), message, "use devices 0 to 7")


@for_serving("RT524", "a format that MindSpore Serving does not read")
def format_unread_by_serving(table: Table) -> Iterator[Finding]:
    """MindSpore Serving looks for server_list, or for group_list with a rank_id in every instance."""
    if table.format not in READ_BY_SERVING:
        message = f"MindSpore Serving does not read this format ({table.format.title})"
        yield Finding((), message, "convert it: tlaunch table convert FILE --to v1.0")


@for_mindie("RT531", "a server_id that is not an address, for MindIE", formats=SERVER_LISTS)
def server_id_no_address(table: Table) -> Iterator[Finding]:
    """MindIE connects to the servers by their server_id, so each is an IP address."""
    for server in table.servers:
        if server.server_id and address_family(server.server_id) is None:
            message = f'server_id "{server.server_id[:64]}" is not an IP address{why_no_address(server.server_id)}'
            yield Finding(server.at("server_id"), message, "write the address of the server")


@for_mindie("RT532", "a container_ip that is not an address, for MindIE", formats=SERVER_LISTS)
def container_ip_unusable(table: Table) -> Iterator[Finding]:
    """Between containers MindIE connects to container_ip, an IP address."""
    for server in table.servers:
        written = server.fields.get("container_ip")
        if "container_ip" in server.fields and (not isinstance(written, str) or address_family(written) is None):
            message = f"container_ip is {_quoted(written)}, not an IP address"
            yield Finding(
                server.at("container_ip"), message, "write the container's address, or leave container_ip out"
            )


@for_mindie("RT533", "a server without container_ip, for MindIE", severity=Severity.WARNING, formats=SERVER_LISTS)
def container_ip_missing(table: Table) -> Iterator[Finding]:
    """MindIE is deployed in containers, and between servers it connects to the address of each container."""
    if len(table.servers) < 2:
        return
    for server in table.servers:
        if "container_ip" not in server.fields:
            address = server.server_id if address_family(server.server_id or "") else "..."
            hint = f'add "container_ip": "{address}", the address of the container; it may be the server\'s'
            yield Finding(server.at(), "container_ip is missing, and MindIE connects to it", hint)


@for_mindie("RT534", "more than MindIE is documented for", severity=Severity.WARNING)
def beyond_mindie(table: Table) -> Iterator[Finding]:
    """MindIE documents inference over at most four servers and 32 devices."""
    servers, devices = len(table.servers), len(table.devices)
    if servers > MINDIE_SERVERS or devices > MINDIE_DEVICES:
        message = f"{servers} servers with {devices} devices; MindIE documents {MINDIE_SERVERS} and {MINDIE_DEVICES}"
        yield Finding((), message, "split the table, or ask the vendor")


def _is_python_int(written: str) -> bool:
    try:
        return int(written) == read_decimal(written)
    except ValueError:
        return False


def _quoted(written: Any) -> str:
    return f'"{written[:45]}"' if isinstance(written, str) else "no string"
