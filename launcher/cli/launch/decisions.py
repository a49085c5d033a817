"""Put into words what was decided for a run and why: what `tlaunch run --verbose` adds."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.cli.launch.dry_run import render_engine
from launcher.cli.launch.options import RunOptions
from launcher.cli.launch.prepare import Prepared
from launcher.cli.text.columns import counted
from launcher.core.records import RunSpec
from launcher.core.text import ranges, shell_words
from launcher.engines.command import EngineCommand
from launcher.preload.masking import masked_argv


def decided(prepared: Prepared, spec: RunSpec) -> Iterator[str]:
    """Yield lines for a person: devices and layout, program, preloading, cores, port, ends."""
    request, options, used = prepared.request, prepared.options, prepared.used
    source = "--devices" if options.devices is not None else "nothing said how many"
    if request.cluster.source is not None:
        source = f"{prepared.table_format or 'rank'} table {request.cluster.source}"
    servers = counted(len(used.servers), "server")
    yield f"devices: {used.device_count} of {request.cluster.device_count} on {servers} ({source})"
    given = "--dp" if options.dp is not None else f"dp follows from {spec.layout.world_size} ranks"
    yield f"layout: {spec.layout} micro_batches={spec.layout.micro_batches} ({given})"
    kind = "the bundled trainer" if prepared.program.recipe is not None else prepared.program.kind
    yield f"program ({kind}): {shell_words(masked_argv(request.argv))}, in {spec.cwd}"
    yield f"preloading: {_preloading(prepared)}"
    yield f"cores: {_cores(spec)} (--bind {options.bind})"
    if spec.master_port:
        yield f"rendezvous: {spec.master_addr}:{spec.master_port} ({'--master-port' if options.master_port else 'a free port'})"
    yield f"ends: {_ends(spec)}"
    yield f"run directory: {spec.run_dir}"


def engine_lines(command: EngineCommand, options: RunOptions) -> Iterator[str]:
    """Yield the command that starts agents, secrets masked; none where people start them."""
    if options.by_engine:
        yield from render_engine(command)


def _preloading(prepared: Prepared) -> str:
    supervision, options = prepared.request.supervision, prepared.options
    if supervision.preload is not None:
        found = "--preload" if options.preload is not None else "found in the program"
        return f"{', '.join(supervision.preload) or 'no module, but ranks are forked'} ({found})"
    if options.no_preload:
        return "none (--no-preload)"
    if prepared.request.mpi_ranks:
        return "none: mpirun or srun starts a process for each rank"
    return "none: the program is not Python, or is not started in a way that ranks can be forked from"


def _cores(spec: RunSpec) -> str:
    first = spec.ranks[0].cpus
    return "all for every rank" if first is None else f"{ranges(first)} for rank 0, others for others"


def _ends(spec: RunSpec) -> str:
    rules = spec.supervision
    hung = (
        "no look for hangs"
        if rules.hang_timeout_s is None
        else f"hung after {rules.hang_timeout_s:g} s without progress"
    )
    restarts = counted(rules.max_restarts, "restart") if rules.max_restarts else "no restart"
    return f"{restarts}, {hung}, {rules.grace_s:g} s between SIGTERM and SIGKILL"
