"""From what was asked for to the RunSpec. Pure: no clock, no file, no socket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.core import env
from launcher.core.records import Cluster, Layout, RankSpec, RunSpec, Server

REDUCED_TABLE = "rank_table.json"  # in the run directory, when some devices of the table stay idle
THIS_MACHINE = "127.0.0.1"


@dataclass(frozen=True)
class Request:
    """Everything but the run's name and port."""

    cluster: Cluster
    layout: Layout  # Invariant: layout.world_size <= cluster.device_count
    argv: tuple[str, ...]
    cwd: Path  # absolute
    runs_dir: Path  # absolute
    grace_s: float
    console_ranks: tuple[int, ...]
    user_env: Mapping[str, str]  # from --env
    inherited_env: Mapping[str, str]
    usable_cores: int


def used_cluster(cluster: Cluster, world_size: int) -> Cluster:
    """The cluster cut to ranks below `world_size`; servers that lose all their devices go too."""
    kept = (
        replace(server, devices=tuple(device for device in server.devices if device.global_rank < world_size))
        for server in cluster.servers
    )
    return replace(cluster, servers=tuple(server for server in kept if server.devices))


def assemble(request: Request, *, name: str, master_port: int) -> RunSpec:
    """The run called `name`: every rank with its command and what tlaunch adds to its environment."""
    used = used_cluster(request.cluster, request.layout.world_size)
    run_dir = request.runs_dir / name
    master_addr = _master_addr(used)
    shared: dict[str, str | None] = {
        env.RANK_SIZE: str(request.layout.world_size),
        env.WORLD_SIZE: str(request.layout.world_size),
        env.GROUP_WORLD_SIZE: str(len(used.servers)),
        env.MASTER_ADDR: master_addr,
        env.MASTER_PORT: str(master_port),
        env.RANK_TABLE_FILE: _table_path(request, run_dir),
        env.TLAUNCH_RUN_DIR: str(run_dir),
        env.TLAUNCH_RUN_ID: name,
        env.TLAUNCH_DP: str(request.layout.dp),
        env.TLAUNCH_MP: str(request.layout.mp),
        env.TLAUNCH_PP: str(request.layout.pp),
        env.TLAUNCH_MICRO_BATCHES: str(request.layout.micro_batches),
    }
    ranks = [
        rank
        for server_index, server in enumerate(used.servers)
        for rank in _ranks_of(server, server_index, request, shared)
    ]
    return RunSpec(
        name=name,
        run_dir=run_dir,
        cluster=request.cluster,
        layout=request.layout,
        ranks=tuple(sorted(ranks, key=lambda rank: rank.global_rank)),
        cwd=request.cwd,
        master_addr=master_addr,
        master_port=master_port,
        grace_s=request.grace_s,
        console_ranks=request.console_ranks,
    )


def _ranks_of(
    server: Server, server_index: int, request: Request, shared: Mapping[str, str | None]
) -> tuple[RankSpec, ...]:
    local = {
        **_defaults(request, local_world_size=len(server.devices)),
        **shared,
        env.GROUP_RANK: str(server_index),
        env.LOCAL_WORLD_SIZE: str(len(server.devices)),
    }
    return tuple(
        RankSpec(
            global_rank=device.global_rank,
            local_rank=local_rank,
            server_id=server.server_id,
            server_index=server_index,
            device_id=device.device_id,
            argv=request.argv,
            env={
                env.DEVICE_ID: str(device.device_id),
                env.RANK_ID: str(device.global_rank),
                env.RANK: str(device.global_rank),
                env.LOCAL_RANK: str(local_rank),
                **local,
                **request.user_env,
            },
            device_ip=device.device_ip,
        )
        for local_rank, device in enumerate(server.devices)
    )


def _defaults(request: Request, *, local_world_size: int) -> dict[str, str]:
    """What only fills a gap: a person's own choice, in the environment or by --env, stands."""
    wanted = {
        env.OMP_NUM_THREADS: str(max(1, request.usable_cores // local_world_size)),
        env.PYTHONUNBUFFERED: "1",
    }
    return {name: value for name, value in wanted.items() if name not in request.inherited_env}


def _master_addr(used: Cluster) -> str:
    if len(used.servers) == 1:
        return THIS_MACHINE
    return next(server.server_id for server in used.servers for device in server.devices if device.global_rank == 0)


def _table_path(request: Request, run_dir: Path) -> str | None:
    """None takes an inherited RANK_TABLE_FILE away: it would describe other devices than these."""
    if request.cluster.source is None:
        return None
    if request.layout.world_size < request.cluster.device_count:
        return str(run_dir / REDUCED_TABLE)
    return str(request.cluster.source.absolute())
