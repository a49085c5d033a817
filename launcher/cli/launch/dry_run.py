"""The output of `--dry-run`: a summary; with --verbose a comment and a shell command for each rank; or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from launcher.cli.launch.begin import outline, say_notes
from launcher.cli.launch.elastic import first_allotment
from launcher.cli.launch.prepare import Prepared
from launcher.cli.launch.rank_network import with_network
from launcher.cli.launch.recorded import to_record
from launcher.cli.text.membership_text import attempt_text
from launcher.cli.text.stdout import say, write_lines, write_out
from launcher.core import env
from launcher.core.codec import json_text
from launcher.core.records import Layout, RankSpec, RunSpec
from launcher.core.text import printable, ranges, shell_word, shell_words, some_of
from launcher.engines.assemble import assemble, assemble_attempt
from launcher.engines.engine_command import EngineCommand
from launcher.logs.terminal import escaped
from launcher.mesh.coordinates import coordinate_of
from launcher.preload.masking import masked, masked_argv
from launcher.runs.record import free_name, masked_environment, spec_to_json
from launcher.supervise.port import hold_port

SHOWN_VALUES = 3  # of a variable on the other ranks
SEVERAL_SERVERS_PORT = 29500  # torchrun's default; the free ports of another server are unknown


def show(prepared: Prepared) -> None:
    """Print the commands of a run without starting or creating anything."""
    prepared = with_network(prepared)
    options, request = prepared.options, prepared.request
    port = options.master_port or SEVERAL_SERVERS_PORT
    if options.master_port is None and len(prepared.used.servers) == 1:
        held = hold_port()
        held.close()
        port = held.number
    name = free_name(request.runs_dir, prepared.timed_name)
    spec = assemble(request, name=name, master_port=port)
    first = first_allotment(request)
    if first is not None:
        spec = replace(assemble_attempt(request, first, 0, name=name, master_port=port), cluster=request.cluster)
    command = None
    if options.by_engine:
        from launcher.cli.launch.engine_commands import engine_command  # only for mpirun and srun

        command = engine_command(prepared, spec)
    say_notes(prepared, spec)
    if first is not None:
        say(attempt_text(0, first, request.cluster.servers))
    if options.json:
        write_out(to_json(spec, to_record(options), command))
        return
    if options.master_port is None and not options.quiet:
        say(f"# MASTER_PORT {port} is an example; the run uses a free port")
    lines = [] if command is None else [*render_engine(command)]
    if command is None and len(prepared.used.servers) > 1:
        lines = ["# run this same command on each server; it starts the ranks of that server"]
    lines += render(spec) if options.verbose else summary(prepared, spec)
    write_lines(lines)


def summary(prepared: Prepared, spec: RunSpec) -> Iterator[str]:
    """Yield the outline of a run, the place of each rank, and their variables."""
    yield from map(printable, outline(prepared, spec))
    if prepared.program.recipe is not None:
        from launcher.cli.training.trainer_program import changed_settings  # only for the bundled trainer

        yield "settings changed (`tlaunch explain --settings` shows all):"
        yield from (f"  {setting}" for setting in changed_settings(prepared.options, spec.layout) or ("none",))
    yield f"run directory: {printable(str(spec.run_dir))}"
    if (scheduler := spec.supervision.scheduler) is not None:
        yield f"MindSpore's scheduler: {shell_words(masked_argv(scheduler))}"
    yield ""
    yield from (_place(rank, spec.layout) for rank in spec.ranks)
    yield ""
    yield from _variables(spec)


def _variables(spec: RunSpec) -> Iterator[str]:
    """Yield the variables of rank 0, and the values of variables that differ on other ranks."""
    first, *others = spec.ranks
    yield "variables of rank 0:"
    for name, value in first.env.items():
        yield f"  unset {name}" if value is None else f"  {shell_word(f'{name}={masked(name, value)}')}"
    differing = [name for name in first.env if any(other.env.get(name) != first.env[name] for other in others)]
    differing += {name: None for other in others for name in other.env if name not in first.env}
    if differing:
        yield ""
        yield "other values on the other ranks (--verbose shows all):"
    for name in differing:
        found = [other.env.get(name) for other in others]
        values = ["unset" if value is None else shell_word(masked(name, value)) for value in found]
        yield f"  {name}: {some_of(values, SHOWN_VALUES).replace(f'{spec.run_dir}/', '')}"


def render(spec: RunSpec) -> Iterator[str]:
    """Yield a comment and a command for each rank and for MindSpore's scheduler.

    The comment names the variables with masked values, which the user must fill in.
    """
    for rank in spec.ranks:
        hidden = [name for name, value in rank.env.items() if value is not None and masked(name, value) != value]
        hidden += ["the command"] if masked_argv(rank.argv) != rank.argv else []
        yield f"# {_place(rank, spec.layout)}" + (f", masked: {', '.join(hidden)}" if hidden else "")
        yield f"cd {shell_word(str(spec.cwd))} && {_env_command(rank.env, rank.argv)}"
    if (scheduler := spec.supervision.scheduler) is not None:
        yield f"# MindSpore's scheduler, on the server of rank 0, {escaped(spec.ranks[0].server_id)}"
        environment = {**spec.ranks[0].env, env.MS_ROLE: "MS_SCHED", env.MS_NODE_ID: None}
        yield f"cd {shell_word(str(spec.cwd))} && {_env_command(environment, scheduler)}"


def _place(rank: RankSpec, layout: Layout) -> str:
    """Return the server, device, coordinates and cores of a rank. Values from the table are escaped."""
    place = coordinate_of(rank.global_rank, layout)
    cpus = "" if rank.cpus is None else f", cpus {ranges(rank.cpus)}"
    where = f"server {escaped(rank.server_id)}, device {rank.device_id}"
    return f"rank {rank.global_rank}: {where}, pp={place.pp} dp={place.dp} mp={place.mp}{cpus}"


def render_engine(command: EngineCommand) -> Iterator[str]:
    """Yield a comment with each file that the engine's command reads, and then the command."""
    for path, text in command.files.items():
        yield f"# {escaped(str(path))}:"
        yield from (f"#   {escaped(line)}" for line in text.splitlines())
    yield f"# {escaped(command.engine)}, with tlaunch's environment:"
    yield _env_command(command.env, command.argv)


def _env_command(environment: Mapping[str, str | None], argv: Sequence[str]) -> str:
    """Return a shell command that sets the environment and runs `argv`, with secrets masked."""
    removed = [word for name, value in environment.items() if value is None for word in ("-u", name)]
    added = [f"{name}={masked(name, value)}" for name, value in environment.items() if value is not None]
    return shell_words(["env", *removed, *added, *masked_argv(argv)])


def to_json(spec: RunSpec, recorded: Mapping[str, Any], command: EngineCommand | None) -> str:
    """Return the content of run.json, with secrets masked, plus the engine's command if there is one."""
    text = spec_to_json(spec, recorded)
    if command is None:
        return text
    engine_command = {
        "engine": command.engine,
        "argv": masked_argv(command.argv),
        "env": masked_environment(command.env),
        "files": {str(path): text for path, text in command.files.items()},
    }
    return json_text({**json.loads(text), "engine_command": engine_command})
