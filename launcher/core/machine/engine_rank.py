"""The rank that mpirun or srun (an engine) gave this process, and the MPI libraries that work under it.

| engine                 | rank and size                                | job id                                    |
|------------------------|----------------------------------------------|-------------------------------------------|
| Open MPI 4, 5          | OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE   | PMIX_NAMESPACE, and a random key (4)      |
| MPICH, Intel MPI       | PMI_RANK, PMI_SIZE                           | I_MPI_HYDRA_UUID (Intel), none (MPICH)    |
| srun                   | SLURM_PROCID, SLURM_STEP_NUM_TASKS           | SLURM_JOB_ID.SLURM_STEP_ID                |
| other PMIx engines     | PMIX_RANK, none                              | PMIX_NAMESPACE                            |

SLURM_STEP_ID marks a task of a Slurm step. The shell of a batch job has SLURM_PROCID=0 too, but no SLURM_STEP_ID.

An engine passes ranks to its processes by a protocol, and the MPI library must use the same one. Otherwise most
libraries give every rank its own world of size 1: the run computes the same result N times and exits with 0.

| measured, mpi4py 4.1.2    | library Open MPI 4.1.4  | Open MPI 5.0.11        | MPICH 5.0.2     | Intel MPI 2021.18 |
|---------------------------|-------------------------|------------------------|-----------------|-------------------|
| mpirun of Open MPI 4.1.4  | one world               | one world (*)          | MPI_Init fails  | worlds of size 1  |
| mpirun of Open MPI 5.0.11 | loads 5 instead, or     | one world              | MPI_Init fails  | worlds of size 1  |
|                           | MPI_Init fails, or      |                        |                 |                   |
|                           | worlds of size 1 (**)   |                        |                 |                   |
| mpirun of MPICH, Intel    | worlds of size 1        | worlds of size 1       | one world       | one world         |

(*) If mpirun runs on none of the servers and gets their names instead of addresses, ranks treat other servers' ranks as
    local. Collectives of coll/han, including MPI_Barrier, then hang or fail. OMPI_MCA_coll=^han prevents this, and
    changes no results in other cases. Communicators of COMM_TYPE_SHARED are wrong in either case.
(**) The mpirun of a wheel makes the library look for its components in the wheel, and Open MPI 4 finds none.

Unknown combinations are never refused. Standard library only; a separate process loads MPI if needed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from launcher.core.errors import UsageError
from launcher.core.frozen import frozen

SLURM = "Slurm"
_MAX_TOKEN = 48  # maximum length of a job id in a directory name


@frozen
class EngineRank:
    engine: str  # its usual name
    global_rank: int
    world_size: int | None  # None: unknown
    local_rank: int | None  # as counted by the engine: may be in another order than global ranks, and may repeat
    local_world_size: int | None
    job: str  # the same on all ranks of a job; empty if the engine has no job id
    node: str | None = None  # the engine's name for this machine; None: unknown

    @property
    def job_token(self) -> str:
        """The job id in a form that is safe in a file name."""
        plain = re.sub(r"[^A-Za-z0-9._]+", "-", self.job).strip("-.")
        return plain if len(plain) <= _MAX_TOKEN else hashlib.sha256(self.job.encode()).hexdigest()[:16]


@frozen
class _Names:
    """The names of one engine's environment variables. `size` has several names, and the first that is set is used."""

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
    """Return the rank that the innermost mpirun or srun gave process `pid`, or None. Raises UsageError."""
    if (task := read_task(environment, pid)) is not None:
        return task  # started directly by srun; variables of other engines are inherited
    slurm = _slurm_rank(environment)
    families = [_OPEN_MPI, _HYDRA]
    if not environment.get("PMIX_NAMESPACE", "").startswith(_PMIX_OF_SLURM):
        families.append(_PMIX)  # otherwise srun --mpi=pmix, whose own variables have more information
    claims = [rank for names in families if (rank := _read(names, environment, _job_of_mpi(names, environment)))]
    for other in claims[1:]:
        if not _agree(claims[0], other):
            raise UsageError(
                f"two MPI launchers gave this process different ranks: {_claim(claims[0])}, {_claim(other)}",
                hint="if mpirun starts another mpirun, start the inner mpirun with `env -i`",
            )
    mpi = claims[0] if claims else None
    if slurm is None or mpi is None:
        return mpi or slurm
    # An mpirun inside a Slurm job starts its daemons with srun, so Slurm's variables describe the daemons.
    return slurm if _agree(mpi, slurm) else mpi


def read_task(environment: Mapping[str, str], pid: int) -> EngineRank | None:
    """Return the Slurm rank of process `pid`, or None if srun did not start the process directly. Raises UsageError."""
    return _slurm_rank(environment) if environment.get("SLURM_TASK_PID") == str(pid) else None


