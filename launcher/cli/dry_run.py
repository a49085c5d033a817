"""What `--dry-run` prints: per rank a comment and a line that a shell would take."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

from launcher.core.env import masked, masked_argv
from launcher.core.json_text import json_text
from launcher.core.records import RankSpec, RunSpec
from launcher.core.text import ranges
from launcher.engines.command import EngineCommand
from launcher.logs.terminal import escaped
from launcher.mesh.coordinates import coordinate_of
from launcher.runs.record import masked_environment, spec_to_json


def render(spec: RunSpec) -> Iterator[str]:
    """The lines, two per rank. Masked values would have to be filled in before pasting; the comment names them."""
    for rank in spec.ranks:
        yield _comment(rank, spec)
        yield _command_line(rank, spec)


def render_engine(command: EngineCommand) -> Iterator[str]:
    """What is started here: a comment with each file that it reads, and its line."""
    for path, text in command.files.items():
        yield f"# {escaped(str(path))}:"
        yield from (f"#   {escaped(line)}" for line in text.splitlines())
    removed = [word for name, value in command.env.items() if value is None for word in ("-u", name)]
    added = [f"{name}={masked(name, value)}" for name, value in command.env.items() if value is not None]
    yield f"# {escaped(command.engine)}, with the environment that tlaunch has:"
    yield shlex.join(["env", *removed, *added, *masked_argv(command.argv)])


def to_json(spec: RunSpec, command: EngineCommand | None) -> str:
    """As run.json has it, and what is started here where an engine starts agents; secrets masked in both."""
    if command is None:
        return spec_to_json(spec)
    engine_command = {
        "engine": command.engine,
        "argv": masked_argv(command.argv),
        "env": masked_environment(command.env),
        "files": {str(path): text for path, text in command.files.items()},
    }
    return json_text({**json.loads(spec_to_json(spec)), "engine_command": engine_command})


def _comment(rank: RankSpec, spec: RunSpec) -> str:
    """A comment ends with its line, so nothing from a table may end it early."""
    place = coordinate_of(rank.global_rank, spec.layout)
    hidden = [name for name, value in rank.env.items() if value is not None and masked(name, value) != value]
    hidden += ["the command"] if masked_argv(rank.argv) != rank.argv else []
    return (
        f"# rank {rank.global_rank}: server {escaped(rank.server_id)}, device {rank.device_id}, "
        f"pp={place.pp} dp={place.dp} mp={place.mp}{_cpus(rank)}"
        + (f", masked here: {', '.join(hidden)}" if hidden else "")
    )


def _cpus(rank: RankSpec) -> str:
    return "" if rank.cpus is None else f", cpus {ranges(rank.cpus)}"


def _command_line(rank: RankSpec, spec: RunSpec) -> str:
    removed = [word for name, value in rank.env.items() if value is None for word in ("-u", name)]
    added = [f"{name}={masked(name, value)}" for name, value in rank.env.items() if value is not None]
    return f"cd {shlex.quote(str(spec.cwd))} && {shlex.join(['env', *removed, *added, *masked_argv(rank.argv)])}"
