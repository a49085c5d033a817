"""`run`: from options to the exit code of a run, on this machine alone or over several servers."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial

from launcher.cli.launch.begin import LaunchOutcome, attendance, begin_run, wait_for_start
from launcher.cli.launch.detach import detach
from launcher.cli.launch.elastic import attempt_spec
from launcher.cli.launch.prepare import doubt_of_table, prepare
from launcher.cli.run_options import RunOptions, check_server_id, for_engine
from launcher.core.errors import EXIT_OK
from launcher.core.run_dir import RunDir
from launcher.engines.local import signals_held_back, start_agent
from launcher.supervise.port import check_port, hold_port


def run(options: RunOptions) -> LaunchOutcome:
    """Check everything, then start the run, attend until nothing of it is left, and return how it ended.

    With `detach` it returns as soon as the run has begun, with `dry_run` when it has been shown. Signals act on the run
    meanwhile. Call it in the main thread, before there are others: it forks.

    Raises:
        TlaunchError: options, table, layout, program or engine do not fit.
        UsageError: the port is taken.
        UnreadableError: no run directory can be made.
    """
    chosen = for_engine(options, os.environ)
    prepared = prepare(chosen, os.environ)
    if options.server is not None:
        check_server_id(options.server, [server.server_id for server in prepared.used.servers])
    if doubt := doubt_of_table(prepared):
        prepared = replace(prepared, notes=(*prepared.notes, f"warning: {doubt}"))
    if chosen.dry_run:
        from launcher.cli.launch.dry_run import show  # others need none of it

        show(prepared)
        return LaunchOutcome(EXIT_OK)
    if chosen.engine is not None or len(prepared.used.servers) > 1:
        from launcher.cli.launch.servers import run_on_servers  # others need none of it

        return run_on_servers(prepared)
    with signals_held_back():
        port = hold_port() if chosen.master_port is None else check_port(chosen.master_port)
        spec = begin_run(prepared, port.number)
        detached = detach(RunDir(spec.run_dir).console_log) if chosen.detach else None
        if detached is not None and detached.is_parent:
            port.close()
            return wait_for_start(detached, spec, options)
        specify = partial(
            attempt_spec, prepared.request, prepared.table.format, name=spec.name, master_port=port.number
        )
        attend = attendance(spec, start_agent(spec, port, specify=specify), detached, quiet=chosen.quiet)
    return attend()
