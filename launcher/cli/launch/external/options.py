"""Options of torchrun, msrun, deepspeed, accelerate, mpirun and srun, and their counterparts in tlaunch."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Literal

from launcher.core.frozen import frozen

Launcher = Literal["torchrun", "msrun", "deepspeed", "accelerate", "mpirun", "srun"]
# The information that an option gives about the ranks' servers and devices. "devices" are ranks per server, "ranks" are all
# ranks, "meeting" is other information for the rendezvous, which a rank table replaces. "unclear": the meaning depends on
# the launcher.
Subject = Literal["devices", "ranks", "server count", "servers", "first server", "server file", "meeting", "unclear"]


@frozen
class Counterpart:
    """The replacement for another launcher's option. Exactly one of `here`, `instead` and `needless` is set."""

    here: str | None = None  # tlaunch's option for the same value
    instead: str | None = None  # an instruction to the user
    needless: str | None = None  # why the option is not needed
    subject: Subject | None = None
    values: int = 1  # number of values

    @property
    def advice(self) -> str:
        """The hint to show if this is the only option of another launcher on the command line."""
        if self.here is not None:
            return f"use {self.here}"
        return self.instead or f"leave it out: {self.needless}"


TABLE = "table.json"


def table_of_file(file: str) -> tuple[str, ...]:
    """Return the command that converts a hostfile to a rank table."""
    return ("tlaunch", "table", "convert", file, "--to", "v1.0", "--output", TABLE)


_ONE_MACHINE = "use --devices N on one machine, or --rank-table for several"
_TABLE = (
    "leave it out on one machine; for several, use --rank-table and run the same command on each, or use --engine mpi or "
    "--engine slurm"
)
_FILE = f"convert it with `{' '.join(table_of_file('FILE'))}`, and use --rank-table {TABLE}"
_LOGS = "the log of each rank is <runs-dir>/<run>/device<rank>/train.log; --console selects the output to show"
_BIND = "--bind controls how ranks are bound to cores"
_LIMITS = "--join-timeout and --lost-after limit how long tlaunch waits for servers"
_MODULE = "write it after `--`: -- python -m MODULE"
_NUMBERED = "the rank table determines the order of ranks"
_NONE = "tlaunch has no equivalent"

_VISIBLE = "set CUDA_VISIBLE_DEVICES=0,1 in the environment to select devices, and --devices to their number"

_DEVICES = Counterpart("--devices", subject="devices")
_RANKS = Counterpart("--devices", subject="ranks")
_RANKS_OF_SEVERAL = Counterpart(instead=_ONE_MACHINE, subject="ranks")
_SERVER_COUNT = Counterpart(instead=f"{_TABLE}; add --elastic to continue with fewer", subject="server count")
_SERVERS = Counterpart(instead=_TABLE, subject="servers")
_SERVER_FILE = Counterpart(instead=_FILE, subject="server file")
_MEETING = Counterpart(instead=_TABLE, subject="meeting")
_FIRST_SERVER = Counterpart(needless="MASTER_ADDR is always the server of rank 0", subject="first server")

