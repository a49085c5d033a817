"""Turn a Request into a RunSpec. Pure: no clock, files or sockets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import chain
from pathlib import Path

from launcher.core.frozen import frozen
from launcher.core.records import (
    Cluster,
    Device,
    DeviceAssignment,
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
    NO_BREAKPOINTS,
    Origin,
    Variable,
    default_variables,
    laid_over,
    rank_variables,
    run_variables,
    table_variable,
)

# In the run directory; used if devices of the table stay idle, or if servers may not share the table's own file.
OWN_TABLE = "rank_table.json"
THIS_MACHINE = "127.0.0.1"


@frozen
class Request:
    """Everything that defines a run, except its name and port."""

    cluster: Cluster
    layout: Layout  # Invariant: layout.world_size <= cluster.device_count
    argv: tuple[str, ...]
    cwd: Path  # an absolute path
    runs_dir: Path  # an absolute path
    supervision: Supervision
    user_env: Mapping[str, str]  # from --env
    inherited_env: Mapping[str, str]
    machine: Machine  # this server
    bind: Bind = "auto"
    console: str = "rank0"
    engine: str | None = None  # the external launcher that started the ranks; None: tlaunch starts them
    mpi_ranks: bool = False  # tlaunch starts the ranks in place of processes that mpirun or srun started
    here: int | None = None  # index of `machine` among several servers; None: not one of them, or only one server
    # By server index, as far as known here: the network interface through which its ranks reach other servers.
    interfaces: Mapping[int, str] = field(default_factory=dict)
    mpi_variables: Mapping[str, str] = field(default_factory=dict)  # that the ranks' MPI needs under this mpirun
    continues: ResumedFrom | None = None
    progress_regex: str | None = None
    stdin: int | None = None
    offers_stdin: bool = True


@frozen
class Draft:
    """The spec of one rank, with the reasons for its settings."""

    rank: RankSpec
    variables: tuple[Variable, ...]  # every variable that tlaunch decides on; RankSpec.env holds those to set or remove
    share: Share


def used_cluster(cluster: Cluster, world_size: int) -> Cluster:
    return allotted_cluster(cluster, range(world_size))


def wants_own_table(cluster: Cluster, used: Cluster, engine: str | None) -> bool:
    """Return True if ranks must read a table in the run directory instead of the user's table."""
    return used.device_count < cluster.device_count or (len(used.servers) > 1 and engine is None)


def servers_with_agents(cluster: Cluster, layout: Layout, supervision: Supervision) -> Cluster:
    """Return a cluster with only the servers that have ranks. For an elastic run, return all servers."""
    return used_cluster(cluster, layout.world_size) if supervision.elastic is None else cluster


def allotted_cluster(cluster: Cluster, devices: Sequence[int]) -> Cluster:
    """Return the cluster with only these devices (global ranks, ascending). Their ranks are renumbered from 0."""
    rank_of = {device: rank for rank, device in enumerate(devices)}

    def kept(server: Server) -> Iterator[Device]:
        for device in server.devices:
            if (rank := rank_of.get(device.global_rank)) is not None:
                yield device if rank == device.global_rank else replace(device, global_rank=rank)

    servers = (replace(server, devices=tuple(kept(server))) for server in cluster.servers)
    return replace(cluster, servers=tuple(server for server in servers if server.devices))


def servers_of_attempt(servers: Sequence[Server], allotment: DeviceAssignment | None) -> tuple[Server, ...]:
    """Return all servers, with only the devices that this attempt uses. An unused server has no devices."""
    if allotment is None:
        return tuple(servers)
    part = allotted_cluster(Cluster(tuple(servers)), allotment.devices)
    kept = {server.server_id: server for server in part.servers}
    return tuple(kept.get(server.server_id, replace(server, devices=())) for server in servers)


def attempt_table(number: int) -> str:
    return f"rank_table.{number}.json"


def attempt_request(request: Request, allotment: DeviceAssignment) -> Request:
    """Restrict the request to the devices and layout of `allotment`. Servers without devices are removed."""
    cluster = allotted_cluster(request.cluster, allotment.devices)
    kept = _indices(cluster, request.cluster)
    return replace(
        request,
        cluster=cluster,
        layout=allotment.layout,
        here=kept.index(request.here) if request.here in kept else None,
        bind=request.bind if request.here in {None, *kept} else "none",  # this server has no rank
        interfaces={kept.index(index): value for index, value in request.interfaces.items() if index in kept},
    )


def assemble_attempt(
    request: Request, allotment: DeviceAssignment, number: int, *, name: str, master_port: int
) -> RunSpec:
    """Return the spec of one attempt of an elastic run. Servers keep their indices. Raises the errors of `assemble`."""
    part = attempt_request(request, allotment)
    kept = _indices(part.cluster, request.cluster)
    spec = assemble(part, name=name, master_port=master_port, own_table=attempt_table(number))
    return replace(spec, ranks=tuple(replace(rank, server_index=kept[rank.server_index]) for rank in spec.ranks))


def _indices(part: Cluster, whole: Cluster) -> list[int]:
    index_of = {server.server_id: index for index, server in enumerate(whole.servers)}
    return [index_of[server.server_id] for server in part.servers]


def assemble(request: Request, *, name: str, master_port: int, own_table: str | None = None) -> RunSpec:
    """Return the spec of the run `name`: every rank with its command and the environment that tlaunch adds.

    `own_table`: name of a table in the run directory, which ranks then read if the user gave any table.
    Raises RefusedLayoutError if `request.bind` needs more cores than this machine has, now or in a later attempt.
    """
    servers = request.cluster.servers
    here = 0 if len(servers) == 1 else request.here
    if request.supervision.elastic is not None and here is not None:
        # Raise if the binding fails for as many ranks as later attempts may start on this machine.
        shares_of(min(len(servers[here].devices), request.layout.world_size), request.bind, request.machine)
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
        stdin=request.stdin,
        offers_stdin=request.offers_stdin,
    )


def draft(request: Request, *, name: str, master_port: int, own_table: str | None = None) -> tuple[Draft, ...]:
    """Return all ranks in order, with the origins of their variables. For `own_table` and errors see `assemble`."""
    request = replace(request, inherited_env=dict(request.inherited_env))  # os.environ decodes on every access
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
    drafts = (_drafts_of(server_index, used, request, run_dir, shared) for server_index in range(len(used.servers)))
    return tuple(sorted(chain.from_iterable(drafts), key=lambda one: one.rank.global_rank))


def _drafts_of(
    server_index: int, used: Cluster, request: Request, run_dir: Path, shared: tuple[Variable, ...]
) -> Iterator[Draft]:
    server = used.servers[server_index]
    # The cores of other servers are unknown, so nothing is bound there.
    is_here = len(used.servers) == 1 or server_index == request.here
    shares = shares_of(len(server.devices), request.bind if is_here else "none", request.machine)
    for local_rank, (device, share) in enumerate(zip(server.devices, shares, strict=True)):
        own = rank_variables(
            used, server_index, local_rank, run_dir, with_scheduler=request.supervision.scheduler is not None
        )
        is_cut_off = request.stdin not in {None, device.global_rank}  # from the stdin that another rank reads
        decided = (*own, *shared, *[NO_BREAKPOINTS] * is_cut_off)
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


def _used(request: Request) -> Cluster:
    return used_cluster(request.cluster, request.layout.world_size)


def _master_addr(used: Cluster) -> str:
    if len(used.servers) == 1:
        return THIS_MACHINE
    return used.servers[used.first_server].server_id
