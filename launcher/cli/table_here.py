"""Whether the only server of a rank table is this machine, for commands that start its ranks here whatever it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.core.interfaces import names_of
from launcher.engines.host_match import Host, doubt, is_everywhere, read_host

if TYPE_CHECKING:
    from launcher.cli.options import RunOptions
    from launcher.cli.prepare import Prepared


def doubt_of_table(prepared: Prepared, options: RunOptions, host: Host | None = None) -> str | None:
    """What is worth a warning; None where an engine finds the server, several are told apart, or the table is a sample.

    Blocks while a name of the server is looked up. `host`: this machine, where it has been asked already.
    """
    from launcher.cli.reports import is_sample

    table, servers = prepared.request.cluster.source, prepared.used.servers
    if table is None or options.by_engine or len(servers) > 1:
        return None
    (server,) = servers
    if options.server == server.server_id or is_everywhere(server) or is_sample(table):
        return None
    return doubt(server, host or read_host(names_of(server)))
