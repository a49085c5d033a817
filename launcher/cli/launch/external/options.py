"""Options of torchrun, msrun, deepspeed, accelerate, mpirun and srun, and what each is called here, or what is done instead."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Literal

from launcher.core.frozen import frozen

Launcher = Literal["torchrun", "msrun", "deepspeed", "accelerate", "mpirun", "srun"]
# What an option says of the ranks' places: how many a server has, or all have together; how many servers there are, or
# which; the first one; a file that lists them; anything else of who meets whom, which a rank table makes needless.
# `unclear`: launchers give it different meanings.
Subject = Literal["devices", "ranks", "server count", "servers", "first server", "server file", "meeting", "unclear"]


@frozen
class Counterpart:
    """Says what replaces an option of another launcher. Invariant: exactly one of `here`, `instead` and `needless` is given."""

    here: str | None = None  # the option of tlaunch that takes the same value
    instead: str | None = None  # what to do
    needless: str | None = None  # why it is left out
    subject: Subject | None = None
    values: int = 1  # words behind it

    @property
    def advice(self) -> str:
        """Return what to do instead of this option, where it alone was typed."""
        if self.here is not None:
            return f"tlaunch calls it {self.here}"
        return self.instead or f"leave it out: {self.needless}"


TABLE = "table.json"


def table_of_file(file: str) -> tuple[str, ...]:
    """Return the command that makes a rank table of a file that lists servers."""
    return ("tlaunch", "table", "convert", file, "--to", "v1.0", "--output", TABLE)


_ONE_MACHINE = "on one machine it is --devices N; several machines are named by --rank-table"
_TABLE = (
    "on one machine leave it out; several are named by --rank-table: type the same command on each, or choose --engine "
    "mpi or slurm"
)
_FILE = f"`{' '.join(table_of_file('FILE'))}` makes a table of it, for --rank-table {TABLE}"
_LOGS = "every rank has its log in <runs-dir>/<run>/device<rank>/train.log; --console shows them"
_BIND = "ranks are bound to cores where that helps; --bind says how"
_LIMITS = "--join-timeout and --lost-after are the limits of servers that come, and are lost"
_MODULE = "write it behind two dashes: -- python -m MODULE"
_NUMBERED = "ranks are numbered as the rank table says"
_NONE = "tlaunch has nothing of the kind"

_VISIBLE = "CUDA_VISIBLE_DEVICES=0,1 in the environment chooses devices, --devices says how many"

_DEVICES = Counterpart("--devices", subject="devices")
_RANKS = Counterpart("--devices", subject="ranks")
_RANKS_OF_SEVERAL = Counterpart(instead=_ONE_MACHINE, subject="ranks")
_SERVER_COUNT = Counterpart(instead=f"{_TABLE}; --elastic goes on with fewer", subject="server count")
_SERVERS = Counterpart(instead=_TABLE, subject="servers")
_SERVER_FILE = Counterpart(instead=_FILE, subject="server file")
_MEETING = Counterpart(instead=_TABLE, subject="meeting")
_FIRST_SERVER = Counterpart(needless="the ranks' MASTER_ADDR is the server of rank 0", subject="first server")

# By their names with dashes; most may be written with underscores, too.
_BY_PYTHON = {  # of all that start a program by Python
    "--master-addr": _FIRST_SERVER,
    "--master-port": Counterpart("--master-port"),
    "--node-rank": _MEETING,
    "--log-dir": Counterpart("--runs-dir"),
    "-m": Counterpart(instead=_MODULE, values=0),
    "--module": Counterpart(instead=_MODULE, values=0),
    "--no-python": Counterpart(instead="leave it out, and write the program behind two dashes: -- PROGRAM", values=0),
}
_TORCHRUN = {
    "--nproc-per-node": _DEVICES,
    "--nproc": _DEVICES,
    "--nnodes": _SERVER_COUNT,
    "--rdzv-endpoint": Counterpart(instead=_TABLE, subject="first server"),
    "--rdzv-id": Counterpart(needless="a run has a name of its own; --name chooses it"),
    "--rdzv-conf": Counterpart(needless=_LIMITS),
    "--rdzv-backend": Counterpart(
        needless="the ranks' MASTER_ADDR and MASTER_PORT are chosen by tlaunch", subject="meeting"
    ),
    "--standalone": Counterpart(needless="a run on one machine needs no rendezvous", values=0),
    "--local-addr": Counterpart(needless="a server finds itself in the rank table; --server says which it is"),
    "--max-restarts": Counterpart("--max-restarts"),
    "--shutdown-timeout": Counterpart("--grace"),
    "--monitor-interval": Counterpart(needless="tlaunch notices the end of a rank at once"),
    **dict.fromkeys(("--redirects", "-r", "--tee", "-t"), Counterpart(needless=_LOGS)),
    "--local-ranks-filter": Counterpart(instead="--console says whose output is shown"),
    "--numa-binding": Counterpart(needless=_BIND),
    "--signals-to-handle": Counterpart(instead="--forward-signals names those that go to the ranks"),
    **dict.fromkeys(
        (
            *("--start-method", "--role", "--event-log-handler", "--logs-specs"),
            *("--duplicate-stdout-filters", "--duplicate-stderr-filters"),
        ),
        Counterpart(needless=_NONE),
    ),
    "--virtual-local-rank": Counterpart(needless=_NONE, values=0),
    "--use-env": Counterpart(needless="ranks have LOCAL_RANK in their environment", values=0),
    "--run-path": Counterpart(needless="Python runs the script", values=0),
}
_MSRUN = {
    "--local-worker-num": _DEVICES,
    "--worker-num": _RANKS_OF_SEVERAL,
    "--cluster-time-out": Counterpart(
        instead="--env MS_TOPO_TIMEOUT=SECONDS is MindSpore's own limit; --join-timeout is that of servers"
    ),
    "--rank-table-file": Counterpart("--rank-table"),
    "--bind-core": Counterpart(needless=_BIND),
    "--bind-numa": Counterpart(needless=_BIND),
    "--sim-level": Counterpart(instead="set MS_SIMULATION_LEVEL by --env, with --devices 1 --mindspore off"),
    "--sim-rank-id": Counterpart(
        instead="set RANK_ID of a single process yourself: MindSpore's simulation needs no launcher"
    ),
    "--worker-log-name": Counterpart(needless=_LOGS),
    "--tail-worker-log": Counterpart(instead="--console rank0, all, collapse or none says whose output is shown"),
    "--join": Counterpart(needless="tlaunch waits for its ranks, unless it has --detach"),
}
_DEEPSPEED = {
    "--num-gpus": _DEVICES,
    "--num-nodes": _SERVER_COUNT,
    "--hostfile": _SERVER_FILE,
    "-H": _SERVER_FILE,
    "--no-local-rank": Counterpart(needless="ranks have LOCAL_RANK in their environment", values=0),
    **dict.fromkeys(("--include", "--exclude"), Counterpart(instead=_VISIBLE)),
    "--ssh-port": Counterpart(instead="set the port in ~/.ssh/config; `tlaunch run --engine mpi` starts agents by ssh"),
    "--bind-cores-to-rank": Counterpart(needless=_BIND, values=0),
}
_ACCELERATE = {
    "--num-processes": _RANKS,
    "--num-machines": _SERVER_COUNT,
    "--machine-rank": _MEETING,
    "--main-process-ip": _FIRST_SERVER,
    "--main-process-port": Counterpart("--master-port"),
    "--multi-gpu": Counterpart(needless="--devices says so", values=0),
    "--mixed-precision": Counterpart(instead="--env ACCELERATE_MIXED_PRECISION=bf16 says so"),
    "--gpu-ids": Counterpart(instead=_VISIBLE),
}
_MPIRUN = {  # whose long names may be written with one dash
    **dict.fromkeys(("-n", "--np"), _RANKS),
    **dict.fromkeys(("-N", "--npernode", "--ppn", "--perhost"), _DEVICES),
    **dict.fromkeys(("--host", "-H", "--hosts"), _SERVERS),
    **dict.fromkeys(("--hostfile", "--machinefile", "-f", "--rankfile"), _SERVER_FILE),
    "-x": Counterpart("--env"),
    **dict.fromkeys(("-v", "--verbose"), Counterpart("--verbose", values=0)),
    **dict.fromkeys(("-q", "--quiet"), Counterpart("--quiet", values=0)),
    "--mca": Counterpart(instead="--engine mpi --engine-option ARG gives mpirun ARG", values=2),
    "--bind-to": Counterpart(needless=_BIND),
    "--use-hwthread-cpus": Counterpart(needless=_BIND, values=0),
    "--report-bindings": Counterpart(instead="`tlaunch explain` shows the cores of a rank", values=0),
    "--map-by": Counterpart(needless=_NUMBERED),
    "--rank-by": Counterpart(needless=_NUMBERED),
    "--oversubscribe": Counterpart(needless="--devices N starts N ranks on any number of cores", values=0),
    "--allow-run-as-root": Counterpart(needless="tlaunch allows it, and has mpirun allow it", values=0),
    "--tag-output": Counterpart(instead="--console all puts each rank's number before its lines", values=0),
    "--timestamp-output": Counterpart(instead="`tlaunch logs --timestamps` shows times", values=0),
    "--output-filename": Counterpart(needless=_LOGS),
    "--timeout": Counterpart(
        instead="a run has no time limit; --hang-timeout is for ranks that make no progress, --join-timeout for servers that do not join"
    ),
}
_LONG_OF_SRUN = {
    "--ntasks": _RANKS_OF_SEVERAL,
    "--nodes": _SERVER_COUNT,
    "--ntasks-per-node": _DEVICES,
}
_SRUN = {
    **_LONG_OF_SRUN,
    "-n": _RANKS_OF_SEVERAL,
    "-N": _SERVER_COUNT,
    **dict.fromkeys(("-c", "--cpus-per-task", "--cpu-bind"), Counterpart(needless=_BIND)),
    **dict.fromkeys(
        (
            *("-p", "--partition", "-A", "--account", "-t", "--time", "-q", "--qos", "--mem", "--gres", "-J"),
            *("--job-name", "--gpus-per-node"),
        ),
        Counterpart(needless="salloc or sbatch has it, which makes the allocation"),
    ),
    **dict.fromkeys(("-l", "--label"), Counterpart(instead="--console all puts each rank's number first", values=0)),
}
_OF_LAUNCHER: Mapping[Launcher, Mapping[str, Counterpart]] = {
    "torchrun": {**_BY_PYTHON, **_TORCHRUN},
    "msrun": {**_BY_PYTHON, **_MSRUN},
    "deepspeed": {**_BY_PYTHON, **_DEEPSPEED},
    "accelerate": {**_BY_PYTHON, **_ACCELERATE},
    "mpirun": _MPIRUN,
    "srun": _SRUN,
}
# Where nothing tells whose an option is. Short ones of srun are not among them: most mean something else elsewhere.
OPTIONS: Mapping[str, Counterpart] = {
    **_LONG_OF_SRUN, **_ACCELERATE, **_DEEPSPEED, **_MPIRUN, **_MSRUN, **_TORCHRUN, **_BY_PYTHON,
    "--gpus": _DEVICES,
    "--devices": _DEVICES,  # tlaunch's own: it stands here so that it counts where a whole line is translated
    "-N": Counterpart(
        instead="what mpirun calls so, ranks on each server, is --devices on one machine; what srun calls so, servers, are "
        "those of --rank-table, or of the allocation with --engine slurm",
        subject="unclear",
    ),
}  # fmt: skip
# Of torchrun's -t: which streams are shown, of all ranks or of some. No rank table is called so.
_STREAMS = re.compile(r"[0-3]|\d+:[0-3](?:,\d+:[0-3])*")


def key_of(option: str) -> str:
    """Return an option's name with dashes, long ones of mpirun with two at the beginning.

    >>> key_of("--nproc_per_node"), key_of("-hostfile"), key_of("-m")
    ('--nproc-per-node', '--hostfile', '-m')
    """
    key = option.replace("_", "-")
    return f"-{key}" if f"-{key}" in _MPIRUN else key


def counterpart(option: str, launcher: Launcher | None = None) -> Counterpart | None:
    """Return what an option of another launcher is here; None for one that is not known."""
    return (OPTIONS if launcher is None else _OF_LAUNCHER[launcher]).get(key_of(option))


def launcher_with(options: Collection[str]) -> Launcher | None:
    """Return the launcher that alone has all of these options; None where several have them, or none has."""
    keys = set(map(key_of, options))
    having = [launcher for launcher, known in _OF_LAUNCHER.items() if keys <= known.keys()]
    return having[0] if len(having) == 1 else None


def is_tee(option: str, value: str) -> bool:
    """Return whether torchrun's -t is meant, and not the -t of `tlaunch run`, which names a rank table."""
    return option == "-t" and _STREAMS.fullmatch(value) is not None
