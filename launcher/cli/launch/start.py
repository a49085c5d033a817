"""`run`: from options to the exit code of a run, on this machine alone or over several servers."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

from launcher.cli.launch.attempt_specs import attempt_specs
from launcher.cli.launch.detach import Announcing, Detached, detach
from launcher.cli.launch.options import RunOptions, check_server_id, for_engine
from launcher.cli.launch.prepare import Prepared, prepare
from launcher.cli.launch.recorded import to_record
from launcher.cli.text.stdout import as_argument, say
from launcher.core.errors import EXIT_OK
from launcher.core.frozen import frozen
from launcher.core.records import RunSpec
from launcher.core.run_dir import RunDir
from launcher.engines.assemble import assemble
from launcher.engines.leftover_variables import conflicts, notes
from launcher.engines.local import LocalAgent, signals_held_back, start_agent
from launcher.runs.record import create_run
from launcher.runs.registry import register
from launcher.supervise.port import check_port, hold_port


@frozen
class LaunchOutcome:
    """The end of a run, as far as its launcher knows."""

    exit_code: int
    run_dir: Path | None = None  # None where nothing was started


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
    if prepared.request.cluster.source is not None:
        from launcher.cli.launch.network import doubt_of_table  # runs without a table need none of it

        if doubt := doubt_of_table(prepared, chosen):
            prepared = replace(prepared, notes=(*prepared.notes, f"warning: {doubt}"))
    if chosen.dry_run:
        from launcher.cli.launch.dry_run import show  # others need none of it

        show(prepared, chosen)
        return LaunchOutcome(EXIT_OK)
    if chosen.engine is not None or len(prepared.used.servers) > 1:
        from launcher.cli.launch.servers import run_on_servers  # others need none of it

        return run_on_servers(prepared, chosen)
    with signals_held_back():
        port = hold_port() if chosen.master_port is None else check_port(chosen.master_port)
        spec = begin_run(prepared, port.number)
        detached = detach(RunDir(spec.run_dir).console_log) if chosen.detach else None
        if detached is not None and detached.is_parent:
            port.close()
            return wait_for_start(detached, spec, options)
        specify = attempt_specs(prepared.request, prepared.table_format, spec.name, port.number)
        attend = attendance(spec, start_agent(spec, port, specify=specify), detached, quiet=chosen.quiet)
    return attend()


def begin_run(prepared: Prepared, master_port: int) -> RunSpec:
    """Make the run's directory, and print what a person should know before ranks start.

    Raises:
        UnreadableError: no run directory can be made.
    """

    def specify(name: str) -> RunSpec:
        return assemble(prepared.request, name=name, master_port=master_port)

    options = to_record(prepared.options)
    spec = create_run(prepared.request.runs_dir, prepared.timed_name, specify, prepared.files, options)
    register(spec.run_dir.parent)
    say_notes(prepared, spec)
    return spec


def say_notes(prepared: Prepared, spec: RunSpec) -> None:
    """Print what was found when the run was prepared, and what other launchers left in the environment; with -v every decision."""
    if prepared.options.quiet:
        return
    if prepared.options.verbose:
        from launcher.cli.launch.decisions import decided  # others need none of it

        for line in decided(prepared, spec):
            say(line)
    for note in (*prepared.notes, *notes(conflicts(prepared.request.inherited_env, spec.ranks[0].env))):
        say(note)


def wait_for_start(detached: Detached, spec: RunSpec, options: RunOptions) -> LaunchOutcome:
    """Wait in the parent of a detached run until it has begun, or could not."""
    reference = None if options.quiet else as_argument(RunDir(spec.run_dir))
    return LaunchOutcome(detached.wait_started(spec.name, reference), spec.run_dir)


def attendance(
    spec: RunSpec,
    agent: LocalAgent,
    detached: Detached | None,
    server_index: int | None = None,
    *,
    quiet: bool = False,
) -> Callable[[], LaunchOutcome]:
    """Return what passes signals down, shows what happens, and blocks until nothing of the run is left.

    Call this inside `signals_held_back`, right after `start_agent`, and the result outside. `server_index`: of this
    machine, where only its ranks are attended here. `quiet`: only errors and verdicts are shown.
    """
    # Loaded while the agent starts ranks.
    from launcher.cli.text import summary
    from launcher.cli.text.console import Console
    from launcher.cli.text.style import screen_of
    from launcher.cluster.launcher_loop import LauncherLoop

    console = Console(spec, server_index, quiet=quiet)
    head = LauncherLoop(spec, agent, Announcing(console, detached) if detached else console, server_index)

    def last_words() -> Iterator[str]:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run has ended, and its exit code stays
        screen = screen_of(sys.stderr)
        offers = server_index is None and screen.columns is not None and not quiet
        return chain(
            summary.render(console.progress, spec, console.shown_dir, server_index, screen),
            summary.next_commands(console.progress, RunDir(spec.run_dir), screen) if offers else (),
        )

    def attend() -> LaunchOutcome:
        exit_code = head.attend()
        console.finish(last_words)
        return LaunchOutcome(exit_code, spec.run_dir)

    return attend
