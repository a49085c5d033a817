"""What every run begins with, on one server or several: its directory, its notes, and for --detach a word on its start."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from launcher.cli.launch.detach import Detached
from launcher.cli.launch.options import DEFAULT_RUNS_DIR
from launcher.cli.launch.prepare import Prepared
from launcher.cli.text.stderr import say
from launcher.cli.text.stdout import as_people_call_it
from launcher.core.env import TLAUNCH_RUNS_DIR
from launcher.core.frozen import frozen
from launcher.core.records import RunSpec
from launcher.engines.assemble import assemble
from launcher.engines.stale_env import conflicts, notes
from launcher.runs.record import create_run


@frozen
class Outcome:
    """The end of a run, as far as its launcher knows."""

    exit_code: int
    run_dir: Path | None = None  # None where nothing was started


def begin_run(prepared: Prepared, master_port: int) -> RunSpec:
    """Make the run's directory, and print what a person should know before ranks start.

    Raises:
        UnreadableError: no run directory can be made.
    """

    def specify(name: str) -> RunSpec:
        return assemble(prepared.request, name=name, master_port=master_port)

    spec = create_run(prepared.request.runs_dir, prepared.timed_name, specify, prepared.files)
    say_notes(prepared, spec)
    return spec


def say_notes(prepared: Prepared, spec: RunSpec) -> None:
    """Print what was found when the run was prepared, and what other launchers left in the environment."""
    inherited = notes(conflicts(prepared.request.inherited_env, spec.ranks[0].env))
    for note in (*prepared.notes, *inherited):
        say(note)


def wait_for_start(detached: Detached, spec: RunSpec) -> Outcome:
    """Wait in the parent of a detached run until it has begun, or could not."""
    found_by_name = spec.run_dir.parent == Path(os.environ.get(TLAUNCH_RUNS_DIR) or DEFAULT_RUNS_DIR).absolute()
    reference = spec.name if found_by_name else str(as_people_call_it(spec.run_dir))
    return Outcome(detached.wait_started(spec.name, shlex.quote(reference)), spec.run_dir)
