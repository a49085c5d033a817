"""Start a run from its options, on this machine or on several servers."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from launcher.cli.launch.begin import LaunchOutcome, attendance, begin_run, wait_for_start
from launcher.cli.launch.detach import detach
from launcher.cli.launch.elastic import attempt_spec
from launcher.cli.launch.prepare import check_stdin, doubt_of_table, prepare
from launcher.cli.run_options import RunOptions, check_server_id, for_engine
from launcher.core.errors import EXIT_OK, UsageError
from launcher.core.resources import called_function
from launcher.core.run_dir import RunDir
from launcher.engines.local import signals_held_back, start_agent
from launcher.supervise.port import check_port, hold_port


def run(options: RunOptions, on_begin: Callable[[Path], None] | None = None) -> LaunchOutcome:
    """Check the options, start the run, wait for it to end, and return its outcome.

    `on_begin` is called with the run directory, before any rank starts. With `detach`, return when the run has started.
    With `dry_run`, only print the run's commands. Signals that arrive meanwhile act on the run. Call this in the main
    thread before other threads start, because it forks. Raises a TlaunchError if the options, rank table, layout, program
    or engine are invalid, the port is in use, or the run directory cannot be created.
    """
    chosen = for_engine(options, os.environ)
    prepared = replace(prepare(chosen, os.environ), on_begin=on_begin)
    if options.stdin is not None:
        check_stdin(prepared)
    if options.server is not None:
        check_server_id(options.server, [server.server_id for server in prepared.used.servers])
    if doubt := doubt_of_table(prepared):
        prepared = replace(prepared, notes=(*prepared.notes, f"warning: {doubt}"))
    if chosen.dry_run:
        from launcher.cli.launch.dry_run import show  # only for --dry-run

        show(prepared)
        return LaunchOutcome(EXIT_OK)
    if chosen.engine is not None or len(prepared.used.servers) > 1:
        if called_function(chosen.command) is not None:
            why = "a Python function runs on one machine only, without an engine"
            raise UsageError(why, hint="write the function into a script, and launch that: ['python', 'train.py']")
        from launcher.cli.launch.servers import run_on_servers  # only for several servers

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
