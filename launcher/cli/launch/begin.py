"""Steps that every start of a run shares: create the run directory, print notes, show progress until the run ends."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

from launcher.cli.launch.detach import Announcing, Detached
from launcher.cli.launch.prepare import Prepared
from launcher.cli.launch.recorded import as_words, to_record
from launcher.cli.run_options import RunOptions
from launcher.cli.text.columns import counted, time_limit
from launcher.cli.text.stdout import as_argument, say
from launcher.cli.text.style import screen_of
from launcher.core.frozen import frozen
from launcher.core.records import RunSpec
from launcher.core.run_dir import DEFAULT_RUNS_DIR, SETTINGS, RunDir
from launcher.core.text import ranges, shell_words
from launcher.engines.assemble import assemble
from launcher.engines.leftover_variables import conflicts, notes
from launcher.engines.local import LocalAgent
from launcher.preload.masking import masked_argv
from launcher.runs.record import create_run
from launcher.runs.registry import is_temporary, register


@frozen
class LaunchOutcome:
    exit_code: int
    run_dir: Path | None = None  # None if nothing was started


def begin_run(prepared: Prepared, master_port: int) -> RunSpec:
    """Create the run directory and print notes about the run, before any rank starts."""
    request, options = prepared.request, to_record(prepared.options)

    def specify(name: str) -> RunSpec:
        return assemble(request, name=name, master_port=master_port)

    files = dict(prepared.files)
    if prepared.program.recipe is not None:
        files[SETTINGS] = _settings_of(prepared)
    spec = create_run(request.runs_dir, prepared.timed_name, specify, files, options)
    announce(prepared, spec)
    return spec


def _settings_of(prepared: Prepared) -> str:
    """Return a --config file with all settings of the bundled trainer, for `tlaunch rerun` and `tlaunch report`."""
    from launcher.cli.training.trainer_program import effective_settings, toml_lines, without_settings  # only for it

    settings = effective_settings(prepared.options, prepared.request.layout)
    others = as_words(replace(without_settings(prepared.options), runs_dir=DEFAULT_RUNS_DIR))
    return "".join(f"{line}\n" for line in toml_lines(settings, others))


def announce(prepared: Prepared, spec: RunSpec) -> None:
    """Register and report the directory of a run that begins, and print notes about the run."""
    if not is_temporary(spec.run_dir):
        register(spec.run_dir.parent)
    if prepared.on_begin is not None:
        prepared.on_begin(spec.run_dir)
    say_notes(prepared, spec)


def say_notes(prepared: Prepared, spec: RunSpec) -> None:
    """Print notes about the run and its environment. With --verbose, also print all decisions."""
    if prepared.options.quiet:
        return
    if prepared.options.verbose:
        for line in decided(prepared, spec):
            say(line)
    for note in (*prepared.notes, *notes(conflicts(prepared.request.inherited_env, spec.ranks[0].env))):
        say(note)


def wait_for_start(detached: Detached, spec: RunSpec, options: RunOptions) -> LaunchOutcome:
    """Wait, in the parent process, until the detached run has started or has failed to start."""
    reference = None if options.quiet else as_argument(RunDir(spec.run_dir))
    return LaunchOutcome(detached.wait_started(spec.name, reference), spec.run_dir)


def attendance(
    spec: RunSpec, agent: LocalAgent, detached: Detached | None, server_index: int | None = None, *, quiet: bool = False
) -> Callable[[], LaunchOutcome]:
    """Return a function that forwards signals, shows events, and blocks until all processes of the run have ended.

    Call this inside `signals_held_back`, right after `start_agent`; call the returned function outside of it. If
    `server_index` is given, only that server's ranks are watched. `quiet` shows only errors and verdicts.
    """
    # Imported while the agent starts ranks.
    from launcher.cli.text import console as on_console
    from launcher.cli.text import summary
    from launcher.cluster.launcher_loop import LauncherLoop

    console = on_console.Console(spec, server_index, quiet=quiet)
    head = LauncherLoop(spec, agent, Announcing(console, detached) if detached else console, server_index)

    def last_words() -> Iterator[str]:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run has ended; Ctrl-C must not change its exit code
        screen = screen_of(sys.stderr)
        offers = server_index is None and screen.columns is not None and not quiet
        return chain(
            summary.on_screen(console.progress, spec, console.shown_dir, server_index, screen),
            summary.next_commands(console.progress, spec, screen) if offers else (),
        )

    def attend() -> LaunchOutcome:
        exit_code = head.attend()
        console.finish(last_words)
        return LaunchOutcome(exit_code, spec.run_dir)

    return attend


# --- for --verbose ---


def outline(prepared: Prepared, spec: RunSpec) -> Iterator[str]:
    """Yield lines with the devices, layout and program of a run."""
    request, options, used = prepared.request, prepared.options, prepared.used
    source = "--devices" if options.devices is not None else "default"
    if request.cluster.source is not None:
        source = f"{prepared.table.format or 'rank'} table {request.cluster.source}"
    servers = counted(len(used.servers), "server")
    yield f"devices: {used.device_count} of {request.cluster.device_count} on {servers} ({source})"
    derived = "dp" if spec.layout.mp == options.mp else "mp"  # by a program that divides its operators over all ranks
    given = "--dp" if options.dp is not None else f"{derived} derived from {counted(spec.layout.world_size, 'rank')}"
    yield f"layout: {spec.layout} micro_batches={spec.layout.micro_batches} ({given})"
    kind = "the bundled trainer" if prepared.program.recipe is not None else prepared.program.kind
    yield f"program ({kind}): {shell_words(masked_argv(request.argv))}, in {spec.cwd}"


def decided(prepared: Prepared, spec: RunSpec) -> Iterator[str]:
    """Yield a line for each decision about a run, such as its devices, layout and port."""
    options = prepared.options
    yield from outline(prepared, spec)
    yield f"preloading: {_preloading(prepared)}"
    first, rules = spec.ranks[0].cpus, spec.supervision
    cores = "not bound" if first is None else f"{ranges(first)} for rank 0, separate cores for each rank"
    yield f"cores: {cores} (--bind {options.bind})"
    if spec.master_port:
        yield f"rendezvous: {spec.master_addr}:{spec.master_port} ({'--master-port' if options.master_port else 'a free port'})"
    restarts = f"at most {counted(rules.max_restarts, 'restart')}" if rules.max_restarts else "no restarts"
    limit_s = rules.hang_timeout_s
    hung = "no hang timeout" if limit_s is None else f"hung after {limit_s:g} s without progress"
    ends = "" if rules.time_limit_s is None else f", {time_limit(rules.time_limit_s)}"
    yield f"failures: {restarts}, {hung}, {rules.grace_s:g} s between SIGTERM and SIGKILL{ends}"
    yield f"run directory: {spec.run_dir}"


def _preloading(prepared: Prepared) -> str:
    supervision, options = prepared.request.supervision, prepared.options
    if supervision.preload is not None:
        found = "--preload" if options.preload is not None else "detected from the program"
        return f"{', '.join(supervision.preload) or 'no modules, but ranks are forked'} ({found})"
    if options.no_preload:
        return "none (--no-preload)"
    if prepared.request.mpi_ranks:
        return "none: mpirun or srun starts each rank as a new process"
    return "none: the program is not Python, or its command line does not allow forked ranks"
