"""Rules about a table as a whole and its servers."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.rank_table.catalogue import Finding, rule
from launcher.rank_table.model import (
    COMPLETED,
    SERVER_ID_LIMIT,
    Table,
    text_at,
)
from launcher.rank_table.rules.shared import name_unusable, repeated
from launcher.rank_table.table_format import LISTS, SERVER_LISTS, STRINGS, VERSIONS, Format, list_of_another


@rule("RT311", "the table is not completed", hccl_code="EI0004", formats=STRINGS)
def status_not_completed(table: Table) -> Iterator[Finding]:
    """A table is written in steps on clouds, and `status` says when it is done.

    HCCL reads the file again once a second until it says "completed", for up to 30 minutes, and then gives up.
    tlaunch does not wait.
    """
    status = text_at(table.fields, "status")
    if status is not None and status != COMPLETED:
        message = f'status is "{status[:40]}": HCCL would wait up to 30 minutes for "{COMPLETED}"'
        hint = f'write "{COMPLETED}" when the table is final, or wait for whoever writes it'
        yield Finding(("status",), message, hint)


@rule("RT313", "a server without a usable name", formats=STRINGS - {Format.V1_1})
def server_id_unusable(table: Table) -> Iterator[Finding]:
    """A server_id is any name of 1 to 64 characters; it need not be an address."""
    hint, empty_hint = "write a shorter name; it only has to be unique", "write the server's address or name"
    for server in table.servers:
        yield from name_unusable(server.at("server_id"), server.server_id, SERVER_ID_LIMIT, hint, empty_hint=empty_hint)


@rule("RT314", "a server_id used twice", formats=SERVER_LISTS | {Format.V1_1})
def server_id_repeated(table: Table) -> Iterator[Finding]:
    """HCCL tells servers apart by server_id, compared as text. All devices of a server stand in one entry."""
    for server, earlier in repeated((server.server_id, server) for server in table.servers if server.server_id):
        message = f'{server.word("server_id")} "{(server.server_id or "")[:64]}" is used twice'
        hint = "write the other server's own address, or put the devices of one server into one entry"
        yield Finding(server.at("server_id"), message, hint, earlier.at("server_id"))


@rule("RT351", "a version whose servers are written in another way", formats=frozenset(VERSIONS.values()))
def version_of_another_format(table: Table) -> Iterator[Finding]:
    """HCCL decides by `version` how to read a table, and looks for the list that belongs to it.

    With 1.0 and 1.2 that is `server_list`, with 1.1 `node_list`, with 2.0 `rank_list`. A table with `group_list` has no
    version at all.
    """
    found = list_of_another(table.fields, table.format)
    if found is None or "version" not in table.fields:
        return
    versions = {
        "node_list": "1.1",
        "rank_list": "2.0",
        "server_list": "1.2" if "super_pod_list" in table.fields else "1.0",
    }
    message = f'version "{table.fields["version"]}" asks for {LISTS[table.format]}, and this table has {found}'
    hint = f'write "{versions[found]}"' if found in versions else "leave version out: a table of group_list has none"
    yield Finding(("version",), message, hint)
