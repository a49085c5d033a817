"""The rank that an engine around this process, mpirun or srun, gave it. Pure: reads an environment that it is given.

| engine                 | rank and size                                | what names its job                       |
|------------------------|----------------------------------------------|------------------------------------------|
| Open MPI 4, 5          | OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE   | PMIX_NAMESPACE, and a random key (4)     |
| MPICH, Intel MPI       | PMI_RANK, PMI_SIZE                           | I_MPI_HYDRA_UUID (Intel), nothing (MPICH) |
| srun                   | SLURM_PROCID, SLURM_STEP_NUM_TASKS           | SLURM_JOB_ID.SLURM_STEP_ID               |
| others that speak PMIx | PMIX_RANK, none                              | PMIX_NAMESPACE                           |

Only a step of Slurm has tasks: the shell of a batch job has SLURM_PROCID=0 too, and no SLURM_STEP_ID.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from launcher.core.errors import UsageError
from launcher.core.frozen import frozen

SLURM = "Slurm"  # as an EngineRank calls it
_MAX_TOKEN = 48  # characters of a job's name in that of a directory


@frozen
class EngineRank:
    """The identity that an engine gives one of its processes."""

    engine: str  # as people call it
    global_rank: int
    world_size: int | None  # None: it does not tell
    local_rank: int | None  # the engine's own count: not always in the order of global ranks, nor always unique
    local_world_size: int | None
    job: str  # alike on all ranks of a job; empty where the engine does not tell
    node: str | None = None  # what the engine calls this machine; None: it does not tell

    @property
    def job_token(self) -> str:
        """`job` as a part of a file's name."""
        plain = re.sub(r"[^A-Za-z0-9._]+", "-", self.job).strip("-.")
        return plain if len(plain) <= _MAX_TOKEN else hashlib.sha256(self.job.encode()).hexdigest()[:16]


@frozen
class _Names:
    """The variables of one engine; the first of several that is set counts."""

    engine: str
    rank: str
    size: tuple[str, ...] = ()
    local_rank: str = ""
    local_size: str = ""


_OPEN_MPI = _Names(
    "Open MPI", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",),
    "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
)  # fmt: skip
_HYDRA = _Names("MPICH or Intel MPI", "PMI_RANK", ("PMI_SIZE",), "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
_PMIX = _Names("PMIx", "PMIX_RANK")
_SLURM = _Names(SLURM, "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), "SLURM_LOCALID")
_PMIX_OF_SLURM = "slurm.pmix."
_HINT_FRESH_SHELL = "start mpirun or srun from a shell without variables of another job"


def read_engine_rank(environment: Mapping[str, str], pid: int) -> EngineRank | None:
    """Return the rank in the innermost engine that started this process, or None without any. `pid` is this process's own.

    Raises:
        UsageError: a variable is no whole number or out of range, or two engines contradict each other.
    """
    if (task := read_task(environment, pid)) is not None:
        return task  # started by srun itself, whatever is left of others
    slurm = _slurm_rank(environment)
    families = [_OPEN_MPI, _HYDRA]
    if not environment.get("PMIX_NAMESPACE", "").startswith(_PMIX_OF_SLURM):
        families.append(_PMIX)  # else srun --mpi=pmix, which tells more by its own variables
    claims = [rank for names in families if (rank := _read(names, environment, _job_of_mpi(names, environment)))]
    for other in claims[1:]:
        if not _agree(claims[0], other):
            raise UsageError(
                f"two engines contradict each other: {_claim(claims[0])}, {_claim(other)}",
                hint="one mpirun inside another? start the inner one without the variables of the outer one: env -i",
            )
    mpi = claims[0] if claims else None
    if slurm is None or mpi is None:
        return mpi or slurm
    # An mpirun inside a job starts its daemons by srun, and then Slurm speaks of these.
    return slurm if _agree(mpi, slurm) else mpi


def read_task(environment: Mapping[str, str], pid: int) -> EngineRank | None:
    """Return the task of a Slurm step that this very process is, or None. A task that started it does not count.

    Raises:
        UsageError: as `read_engine_rank`.
    """
    return _slurm_rank(environment) if environment.get("SLURM_TASK_PID") == str(pid) else None


def may_use_open_mpi(environment: Mapping[str, str]) -> bool:
    """Return True if a process with this environment has a place in a world that Open MPI's library can join."""
    return any(environment.get(names.rank) for names in (_OPEN_MPI, _PMIX))


def _slurm_rank(environment: Mapping[str, str]) -> EngineRank | None:
    if not environment.get("SLURM_STEP_ID"):
        return None
    parts = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
    job = "slurm-" + ".".join(environment[name] for name in parts if environment.get(name))
    # A step's own: a shell of a batch job hands its SLURMD_NODENAME on, to processes on other nodes too.
    node = environment.get("SLURMD_NODENAME") or None
    return _read(_SLURM, environment, job, _tasks_on_node(environment), node)


def _read(
    names: _Names, environment: Mapping[str, str], job: str, local_size: int | None = None, node: str | None = None
) -> EngineRank | None:
    if not environment.get(names.rank):
        return None
    size = next((name for name in names.size if environment.get(name)), "")
    rank = EngineRank(
        engine=names.engine,
        global_rank=_whole(names.rank, environment) or 0,
        world_size=_whole(size, environment),
        local_rank=_whole(names.local_rank, environment),
        local_world_size=_whole(names.local_size, environment) if names.local_size else local_size,
        job=job,
        node=node,
    )
    if rank.world_size is not None and rank.global_rank >= rank.world_size:
        raise UsageError(f"{names.rank} is {rank.global_rank}, but {size} is {rank.world_size}", hint=_HINT_FRESH_SHELL)
    return rank


def _whole(name: str, environment: Mapping[str, str]) -> int | None:
    text = environment.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()):
        raise UsageError(f"the environment variable {name} is {text!r}, not a whole number", hint=_HINT_FRESH_SHELL)
    return int(text)


def _agree(one: EngineRank, other: EngineRank) -> bool:
    sizes = {one.world_size, other.world_size} - {None}
    return one.global_rank == other.global_rank and len(sizes) <= 1


def _claim(rank: EngineRank) -> str:
    size = "" if rank.world_size is None else f" of {rank.world_size}"
    return f"rank {rank.global_rank}{size} says {rank.engine}"


def _job_of_mpi(names: _Names, environment: Mapping[str, str]) -> str:
    if names is _HYDRA:
        return environment.get("I_MPI_HYDRA_UUID", "") or environment.get("PALS_APID", "")
    namespace = environment.get("PMIX_NAMESPACE", "")
    # Open MPI 4 makes its namespace of the host and a pid, which come again; this key is drawn by lot for each job.
    key = environment.get("OMPI_MCA_orte_precondition_transports", "") if names is _OPEN_MPI else ""
    return "-".join(part for part in (namespace, key[:8]) if part)


def _tasks_on_node(environment: Mapping[str, str]) -> int | None:
    """Return the tasks on a node, from Slurm's notation: 2(x2),1 are two tasks on each of two nodes, and one on a third."""
    node = environment.get("SLURM_NODEID", "")
    counts: list[int] = []
    for part in environment.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            return None
        counts += [int(match[1])] * int(match[2] or 1)
    return counts[int(node)] if node.isdecimal() and int(node) < len(counts) else None
