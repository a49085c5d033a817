"""Options of torchrun, msrun and mpirun, and what each is called here, or what is done instead."""

from __future__ import annotations

from typing import Literal

from launcher.core.frozen import frozen

# What an option says of the ranks' places: how many a server has, or all have together; how many servers there are, or
# which; the first one; a file that lists them; anything else of who meets whom, which a rank table makes needless.
Subject = Literal["devices", "ranks", "server count", "servers", "first server", "server file", "meeting"]


@frozen
class Counterpart:
    """What an option of another launcher is here. Invariant: one of `here`, `instead` and `needless` is given."""

    here: str | None = None  # the option of tlaunch that takes the same value
    instead: str | None = None  # what to do
    needless: str | None = None  # why it is left out
    subject: Subject | None = None
    values: int = 1  # words behind it

    @property
    def advice(self) -> str:
        """What to do where this option alone is asked about."""
        if self.here is not None:
            return f"tlaunch calls it {self.here}"
        return self.instead or f"leave it out: {self.needless}"


_TABLE = "on one machine leave it out; several are named by --rank-table: type the same command on each, or choose --engine mpi or slurm"
_FILE = "`tlaunch table convert FILE --to v1.0 -o table.json` makes a table of it, for --rank-table table.json"
_LOGS = "every rank has its log in <runs-dir>/<run>/device<rank>/train.log; --console shows them"
_BIND = "ranks are bound to cores where that helps; --bind says how"
_LIMITS = "--join-timeout and --lost-after are the limits of servers that come, and are lost"
_MODULE = "write it behind two dashes: -- python -m MODULE"
_COUNT = "on one machine it is --devices N; several machines are named by --rank-table"
_NONE = "tlaunch has nothing of the kind"

# By their names with dashes; most may be written with underscores, too.
OPTIONS = {
    # torchrun
    **dict.fromkeys(
        ("--devices", "--nproc-per-node", "--nproc", "--gpus", "--num-gpus", "--num-processes"),
        Counterpart("--devices", subject="devices"),
    ),
    "--nnodes": Counterpart(instead=f"{_TABLE}; --elastic goes on with fewer", subject="server count"),
    "--node-rank": Counterpart(instead=_TABLE, subject="meeting"),  # msrun's, too
    "--rdzv-endpoint": Counterpart(instead=_TABLE, subject="first server"),
    "--rdzv-id": Counterpart(needless=_LIMITS),
    "--rdzv-conf": Counterpart(needless=_LIMITS),
    "--rdzv-backend": Counterpart(needless="the ranks' MASTER_ADDR and MASTER_PORT are chosen by tlaunch", subject="meeting"),
    "--standalone": Counterpart(needless="a run on one machine needs no rendezvous", values=0),
    "--local-addr": Counterpart(needless="a server finds itself in the rank table; --server says which it is"),
    "--master-addr": Counterpart(needless="the ranks' MASTER_ADDR is the server of rank 0", subject="first server"),
    "--master-port": Counterpart("--master-port"),
    "--max-restarts": Counterpart("--max-restarts"),
    "--shutdown-timeout": Counterpart("--grace"),
    "--monitor-interval": Counterpart(needless="tlaunch notices the end of a rank at once"),
    "--log-dir": Counterpart("--runs-dir"),
    **dict.fromkeys(("--redirects", "-r", "--tee", "-t"), Counterpart(needless=_LOGS)),
    "--local-ranks-filter": Counterpart(instead="--console says whose output is shown"),
    "--numa-binding": Counterpart(needless=_BIND),
    "--signals-to-handle": Counterpart(instead="--forward-signals names those that go to the ranks"),
    **dict.fromkeys(
        ("--start-method", "--role", "--event-log-handler", "--logs-specs", "--duplicate-stdout-filters", "--duplicate-stderr-filters"),
        Counterpart(needless=_NONE),
    ),
    "--virtual-local-rank": Counterpart(needless=_NONE, values=0),
    "--use-env": Counterpart(needless="ranks have LOCAL_RANK in their environment", values=0),
    "--run-path": Counterpart(needless="Python runs the script", values=0),
    "-m": Counterpart(instead=_MODULE, values=0),
    "--module": Counterpart(instead=_MODULE, values=0),
    "--no-python": Counterpart(instead="leave it out, and write the program behind two dashes: -- PROGRAM", values=0),
    # msrun
    "--local-worker-num": Counterpart("--devices", subject="devices"),
    "--worker-num": Counterpart(
        instead="on one machine it is --devices N (--local_worker_num); several machines are named by --rank-table",
        subject="ranks",
    ),
    "--cluster-time-out": Counterpart(instead="--env MS_TOPO_TIMEOUT=SECONDS is MindSpore's own limit; --join-timeout is that of servers"),
    "--rank-table-file": Counterpart("--rank-table"),
    "--bind-core": Counterpart(needless=_BIND),
    "--bind-numa": Counterpart(needless=_BIND),
    "--sim-level": Counterpart(instead="set MS_SIMULATION_LEVEL by --env, with --devices 1 --mindspore off"),
    "--sim-rank-id": Counterpart(instead="set RANK_ID of a single process yourself: MindSpore's simulation needs no launcher"),
    "--worker-log-name": Counterpart(needless=_LOGS),
    "--tail-worker-log": Counterpart(instead="--console rank0, all, collapse or none says whose output is shown"),
    "--join": Counterpart(needless="tlaunch waits for its ranks, unless it has --detach"),
    # mpirun
    **dict.fromkeys(("-n", "-np", "--np"), Counterpart("--devices", subject="ranks")),
    "--host": Counterpart(instead=_TABLE, subject="servers"),
    "-H": Counterpart(instead=_TABLE, subject="servers"),
    **dict.fromkeys(("--hostfile", "--machinefile", "-machinefile", "--rankfile"), Counterpart(instead=_FILE, subject="server file")),
    "-N": Counterpart(instead=_TABLE),
    "-x": Counterpart("--env"),
    **dict.fromkeys(("--mca", "-mca"), Counterpart(instead="--engine mpi --engine-option ARG gives mpirun ARG", values=2)),
    "--bind-to": Counterpart(needless=_BIND),
    "--use-hwthread-cpus": Counterpart(needless=_BIND, values=0),
    "--report-bindings": Counterpart(instead="`tlaunch explain` shows the cores of a rank", values=0),
    "--map-by": Counterpart(needless="ranks are numbered as the rank table says"),
    "--rank-by": Counterpart(needless="ranks are numbered as the rank table says"),
    "--oversubscribe": Counterpart(needless="--devices N starts N ranks on any number of cores", values=0),
    "--allow-run-as-root": Counterpart(needless="tlaunch allows it, and has mpirun allow it", values=0),
    "--tag-output": Counterpart(instead="--console all puts each rank's number before its lines", values=0),
    "--timestamp-output": Counterpart(instead="`tlaunch logs --timestamps` shows times", values=0),
    "--output-filename": Counterpart(needless=_LOGS),
    "--timeout": Counterpart(instead="--hang-timeout is for ranks that stand still, --join-timeout for servers that do not come"),
    # srun
    "--ntasks": Counterpart(instead=_COUNT, subject="ranks"),
}  # fmt: skip


def counterpart(option: str) -> Counterpart | None:
    """Return what an option of another launcher is here; None for one that is not known."""
    return OPTIONS.get(option.replace("_", "-"))
