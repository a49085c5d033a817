"""The variables that tlaunch decides for a rank, and how they combine with inherited ones. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from pathlib import Path

from launcher.core import env
from launcher.core.frozen import frozen
from launcher.core.machine.interfaces import interface_variables
from launcher.core.records import Cluster, Layout, Supervision
from launcher.core.run_dir import RunDir
from launcher.engines.placement import Share

VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")
# Threads of GNU OpenMP wait by spinning. With the default spin time, a rank whose cores are busy needs many times as
# long per step; docs/run.md has the measured ratios.
SPINNING = {env.GOMP_SPINCOUNT: "1000"}
OTHER_OPEN_MPI = "an Open MPI 5 library under the mpirun of Open MPI 4"


class Origin(str, Enum):
    INHERITED = "inherited"  # from the shell that starts tlaunch
    OPTION = "--env"
    TABLE = "rank table"
    LAYOUT = "layout"
    TLAUNCH = "tlaunch"
    REMOVED = "removed"


@frozen
class Variable:
    name: str
    value: str | None  # None: removed
    origin: Origin
    why: str  # how the value follows from its origin, in a few words; may be empty
    instead_of: str | None = None  # a different value in the environment. Like `value`, it is not masked


NO_BREAKPOINTS = Variable(env.PYTHONBREAKPOINT, "0", Origin.TLAUNCH, "only the rank of --stdin can run a debugger")


def run_variables(
    used: Cluster, layout: Layout, supervision: Supervision, run_dir: Path, master: tuple[str, int]
) -> Iterator[Variable]:
    size, product = str(layout.world_size), f"dp={layout.dp} * mp={layout.mp} * pp={layout.pp}"
    server_count = len(used.servers)
    rank_0_where = "all ranks are on one server" if server_count == 1 else "the server of rank 0"
    attempt = "number of the first attempt"
    restarts = str(supervision.max_restarts)
    yield Variable(env.RANK_SIZE, size, Origin.LAYOUT, product)
    yield Variable(env.WORLD_SIZE, size, Origin.LAYOUT, product)
    yield Variable(env.GROUP_WORLD_SIZE, str(server_count), _from(used), "servers that ranks are on")
    yield Variable(env.MASTER_ADDR, master[0], _from(used) if server_count > 1 else Origin.TLAUNCH, rank_0_where)
    yield Variable(env.MASTER_PORT, str(master[1]), Origin.TLAUNCH, "of the first attempt")
    yield Variable(env.TORCHELASTIC_RUN_ID, run_dir.name, Origin.TLAUNCH, "time and --name")
    yield Variable(env.TORCHELASTIC_RESTART_COUNT, "0", Origin.TLAUNCH, attempt)
    yield Variable(env.TORCHELASTIC_MAX_RESTARTS, restarts, Origin.TLAUNCH, "--max-restarts")
    if supervision.scheduler is not None:
        meets = "MindSpore's scheduler, beside rank 0"
        yield Variable(env.MS_ROLE, "MS_WORKER", Origin.TLAUNCH, f"ranks meet at {meets}")
        yield Variable(env.MS_WORKER_NUM, size, Origin.LAYOUT, product)
        yield Variable(env.MS_SCHED_HOST, master[0], _from(used) if server_count > 1 else Origin.TLAUNCH, meets)
        yield Variable(env.MS_SCHED_PORT, str(master[1]), Origin.TLAUNCH, "MASTER_PORT of the same attempt")
    yield Variable(env.TLAUNCH_RUN_DIR, str(run_dir), Origin.TLAUNCH, "--runs-dir, time and --name")
    yield Variable(env.TLAUNCH_RUN_ID, run_dir.name, Origin.TLAUNCH, "time and --name")
    yield Variable(env.TLAUNCH_DP, str(layout.dp), Origin.LAYOUT, "--dp")
    yield Variable(env.TLAUNCH_MP, str(layout.mp), Origin.LAYOUT, "--mp")
    yield Variable(env.TLAUNCH_PP, str(layout.pp), Origin.LAYOUT, "--pp")
    yield Variable(env.TLAUNCH_MICRO_BATCHES, str(layout.micro_batches), Origin.LAYOUT, "--micro-batches")
    yield Variable(env.TLAUNCH_ATTEMPT, "0", Origin.TLAUNCH, attempt)
    yield Variable(env.TLAUNCH_MAX_RESTARTS, restarts, Origin.TLAUNCH, "--max-restarts")


def table_variable(used: Cluster, path: Path | None, *, whole: bool) -> Variable:
    """Return the RANK_TABLE_FILE variable of ranks. If there is no table, ranks do not get the variable."""
    if path is None:
        return Variable(env.RANK_TABLE_FILE, None, Origin.REMOVED, "this run has no rank table")
    return Variable(
        env.RANK_TABLE_FILE, str(path), _from(used), "as given" if whole else "cut to the ranks of this run"
    )


def rank_variables(
    used: Cluster, server_index: int, local_rank: int, run_dir: Path, *, with_scheduler: bool = False
) -> Iterator[Variable]:
    server = used.servers[server_index]
    device, origin = server.devices[local_rank], _from(used)
    rank = str(device.global_rank)
    where = f"device {device.device_id} of server {server.server_id}" if used.source else f"process {rank} of --devices"
    local_size = len(server.devices)
    yield Variable(env.DEVICE_ID, str(device.device_id), origin, where)
    yield Variable(env.RANK_ID, rank, origin, where)
    yield Variable(env.RANK, rank, origin, where)
    if with_scheduler:
        yield Variable(env.MS_NODE_ID, rank, origin, where)
    yield Variable(env.LOCAL_RANK, str(local_rank), origin, f"{local_rank} of {local_size} on its server, from 0")
    yield Variable(env.LOCAL_WORLD_SIZE, str(local_size), origin, "ranks on its server")
    yield Variable(env.GROUP_RANK, str(server_index), origin, f"server {server_index} of {len(used.servers)}, from 0")
    heartbeat = RunDir(run_dir).heartbeat(device.global_rank)
    yield Variable(env.TLAUNCH_HEARTBEAT_FILE, str(heartbeat), Origin.TLAUNCH, "where a rank may write heartbeats")


def default_variables(
    share: Share,
    interface: str | None = None,
    mpi_variables: Mapping[str, str] | None = None,
    *,
    chosen: Container[str] = (),
) -> tuple[Variable, ...]:
    """Return the variables that tlaunch sets by default. Values from the environment and --env take precedence.

    `interface`: this server's interface through which its ranks reach others; None: libraries choose. `mpi_variables`:
    what the ranks' MPI needs under the enclosing mpirun. `chosen`: names of the user's own variables.
    """
    spinning = {} if env.OMP_WAIT_POLICY in chosen else SPINNING
    reached = "the interface with this server's address"
    return (
        Variable(env.OMP_NUM_THREADS, str(share.threads), Origin.TLAUNCH, share.reason),
        Variable(env.PYTHONUNBUFFERED, "1", Origin.TLAUNCH, "lines reach train.log as they are printed"),
        *(
            Variable(name, value, Origin.TLAUNCH, "threads that wait longer than this sleep")
            for name, value in spinning.items()
        ),
        *(Variable(name, value, Origin.TABLE, reached) for name, value in interface_variables(interface).items()),
        *(Variable(name, value, Origin.TLAUNCH, OTHER_OPEN_MPI) for name, value in (mpi_variables or {}).items()),
    )


def laid_over(
    inherited: Mapping[str, str],
    defaults: Iterable[Variable],
    decided: Iterable[Variable],
    user_env: Mapping[str, str],
) -> tuple[Variable, ...]:
    """Merge variables that tlaunch sets or removes. Later arguments win, except that `inherited` beats `defaults`."""
    chosen = {
        one.name: Variable(one.name, inherited[one.name], Origin.INHERITED, f"yours; tlaunch would set {one.value}")
        if one.name in inherited
        else one
        for one in defaults
    }
    chosen |= {one.name: one for one in decided}
    for name, value in user_env.items():
        ours = chosen.get(name)
        decides = ours is not None and ours.value is not None and ours.origin is not Origin.INHERITED
        why = f"instead of tlaunch's {ours.value}" if ours and decides else ""
        chosen[name] = Variable(name, value, Origin.OPTION, why)
    for name in chosen.keys() & inherited.keys():
        if inherited[name] != chosen[name].value:
            chosen[name] = replace(chosen[name], instead_of=inherited[name])
    return tuple(chosen.values())


def _from(used: Cluster) -> Origin:
    return Origin.TABLE if used.source else Origin.LAYOUT
