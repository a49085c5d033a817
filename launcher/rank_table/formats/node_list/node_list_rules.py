"""Rules for v1.1: node addresses, ranks on hosts, and the keys that heterog_sub_version adds."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.core.records import HOST_RANK
from launcher.rank_table.catalogue import Finding, rule
from launcher.rank_table.ip import address_family, is_unspecified, packed_address, what_it_is_instead
from launcher.rank_table.model import Table, read_signed, text_at
from launcher.rank_table.rules.shared import MAX_PORT, name_unusable, other_families
from launcher.rank_table.table_format import SUB_VERSION, Format

V1_1 = frozenset({Format.V1_1})
COLLECTIVE_ID_LIMIT = 127  # bytes
MODES = ("tcp", "rdma")
SUB_VERSIONS = ("1.2",)


@rule("RT352", "a collective_id that is too long", formats=V1_1)
def collective_id_long(table: Table) -> Iterator[Finding]:
    """collective_id is the name of the job. It may be any text of at most 127 bytes."""
    name = text_at(table.fields, "collective_id")
    yield from name_unusable(("collective_id",), name, COLLECTIVE_ID_LIMIT, "write a shorter name")


@rule("RT353", "a heterog_sub_version that HCCL does not know", formats=V1_1)
def sub_version_unknown(table: Table) -> Iterator[Finding]:
    """heterog_sub_version marks a super pod table whose ranks run on hosts and devices. Only "1.2" is allowed."""
    written = text_at(table.fields, SUB_VERSION)
    if written is not None and written not in SUB_VERSIONS:
        message = f'{SUB_VERSION} is "{written[:20]}", but HCCL knows only "{SUB_VERSIONS[0]}"'
        yield Finding((SUB_VERSION,), message, f'write "{SUB_VERSIONS[0]}", or leave {SUB_VERSION} out')


@rule("RT354", "a mode that HCCL does not know", formats=V1_1)
def mode_unknown(table: Table) -> Iterator[Finding]:
    """`mode` is the protocol that ranks on hosts use: "tcp" or "rdma", in lower case."""
    written = text_at(table.fields, "mode")
    if written is not None and written not in MODES:
        known = written.strip().lower()
        hint = f'write "{known if known in MODES else MODES[0]}", or leave mode out'
        yield Finding(("mode",), f'mode is "{written[:20]}", but HCCL knows only "tcp" and "rdma"', hint)


@rule("RT355", "a node_addr that is not an address", formats=V1_1)
def node_address_invalid(table: Table) -> Iterator[Finding]:
    """node_addr must be an IPv4 or IPv6 address, because ranks on the host and ranks without a rank_ip use it.

    HCCL treats 0.0.0.0 as unset, and refuses a table if only some of its nodes have an address.
    """
    for server in table.servers:
        packed = packed_address(server.server_id or "")
        if server.server_id is None or (packed is not None and not (is_unspecified(packed) and len(table.servers) > 1)):
            continue
        message = f'node_addr "{server.server_id[:45]}" is {what_it_is_instead(server.server_id, "node")}'
        yield Finding(server.at("server_id"), message, "write the address of the node's network card")


@rule("RT356", "a port of a rank that cannot be used", formats=V1_1)
def rank_port_unusable(table: Table) -> Iterator[Finding]:
    """The port of a rank is a string from "0" to "65535". If it is "0" or missing, HCCL chooses a port."""
    for device in table.devices:
        written = text_at(device.fields, "port")
        number = read_signed(written)
        if written is not None and (number is None or not 0 <= number <= MAX_PORT):
            message = f'port is "{written[:20]}", not a port from 0 to {MAX_PORT}'
            yield Finding((*device.pointer, "port"), message, 'write "0" to let HCCL choose one')


@rule("RT357", "an sdid that is not a number", formats=V1_1)
def super_device_unreadable(table: Table) -> Iterator[Finding]:
    """If a table has heterog_sub_version, each sdid is the number of the rank's device in the super pod, or "-1"."""
    if SUB_VERSION not in table.fields:
        return
    for device in table.devices:
        written = text_at(device.fields, "sdid")
        if written is not None and read_signed(written) is None:
            message = f'sdid is "{written[:20]}", not a number'
            hint = 'write "-1" for a rank outside the super pod, else the SDID shown by `npu-smi info -t spod-info`'
            yield Finding((*device.pointer, "sdid"), message, hint)


@rule("RT358", "a host rank without a bound device", formats=V1_1)
def host_rank_unbound(table: Table) -> Iterator[Finding]:
    """If a table has heterog_sub_version, a host rank (device_id "-1") must name its device in bind_device_id."""
    if SUB_VERSION not in table.fields:
        return
    for server in table.servers:
        example = next((row.device_id for row in server.devices if row.device_id not in (None, HOST_RANK)), 0)
        for device in server.devices:
            if device.device_id == HOST_RANK and "device_id" in device.fields:
                written = device.fields.get("bind_device_id")
                if "bind_device_id" not in device.fields:
                    hint = f'add "bind_device_id": "{example}", the device that it works with'
                    yield Finding(device.at(), "this host rank has no bind_device_id", hint)
                elif not isinstance(written, str) or read_signed(written) is None:
                    message = "bind_device_id must be a device_id, written as a string"
                    hint = f'write "{example}", or the intended device'
                    yield Finding((*device.pointer, "bind_device_id"), message, hint)


@rule("RT359", "IPv4 and IPv6 among the nodes", formats=V1_1)
def node_families_mixed(table: Table) -> Iterator[Finding]:
    """Either all nodes must have IPv4 addresses, or all must have IPv6 addresses. The same rule applies to ranks.

    The address of a rank is its rank_ip or, if rank_ip is unset, the node_addr of its node.
    """
    if len(table.servers) < 2:
        return
    nodes = {server.number: address_family(server.server_id or "") for server in table.servers}
    of_nodes = ((server.at("server_id"), nodes[server.number]) for server in table.servers)
    mixed = list(other_families(of_nodes, "the address here"))
    yield from mixed
    if not mixed:
        of_ranks = (
            (row.at("device_ip"), address_family(row.addresses[0])) if row.addresses else (row.at(), nodes[row.server])
            for row in table.devices
        )
        yield from other_families(of_ranks, "the address here")
