"""`run`: from options to the exit code of a run, on this machine alone or over several servers."""

from __future__ import annotations

import os
from dataclasses import replace

from launcher.cli.launch.begin import Outcome, begin_run, wait_for_start
from launcher.cli.launch.detach import detach
from launcher.cli.launch.options import RunOptions, check_server_id, for_engine
from launcher.cli.launch.prepare import Prepared, prepare
from launcher.core.errors import EXIT_OK
from launcher.core.run_dir import RunDir
from launcher.engines.local import signals_held_back, start_agent
from launcher.supervise.port import check_port, hold_port


def run(options: RunOptions) -> Outcome:
    """Check everything, then start the run, attend until nothing of it is left, and return how it ended.

    With `detach` it returns as soon as the run has begun, with `dry_run` when it has been shown. Signals act on the run
    meanwhile. Call it in the main thread, before there are others: it forks.

    Raises:
        TlaunchError: options, table, layout, program or engine do not fit.
    """
    chosen = for_engine(options, os.environ)
    prepared = prepare(chosen, os.environ)
    if options.server is not None:
        check_server_id(options.server, [server.server_id for server in prepared.used.servers])
    if prepared.request.cluster.source is not None:
        from launcher.cli.launch.network import doubt_of_table  # runs without a table need none of it

        if doubt := doubt_of_table(prepared, chosen):
            prepared = replace(prepared, notes=(*prepared.notes, f"warning: {doubt}"))
    if chosen.dry_run:
        from launcher.cli.launch.dry_run import show  # others need none of it

        show(prepared, chosen)
        return Outcome(EXIT_OK)
    if chosen.engine is not None or len(prepared.used.servers) > 1:
        from launcher.cli.launch.servers import run_on_servers  # others need none of it

        return run_on_servers(prepared, chosen)
    return _run_here(prepared, chosen)


def _run_here(prepared: Prepared, options: RunOptions) -> Outcome:
    """Run on this machine alone.

    Raises:
        UsageError: the port is taken.
        UnreadableError: no run directory can be made.
    """
    with signals_held_back():
        port = hold_port() if options.master_port is None else check_port(options.master_port)
        spec = begin_run(prepared, port.number)
        detached = detach(RunDir(spec.run_dir).console_log) if options.detach else None
        if detached is not None and detached.is_parent:
            port.close()
            return wait_for_start(detached, spec)
        agent = start_agent(spec, port)
        from launcher.cli.launch.attendance import Attendance  # loaded while the agent starts ranks

        attendance = Attendance(spec, agent, detached)
    return Outcome(attendance.attend(), spec.run_dir)