def may_use_open_mpi(environment: Mapping[str, str]) -> bool:
    """Return True if a process with this environment has a rank that Open MPI's library can use."""
    return any(environment.get(names.rank) for names in (_OPEN_MPI, _PMIX))


def _slurm_rank(environment: Mapping[str, str]) -> EngineRank | None:
    if not environment.get("SLURM_STEP_ID"):
        return None
    parts = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
    job = "slurm-" + ".".join(environment[name] for name in parts if environment.get(name))
    # Only inside a step: a batch job's shell passes its SLURMD_NODENAME on, even to processes on other nodes.
    node = environment.get("SLURMD_NODENAME") or None
    index, tasks = environment.get("SLURM_NODEID", ""), counts_per_node(environment, "SLURM_STEP_TASKS_PER_NODE")
    local_size = tasks[int(index)] if index.isdecimal() and int(index) < len(tasks) else None
    return _read(_SLURM, environment, job, local_size, node)


def _read(
    names: _Names, environment: Mapping[str, str], job: str, local_size: int | None = None, node: str | None = None
) -> EngineRank | None:
    if not environment.get(names.rank):
        return None
    size = next((name for name in names.size if environment.get(name)), "")
    rank = EngineRank(
        engine=names.engine,
        global_rank=_integer(names.rank, environment) or 0,
        world_size=_integer(size, environment),
        local_rank=_integer(names.local_rank, environment),
        local_world_size=_integer(names.local_size, environment) if names.local_size else local_size,
        job=job,
        node=node,
    )
    if rank.world_size is not None and rank.global_rank >= rank.world_size:
        raise UsageError(f"{names.rank} is {rank.global_rank}, but {size} is {rank.world_size}", hint=_HINT_FRESH_SHELL)
    return rank


def _integer(name: str, environment: Mapping[str, str]) -> int | None:
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
    return f"{rank.engine} says rank {rank.global_rank}{size}"


def _job_of_mpi(names: _Names, environment: Mapping[str, str]) -> str:
    if names is _HYDRA:
        return environment.get("I_MPI_HYDRA_UUID", "") or environment.get("PALS_APID", "")
    namespace = environment.get("PMIX_NAMESPACE", "")
    # Open MPI 4 builds its namespace from host and pid, which can repeat; this key is random for each job.
    key = environment.get("OMPI_MCA_orte_precondition_transports", "") if names is _OPEN_MPI else ""
    return "-".join(part for part in (namespace, key[:8]) if part)


def counts_per_node(environment: Mapping[str, str], name: str) -> tuple[int, ...]:
    """Return the counts in a Slurm variable, one for each node in Slurm's order. Return () if it is invalid.

    >>> counts_per_node({"SLURM_JOB_CPUS_PER_NODE": "72(x2),36"}, "SLURM_JOB_CPUS_PER_NODE")
    (72, 72, 36)
    """
    parts = environment.get(name, "").split(",")
    counts = [re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part, re.ASCII) for part in parts]
    if not all(counts):
        return ()
    return tuple(int(count[1]) for count in counts if count for _ in range(int(count[2] or 1)))


# --- the MPI library ---

ASK_TIMEOUT_S = 30.0
OPEN_MPI = "Open MPI"
MPICH = "MPICH"  # and libraries with the same ABI, such as Intel MPI
_BY_PMIX, _BY_PMI = "PMIx", "PMI"
_OFFERS = {_BY_PMIX: ("PMIX_NAMESPACE", "PMIX_RANK"), _BY_PMI: ("PMI_FD", "PMI_PORT", "PMI_RANK")}
_OTHER_PMI = ("I_MPI_PMI_LIBRARY", "I_MPI_PMI")  # the user's choice of PMI for Intel MPI
_SLURM_STEP = "SLURM_STEP_ID"
_OF_PRRTE = "prte"  # prefix of namespaces of Open MPI 5's mpirun; those of Open MPI 4 are numbers
_FIRST_OF_PRRTE = 5  # Open MPI's major version; older ones may use Slurm's PMI but cannot join a PRRTE job
_ALONE = "each rank would be the only one of its MPI_COMM_WORLD"
_FAILS_OR_ALONE = "each rank would fail in MPI_Init, or be the only one of its MPI_COMM_WORLD"
_WITHOUT_HAN = {"OMPI_MCA_coll": "^han"}  # read in MPI_Init, so a process can set it before it becomes a rank
# Matched by ABI version. Includes the Fortran and C++ libraries: programs linked with --as-needed name only those.
_SONAMES = (
    (OPEN_MPI, "Open MPI", r"libmpi(_\w+)?\.so\.[24]0"),
    (MPICH, "MPICH or Intel MPI", r"libmpi(fort|cxx)?\.so\.12"),
    (MPICH, "MPICH", r"libmpich(fort|cxx)?\.so\.12"),  # Debian's name
    (None, "an MPI", r"libmpi(_\w+)?\.so(\.\d+)*"),
)
_MAX_NAME = 60
_VERSIONS = (
    (OPEN_MPI, "Open MPI", r"Open MPI v(\S+?),"),
    (MPICH, "MPICH", r"MPICH Version:\s*(\S+)"),
    (MPICH, "Intel MPI", r"Intel\(R\) MPI Library (\S+)"),
)
# A script has its own directory first on sys.path instead of "". Otherwise another module might be imported.
_ASK = """
import sys
if sys.path[:1] == [""]:
    sys.path[0] = sys.argv[1]
import json
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
with open("/proc/self/maps", errors="surrogateescape") as maps:
    loaded = sorted({line.split(None, 5)[5].strip() for line in maps if "/libmpi" in line})
print(json.dumps([MPI.Get_library_version(), loaded]))
"""