# Option names with dashes; most may be written with underscores, too.
_BY_PYTHON = {  # launchers that start the program with Python
    "--master-addr": _FIRST_SERVER,
    "--master-port": Counterpart("--master-port"),
    "--node-rank": _MEETING,
    "--log-dir": Counterpart("--runs-dir"),
    "-m": Counterpart(instead=_MODULE, values=0),
    "--module": Counterpart(instead=_MODULE, values=0),
    "--no-python": Counterpart(instead="leave it out, and write the program after `--`: -- PROGRAM", values=0),
}
_TORCHRUN = {
    "--nproc-per-node": _DEVICES,
    "--nproc": _DEVICES,
    "--nnodes": _SERVER_COUNT,
    "--rdzv-endpoint": Counterpart(instead=_TABLE, subject="first server"),
    "--rdzv-id": Counterpart(needless="--name sets the name of the run"),
    "--rdzv-conf": Counterpart(needless=_LIMITS),
    "--rdzv-backend": Counterpart(needless="tlaunch sets MASTER_ADDR and MASTER_PORT itself", subject="meeting"),
    "--standalone": Counterpart(needless="a run on one machine does not need a rendezvous", values=0),
    "--local-addr": Counterpart(needless="each machine finds its server in the rank table; --server overrides it"),
    "--max-restarts": Counterpart("--max-restarts"),
    "--shutdown-timeout": Counterpart("--grace"),
    "--monitor-interval": Counterpart(needless="tlaunch notices at once when a rank exits"),
    **dict.fromkeys(("--redirects", "-r", "--tee", "-t"), Counterpart(needless=_LOGS)),
    "--local-ranks-filter": Counterpart(instead="use --console 0,3 to show the output of ranks 0 and 3"),
    "--numa-binding": Counterpart(needless=_BIND),
    "--signals-to-handle": Counterpart(instead="use --forward-signals to forward signals to the ranks"),
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
        instead="use --env MS_TOPO_TIMEOUT=SECONDS for MindSpore's timeout, and --join-timeout for servers"
    ),
    "--rank-table-file": Counterpart("--rank-table"),
    "--bind-core": Counterpart(needless=_BIND),
    "--bind-numa": Counterpart(needless=_BIND),
    "--sim-level": Counterpart(instead="use --env MS_SIMULATION_LEVEL=N with --devices 1 --mindspore off"),
    "--sim-rank-id": Counterpart(
        instead="start one process with RANK_ID set, without tlaunch: MindSpore's simulation does not need a launcher"
    ),
    "--worker-log-name": Counterpart(needless=_LOGS),
    "--tail-worker-log": Counterpart(instead="use --console rank0, all, collapse or none to select the output to show"),
    "--join": Counterpart(needless="tlaunch waits for its ranks unless --detach is given"),
}
_DEEPSPEED = {
    "--num-gpus": _DEVICES,
    "--num-nodes": _SERVER_COUNT,
    "--hostfile": _SERVER_FILE,
    "-H": _SERVER_FILE,
    "--no-local-rank": Counterpart(needless="ranks have LOCAL_RANK in their environment", values=0),
    **dict.fromkeys(("--include", "--exclude"), Counterpart(instead=_VISIBLE)),
    "--ssh-port": Counterpart(
        instead="set the port in ~/.ssh/config, and use `tlaunch run --engine mpi`, which starts agents through ssh"
    ),
    "--bind-cores-to-rank": Counterpart(needless=_BIND, values=0),
}
_ACCELERATE = {
    "--num-processes": _RANKS,
    "--num-machines": _SERVER_COUNT,
    "--machine-rank": _MEETING,
    "--main-process-ip": _FIRST_SERVER,
    "--main-process-port": Counterpart("--master-port"),
    "--multi-gpu": Counterpart(needless="--devices sets the number of devices", values=0),
    "--mixed-precision": Counterpart(instead="use --env ACCELERATE_MIXED_PRECISION=bf16"),
    "--gpu-ids": Counterpart(instead=_VISIBLE),
}
_MPIRUN = {  # its long names may be written with one dash
    **dict.fromkeys(("-n", "--np"), _RANKS),
    **dict.fromkeys(("-N", "--npernode", "--ppn", "--perhost"), _DEVICES),
    **dict.fromkeys(("--host", "-H", "--hosts"), _SERVERS),
    **dict.fromkeys(("--hostfile", "--machinefile", "-f", "--rankfile"), _SERVER_FILE),
    "-x": Counterpart("--env"),
    **dict.fromkeys(("-v", "--verbose"), Counterpart("--verbose", values=0)),
    **dict.fromkeys(("-q", "--quiet"), Counterpart("--quiet", values=0)),
    "--mca": Counterpart(instead="use --engine mpi --engine-option ARG to pass ARG to mpirun", values=2),
    "--bind-to": Counterpart(needless=_BIND),
    "--use-hwthread-cpus": Counterpart(needless=_BIND, values=0),
    "--report-bindings": Counterpart(instead="use `tlaunch explain` to see the cores of a rank", values=0),
    "--map-by": Counterpart(needless=_NUMBERED),
    "--rank-by": Counterpart(needless=_NUMBERED),
    "--oversubscribe": Counterpart(needless="--devices N starts N ranks on any number of cores", values=0),
    "--allow-run-as-root": Counterpart(needless="tlaunch may run as root, and passes this option to mpirun", values=0),
    "--tag-output": Counterpart(instead="use --console all to prefix each line with its rank", values=0),
    "--timestamp-output": Counterpart(instead="use `tlaunch logs --timestamps` to see times", values=0),
    "--output-filename": Counterpart(needless=_LOGS),
    "--timeout": Counterpart("--timeout"),
}
_LONG_OF_SRUN = {"--ntasks": _RANKS_OF_SEVERAL, "--nodes": _SERVER_COUNT, "--ntasks-per-node": _DEVICES}
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
        Counterpart(needless="give it to salloc or sbatch, which creates the allocation"),
    ),
    **dict.fromkeys(
        ("-l", "--label"), Counterpart(instead="use --console all to prefix each line with its rank", values=0)
    ),
}
_OF_LAUNCHER: Mapping[Launcher, Mapping[str, Counterpart]] = {
    "torchrun": {**_BY_PYTHON, **_TORCHRUN},
    "msrun": {**_BY_PYTHON, **_MSRUN},
    "deepspeed": {**_BY_PYTHON, **_DEEPSPEED},
    "accelerate": {**_BY_PYTHON, **_ACCELERATE},
    "mpirun": _MPIRUN,
    "srun": _SRUN,
}
# For an unknown launcher. srun's short options are missing, because most have other meanings in other launchers.
OPTIONS: Mapping[str, Counterpart] = {
    **_LONG_OF_SRUN, **_ACCELERATE, **_DEEPSPEED, **_MPIRUN, **_MSRUN, **_TORCHRUN, **_BY_PYTHON,
    "--gpus": _DEVICES,
    "--device-num": _DEVICES,  # of MindSpore's tutorials
    "--devices": _DEVICES,  # tlaunch's option, included so that translated lines count its devices
    "-N": Counterpart(
        instead="for mpirun's -N (ranks per server), use --devices on one machine; for srun's -N (nodes), use --rank-table, or "
        "--engine slurm inside an allocation",
        subject="unclear",
    ),
}  # fmt: skip
# A value of torchrun's -t: the streams to show, of all ranks or of some. Unlikely as the name of a rank table.
_STREAMS = re.compile(r"[0-3]|\d+:[0-3](?:,\d+:[0-3])*")


def key_of(option: str) -> str:
    """Normalize the name of an option, so that `--nproc_per_node` becomes `--nproc-per-node`.

    >>> key_of("--nproc_per_node"), key_of("-hostfile"), key_of("-m")
    ('--nproc-per-node', '--hostfile', '-m')
    """
    key = option.replace("_", "-")
    return f"-{key}" if f"-{key}" in _MPIRUN else key


def counterpart(option: str, launcher: Launcher | None = None) -> Counterpart | None:
    """Return tlaunch's equivalent of another launcher's option, or None if the option is unknown."""
    return (OPTIONS if launcher is None else _OF_LAUNCHER[launcher]).get(key_of(option))


def launcher_with(options: Collection[str]) -> Launcher | None:
    """Return the only launcher that has all `options`, or None if no launcher or several launchers have them."""
    keys = set(map(key_of, options))
    having = [launcher for launcher, known in _OF_LAUNCHER.items() if keys <= known.keys()]
    return having[0] if len(having) == 1 else None


def is_tee(option: str, value: str) -> bool:
    """Return True if `-t` is --tee of torchrun rather than --rank-table of tlaunch, judging by its value."""
    return option == "-t" and _STREAMS.fullmatch(value) is not None
