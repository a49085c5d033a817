"""From what was prepared to a run: shown (`--dry-run`), or carried out from the first fork to the exit code."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from launcher.cli.launch.detach import Detached, detach
from launcher.cli.launch.options import RunOptions
from launcher.cli.launch.prepare import Prepared
from launcher.cli.options.chosen_run import DEFAULT_RUNS_DIR
from launcher.core.env import TLAUNCH_RUNS_DIR
from launcher.core.records import RunSpec
from launcher.core.run_dir import RunDir
from launcher.engines.assemble import assemble, used_cluster
from launcher.engines.command import EngineCommand
from launcher.engines.inherited import conflicts, notes
from launcher.engines.local import signals_held_back, start_agent
from launcher.runs.create import create_run, free_name
from launcher.supervise.port import HeldPort, check_port, hold_port

SEVERAL_SERVERS_PORT = 29500  # which port is free on another server cannot be seen from here; torchrun's default


def show(prepared: Prepared, wanted_name: str, options: RunOptions) -> None:
    """Print what would be run. Starts and creates nothing."""
    from launcher.cli.launch import dry_run
    from launcher.cli.launch.network import with_network  # a run on this machine alone needs none of it
    from launcher.cli.text.stdout import write_out

    prepared = with_network(prepared, options)
    request = prepared.request
    port = options.master_port or _likely_port(prepared)
    spec = assemble(request, name=free_name(request.runs_dir, wanted_name), master_port=port)
    command = _engine_command(prepared, options, spec)
    say_notes(prepared, spec)
    if options.json:
        write_out(dry_run.to_json(spec, command))
        return
    if options.master_port is None:
        print(f"# MASTER_PORT {port} is an example: a free port is chosen when the run starts", file=sys.stderr)
    lines = [*_how_agents_start(prepared, command), *dry_run.render(spec)]
    write_out("".join(f"{line}\n" for line in lines))


def _engine_command(prepared: Prepared, options: RunOptions, spec: RunSpec) -> EngineCommand | None:
    """What puts agents on the servers; None where no engine does."""
    if not options.by_engine:
        return None
    from launcher.cli.launch.servers import engine_command  # others need none of it

    return engine_command(prepared, options, spec)


def _how_agents_start(prepared: Prepared, command: EngineCommand | None) -> Iterator[str]:
    if command is not None:
        from launcher.cli.launch import dry_run  # see above

        yield from dry_run.render_engine(command)
    elif len(prepared.used.servers) > 1:
        yield "# started by hand: the same command on each server starts that server's ranks"


def carry_out(prepared: Prepared, wanted_name: str, options: RunOptions) -> int:
    """Make the run directory, start everything, attend until nothing is left; the run's exit code.

    With --detach this returns as soon as the run has begun; a child goes on.

    Raises:
        UsageError: the port is taken.
        UnreadableError: no run directory can be made.
    """
    with signals_held_back():
        port = hold_port() if options.master_port is None else check_port(options.master_port)
        spec = _create(prepared, wanted_name, port)
        say_notes(prepared, spec)
        detached = detach(RunDir(spec.run_dir).console_log) if options.detach else None
        if detached is not None and detached.is_parent:
            port.close()
            return wait_for_start(detached, spec)
        agent = start_agent(spec, port)
        from launcher.cli.launch.attendance import Attendance  # loaded while the agent starts ranks

        attendance = Attendance(spec, agent, detached)
    return attendance.attend()


def wait_for_start(detached: Detached, spec: RunSpec) -> int:
    from launcher.cli.text.stdout import as_people_call_it

    found_by_name = spec.run_dir.parent == Path(os.environ.get(TLAUNCH_RUNS_DIR) or DEFAULT_RUNS_DIR).absolute()
    reference = spec.name if found_by_name else str(as_people_call_it(spec.run_dir))
    return detached.wait_started(spec.name, shlex.quote(reference))


def _create(prepared: Prepared, wanted_name: str, port: HeldPort) -> RunSpec:
    def specify(name: str) -> RunSpec:
        return assemble(prepared.request, name=name, master_port=port.number)

    return create_run(prepared.request.runs_dir, wanted_name, specify, prepared.files)


def _likely_port(prepared: Prepared) -> int:
    request = prepared.request
    if len(used_cluster(request.cluster, request.layout.world_size).servers) > 1:
        return SEVERAL_SERVERS_PORT
    held = hold_port()
    held.close()
    return held.number


def say_notes(prepared: Prepared, spec: RunSpec) -> None:
    """What a person should know before ranks start: idle devices, and what other launchers left in the environment."""
    inherited = notes(conflicts(prepared.request.inherited_env, spec.ranks[0].env))
    with suppress(OSError):  # nobody reads stderr
        for note in (*prepared.notes, *inherited):
            print(note, file=sys.stderr)