@frozen
class MpiLibrary:
    family: str | None  # OPEN_MPI, MPICH, or None if unknown
    name: str  # with its version: "Open MPI 5.0.11"
    path: str  # of the file, or the name that the loader looks for; may be empty
    major: int | None = None
    speaks_pmix: bool = False  # for the MPICH family: whether it was built with PMIx


def library_of_python(
    interpreter: Sequence[str], environment: Mapping[str, str], cwd: Path, first_on_path: str = ""
) -> MpiLibrary | None:
    """Return the MPI library that mpi4py loads, or None. Starts the interpreter, which takes about 0.1 s."""
    import subprocess  # noqa: PLC0415 - only some ranks ask

    with suppress(OSError, subprocess.SubprocessError, ValueError, IndexError, TypeError):
        done = subprocess.run(
            [*interpreter, "-c", _ASK, first_on_path], env=dict(environment), cwd=cwd, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, errors="surrogateescape", timeout=ASK_TIMEOUT_S, check=True,
        )  # fmt: skip
        said, loaded = json.loads(done.stdout.splitlines()[-1])
        return library_that_says(str(said), [str(path) for path in loaded])
    return None


def library_that_says(said: str, loaded: Sequence[str] = ()) -> MpiLibrary:
    """Identify an MPI library by the result of MPI_Get_library_version (`said`) and by its files (`loaded`)."""
    path = min(loaded, key=lambda one: (not Path(one).name.startswith("libmpi.so"), one), default="")
    for family, name, version in _VERSIONS:
        if match := re.match(version, said):
            major = re.match(r"\d+", match[1])
            speaks_pmix = family == MPICH and "pmix" in said.lower()
            return MpiLibrary(family, f"{name} {match[1]}", path, int(major[0]) if major else None, speaks_pmix)
    first = said.strip("\0 \n").partition("\n")[0]
    return MpiLibrary(None, first[:_MAX_NAME], path)


def library_called(soname: str) -> MpiLibrary | None:
    """Return the MPI library with this soname, or None if no MPI library has this soname."""
    found = ((family, name) for family, name, pattern in _SONAMES if re.fullmatch(pattern, soname))
    family, name = next(found, (None, None))
    return None if name is None else MpiLibrary(family, name, soname)


def is_of_open_mpi_4(environment: Mapping[str, str]) -> bool:
    """Return True if Open MPI 4's mpirun started a process with this environment."""
    return environment.get("PMIX_NAMESPACE", "").isdecimal() and not environment.get(_SLURM_STEP)


def variables_for(library: MpiLibrary, *, by_open_mpi_4: bool) -> Mapping[str, str]:
    """Return the variables that keep Open MPI 5 or later from hanging under Open MPI 4's mpirun, or {} if unneeded."""
    is_new = library.family == OPEN_MPI and library.major is not None and library.major >= _FIRST_OF_PRRTE
    return _WITHOUT_HAN if is_new and by_open_mpi_4 else {}


def why_apart(library: MpiLibrary, environment: Mapping[str, str]) -> str | None:
    """Return the problem that ranks with this MPI library have in a job with this `environment`, or None."""
    if library.family is None:
        return None
    offered = {protocol for protocol, names in _OFFERS.items() if any(environment.get(name) for name in names)}
    if library.family == MPICH:
        goes = library.speaks_pmix or not offered or _BY_PMI in offered or any(map(environment.get, _OTHER_PMI))
        return None if goes else _FAILS_OR_ALONE
    if _BY_PMIX in offered:
        is_old = library.major is not None and library.major < _FIRST_OF_PRRTE
        by_new = environment.get("PMIX_NAMESPACE", "").startswith(_OF_PRRTE)
        return _FAILS_OR_ALONE if is_old and by_new else None
    is_new = library.major is not None and library.major >= _FIRST_OF_PRRTE
    goes = not is_new if environment.get(_SLURM_STEP) else not offered
    return None if goes else _ALONE
