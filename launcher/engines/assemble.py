"""Turns a Request into the RunSpec. Pure: no clock, no file, no socket."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

from launcher.core.frozen import frozen
from launcher.core.records import (
    Allotment,
    Cluster,
    Console,
    Layout,
    RankSpec,
    ResumedFrom,
    RunSpec,
    Server,
    Supervision,
)
from launcher.engines.leftover_variables import removed_variables
from launcher.engines.placement import Bind, Machine, Share, shares_of
from launcher.engines.variables import (
    Origin,
    Variable,
    default_variables,
    laid_over,
    rank_variables,
    run_variables,
    table_variable,
)

# In the run directory: when some devices of the table stay idle, and where servers may not share the table's own file.
OWN_TABLE = "rank_table.json"
THIS_MACHINE = "127.0.0.1"


@frozen
class Request:
    """A request for a run: all that is asked for but its name and its port."""

    cluster: Cluster
    layout: Layout  # Invariant: layout.world_size <= cluster.device_count
    argv: tuple[str, ...]
    cwd: Path  # absolute
    runs_dir: Path  # absolute
    supervision: Supervision
    user_env: Mapping[str, str]  # from --env
    inherited_env: Mapping[str, str]
    machine: Machine  # this one
    bind: Bind = "auto"
    console: Console = "rank0"
    engine: str | None = None  # the foreign one that has started the ranks; None: tlaunch starts them
    mpi_ranks: bool = False  # tlaunch starts them in the place of processes that an mpirun or srun has started
    here: int | None = None  # which of several servers `machine` is; None: none of them, or there is only one
    # By the index of the server, as far as that is known on this machine: by which interface its ranks reach the others.
    interfaces: Mapping[int, str] = field(default_factory=dict)
    mpi_variables: Mapping[str, str] = field(default_factory=dict)  # what the ranks' MPI needs under this mpirun
    continues: ResumedFrom | None = None
    progress_regex: str | None = None


@frozen
class Draft:
    """One rank, and why it is as it is."""

    rank: RankSpec
    variables: tuple[Variable, ...]  # all that tlaunch has a say in; RankSpec.env is what of it is laid over
    share: Share


def used_cluster(cluster: Cluster, world_size: int) -> Cluster:
    """Return the cluster cut to ranks below `world_size`, without servers that have none of them."""
    kept = (
        replace(server, devices=tuple(device for device in server.devices if device.global_rank < world_size))
        for server in cluster.servers
    )
    return replace(cluster, servers=tuple(server for server in kept if server.devices))


def wants_own_table(cluster: Cluster, used: Cluster, engine: str | None) -> bool:
    """Return True if ranks read a table in the run directory instead of the one that was given."""
    return used.device_count < cluster.device_count or (len(used.servers) > 1 and engine is None)


def servers_with_agents(cluster: Cluster, layout: Layout, supervision: Supervision) -> Cluster:
    """Return the cluster of the servers that take part: those that have ranks, or all of an elastic run."""
    return used_cluster(cluster, layout.world_size) if supervision.elastic is None else cluster


def allotted_cluster(cluster: Cluster, devices: Sequence[int]) -> Cluster:
    """Return the cluster cut to the devices of these ranks, in ascending order, which get the ranks 0, 1, ... there."""
    rank_of = {device: rank for rank, device in enumerate(devices)}
    kept = (
        replace(
            server,
            devices=tuple(
                replace(device, global_rank=rank_of[device.global_rank])
                for device in server.devices
                if device.global_rank in rank_of
            ),
        )
        for server in cluster.servers
    )
    return replace(cluster, servers=tuple(server for server in kept if server.devices))


def servers_of_attempt(servers: Sequence[Server], allotment: Allotment | None) -> tuple[Server, ...]:
    """Return all servers, with the devices and the ranks of that attempt; one that has none of them has no devices then."""
    if allotment is None:
        return tuple(servers)
    part = allotted_cluster(Cluster(tuple(servers)), allotment.devices)
    kept = {server.server_id: server for server in part.servers}
    return tuple(kept.get(server.server_id, replace(server, devices=())) for server in servers)


def attempt_table(number: int) -> str:
    """Return the name of the table that the ranks of an attempt on other devices read."""
    return f"rank_table.{number}.json"


def attempt_request(request: Request, allotment: Allotment) -> Request:
    """Return the request cut to the devices and the layout of `allotment`; servers without any of them are left out."""
    cluster = allotted_cluster(request.cluster, allotment.devices)
    kept = _indices(cluster, request.cluster)
    return replace(
        request,
        cluster=cluster,
        layout=allotment.layout,
        here=kept.index(request.here) if request.here in kept else None,
        bind=request.bind if request.here in {None, *kept} else "none",  # no rank is here
        interfaces={kept.index(index): value for index, value in request.interfaces.items() if index in kept},
    )


def assemble_attempt(request: Request, allotment: Allotment, number: int, *, name: str, master_port: int) -> RunSpec:
    """Return the spec of an attempt of an elastic run on the devices of `allotment`; servers keep the indices they have.

    Raises:
        RefusedLayoutError: as `assemble`.
    """
    part = attempt_request(request, allotment)
    kept = _indices(part.cluster, request.cluster)
    spec = assemble(part, name=name, master_port=master_port, own_table=attempt_table(number))
    return replace(spec, ranks=tuple(replace(rank, server_index=kept[rank.server_index]) for rank in spec.ranks))


def _indices(part: Cluster, whole: Cluster) -> list[int]:
    """Return the index that each server of `part` has in the whole cluster."""
    index_of = {server.server_id: index for index, server in enumerate(whole.servers)}
    return [index_of[server.server_id] for server in part.servers]


def assemble(request: Request, *, name: str, master_port: int, own_table: str | None = None) -> RunSpec:
    """Return the spec of the run `name`: every rank with its command and what tlaunch adds to its environment.

    `own_table`: the name of the table in the run directory that ranks read in any case, if there is a table.

    Raises:
        RefusedLayoutError: `request.bind` asks for cores that this machine does not have, in this or a later attempt.
    """
    if request.supervision.elastic is not None:
        _check_binding(request)
    taking_part = servers_with_agents(request.cluster, request.layout, request.supervision).servers
    index_of = {server.server_id: index for index, server in enumerate(taking_part)}
    drafts = draft(request, name=name, master_port=master_port, own_table=own_table)
    return RunSpec(
        name=name,
        run_dir=request.runs_dir / name,
        cluster=request.cluster,
        layout=request.layout,
        ranks=tuple(replace(one.rank, server_index=index_of[one.rank.server_id]) for one in drafts),
        cwd=request.cwd,
        master_addr=_master_addr(_used(request)),
        master_port=master_port,
        supervision=request.supervision,
        console=request.console,
        engine=request.engine,
        continues=request.continues,
        progress_regex=request.progress_regex,
    )


def draft(request: Request, *, name: str, master_port: int, own_table: str | None = None) -> tuple[Draft, ...]:
    """Return every rank of that run in order, with its variables' origins. `own_table`: as in `assemble`.

    Raises:
        RefusedLayoutError: as `assemble`.
    """
    request = replace(request, inherited_env=dict(request.inherited_env))  # os.environ decodes with every look
    used, run_dir = _used(request), request.runs_dir / name
    master = _master_addr(used), master_port
    source = request.cluster.source
    whole = request.layout.world_size == request.cluster.device_count
    if own_table is None and wants_own_table(request.cluster, used, request.engine):
        own_table = OWN_TABLE
    with_scheduler = request.supervision.scheduler is not None
    table = run_dir / own_table if source and own_table else source
    ours = (
        *run_variables(used, request.layout, request.supervision, run_dir, master),
        table_variable(used, table and table.absolute(), whole=whole),
    )
    foreign = removed_variables(
        request.inherited_env,
        (*rank_variables(used, 0, 0, run_dir, with_scheduler=with_scheduler), *ours),
        within_engine=request.engine is not None or request.mpi_ranks,
    )
    shared = (*foreign, *ours)
    drafts = (
        one
        for server_index in range(len(used.servers))
        for one in _drafts_of(server_index, used, request, run_dir, shared)
    )
    return tuple(sorted(drafts, key=lambda one: one.rank.global_rank))


def _drafts_of(
    server_index: int, used: Cluster, request: Request, run_dir: Path, shared: tuple[Variable, ...]
) -> Iterator[Draft]:
    server = used.servers[server_index]
    # Other servers' cores are not known: nothing is bound there.
    is_here = len(used.servers) == 1 or server_index == request.here
    shares = shares_of(len(server.devices), request.bind if is_here else "none", request.machine)
    for local_rank, (device, share) in enumerate(zip(server.devices, shares, strict=True)):
        own = rank_variables(
            used, server_index, local_rank, run_dir, with_scheduler=request.supervision.scheduler is not None
        )
        decided = (*own, *shared)
        chosen = {**request.inherited_env, **request.user_env}
        defaults = default_variables(share, request.interfaces.get(server_index), request.mpi_variables, chosen=chosen)
        variables = laid_over(request.inherited_env, defaults, decided, request.user_env)
        rank = RankSpec(
            global_rank=device.global_rank,
            local_rank=local_rank,
            server_id=server.server_id,
            server_index=server_index,
            device_id=device.device_id,
            argv=request.argv,
            env={one.name: one.value for one in variables if one.origin is not Origin.INHERITED},
            device_ip=device.device_ip,
            cpus=share.cpus,
        )
        yield Draft(rank, variables, share)


def _check_binding(request: Request) -> None:
    """Refuse a binding that does not hold for as many ranks as attempts on other devices may have on this machine."""
    servers = request.cluster.servers
    here = 0 if len(servers) == 1 else request.here
    if here is not None:
        shares_of(min(len(servers[here].devices), request.layout.world_size), request.bind, request.machine)


def _used(request: Request) -> Cluster:
    return used_cluster(request.cluster, request.layout.world_size)


def _master_addr(used: Cluster) -> str:
    if len(used.servers) == 1:
        return THIS_MACHINE
    return used.servers[used.first_server].server_id
