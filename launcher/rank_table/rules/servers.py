"""What a table says about itself and its servers."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.rank_table.catalogue import Finding, rule
from launcher.rank_table.diagnostics import Severity
from launcher.rank_table.formats import SERVER_LISTS, STRINGS, Format
from launcher.rank_table.rows import ServerRow, Table, read_decimal, text_at
from launcher.rank_table.rules.counts import counted_doubt, counted_hint

COMPLETED = "completed"
SERVER_ID_LIMIT = 64  # characters; older versions of HCCL allow 127


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


@rule(
    "RT427",
    "an A5 table that is not completed",
    hccl_code=None,
    severity=Severity.WARNING,
    formats=frozenset({Format.V2_0}),
)
def status_of_a5_not_completed(table: Table) -> Iterator[Finding]:
    """HCCL does not read the status of a v2.0 table, but the loader of graph mode waits until it says "completed"."""
    status = table.fields.get("status", COMPLETED)
    if status != COMPLETED:
        message = f'status is not "{COMPLETED}", and graph mode would wait for it'
        yield Finding(("status",), message, f'write "{COMPLETED}" when the table is final')


@rule("RT312", "server_count differs from the number of servers", formats=SERVER_LISTS)
def server_count_differs(table: Table) -> Iterator[Finding]:
    """`server_count` repeats the length of `server_list`, as a string; HCCL refuses a table where they differ."""
    written, servers = text_at(table.fields, "server_count"), table.fields.get("server_list")
    number, count = read_decimal(written), len(servers) if isinstance(servers, list) else 0
    if written is not None and count and number != count:
        message = f'server_count is "{written[:20]}", server_list has {count} {"entry" if count == 1 else "entries"}'
        hint = counted_hint(f'"{count}"', number, count, "server")
        doubt = counted_doubt("server_count", number, count, "server")
        yield Finding(("server_count",), message, hint, rewrite=f'"{count}"', doubt=doubt)


@rule("RT313", "a server without a usable name", formats=STRINGS - {Format.V1_1})
def server_id_unusable(table: Table) -> Iterator[Finding]:
    """A server_id is any name of 1 to 64 characters; it need not be an address."""
    for server in table.servers:
        if server.server_id == "":
            yield Finding(server.at("server_id"), "server_id is empty", "write the server's address or name")
        elif server.server_id is not None and len(server.server_id.encode()) > SERVER_ID_LIMIT:
            length = len(server.server_id.encode())
            message = f"server_id has {length} bytes, HCCL allows {SERVER_ID_LIMIT}"
            yield Finding(server.at("server_id"), message, "write a shorter name; it only has to be unique")


@rule("RT314", "a server_id used twice", formats=SERVER_LISTS | {Format.V1_1})
def server_id_repeated(table: Table) -> Iterator[Finding]:
    """HCCL tells servers apart by server_id, compared as text. All devices of a server stand in one entry."""
    first: dict[str, ServerRow] = {}
    for server in table.servers:
        if not server.server_id:
            continue
        earlier = first.setdefault(server.server_id, server)
        if earlier is not server:
            message = f'{server.word("server_id")} "{server.server_id[:64]}" is used twice'
            hint = "write the other server's own address, or put the devices of one server into one entry"
            yield Finding(server.at("server_id"), message, hint, earlier.at("server_id"))
