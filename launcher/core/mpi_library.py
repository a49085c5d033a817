"""The MPI library that a program would load, and whether it can join the job of the mpirun around it.

Where it cannot, most libraries make every rank the only one of a world of its own: the run computes N times the same and
ends with 0. An engine tells its processes who they are by a protocol, and the library has to speak the same:

| measured, mpi4py 4.1.2    | library Open MPI 4.1.4  | Open MPI 5.0.11        | MPICH 5.0.2     | Intel MPI 2021.18 |
|---------------------------|-------------------------|------------------------|-----------------|-------------------|
| mpirun of Open MPI 4.1.4  | one world               | one world (*)          | MPI_Init fails  | worlds of size 1  |
| mpirun of Open MPI 5.0.11 | loads 5 instead, or     | one world              | MPI_Init fails  | worlds of size 1  |
|                           | MPI_Init fails, or      |                        |                 |                   |
|                           | worlds of size 1 (**)   |                        |                 |                   |
| mpirun of MPICH, Intel    | worlds of size 1        | worlds of size 1       | one world       | one world         |

(*) Over servers that mpirun hears of by name, not by address, and none of which it runs on, a rank takes those of another
    server for its neighbours: collectives by coll/han, MPI_Barrier too, hang or fail, and those of OMPI_MCA_coll=^han do
    not. A communicator of COMM_TYPE_SHARED is wrong there all the same. Elsewhere ^han changes no result.
(**) Where mpirun is a wheel's, it tells the library to look for its parts there, and 4 finds none; else ranks are alone.

What is unknown is never refused. Standard library only; MPI itself is loaded by another process, if at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from launcher.core.frozen import frozen

ASK_TIMEOUT_S = 30.0
OPEN_MPI = "Open MPI"
MPICH = "MPICH"  # and all that have its binary interface: Intel MPI
_PMIX, _PMI = "PMIx", "PMI"
_OFFERS = {_PMIX: ("PMIX_NAMESPACE", "PMIX_RANK"), _PMI: ("PMI_FD", "PMI_PORT", "PMI_RANK")}
_OTHER_PMI = ("I_MPI_PMI_LIBRARY", "I_MPI_PMI")  # the user has told Intel MPI what to speak
_SLURM_STEP = "SLURM_STEP_ID"
_OF_PRRTE = "prte"  # how namespaces begin that Open MPI 5's mpirun makes; 4's are numbers
_FIRST_OF_PRRTE = 5  # Open MPI's; older ones may speak Slurm's PMI too, and are no part of a job of PRRTE
_ALONE = "each rank would be the only one of its MPI_COMM_WORLD"
_FAILS_OR_ALONE = "each rank would fail in MPI_Init, or be the only one of its MPI_COMM_WORLD"
_WITHOUT_HAN = {"OMPI_MCA_coll": "^han"}  # read by MPI_Init, so whoever becomes a rank may still set it
# By the number of the interface, and with the libraries for Fortran and C++: linked --as-needed, a program names only those.
_SONAMES = (
    (OPEN_MPI, "Open MPI", r"libmpi(_\w+)?\.so\.[24]0"),
    (MPICH, "MPICH or Intel MPI", r"libmpi(fort|cxx)?\.so\.12"),
    (MPICH, "MPICH", r"libmpich(fort|cxx)?\.so\.12"),  # as Debian calls it
    (None, "an MPI", r"libmpi(_\w+)?\.so(\.\d+)*"),
)
_MAX_NAME = 60
_VERSIONS = (
    (OPEN_MPI, "Open MPI", r"Open MPI v(\S+?),"),
    (MPICH, "MPICH", r"MPICH Version:\s*(\S+)"),
    (MPICH, "Intel MPI", r"Intel\(R\) MPI Library (\S+)"),
)
# What `python -c` has first on its path is not what a script has there: a module of the user's might be taken instead.
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
    family: str | None  # OPEN_MPI, MPICH, or None for what is not known
    name: str  # as people call it: "Open MPI 5.0.11"
    path: str  # where it is, or which name the loader would look for; may be empty
    major: int | None = None
    speaks_pmix: bool = False  # of MPICH's family: as it says that it was built


def library_of_python(
    interpreter: Sequence[str], environment: Mapping[str, str], cwd: Path, first_on_path: str = ""
) -> MpiLibrary | None:
    """Return the library that mpi4py loads there, or None if that cannot be found out. Starts that Python: some 0.1 s.

    `interpreter`: with its options. `first_on_path`: the directory of its script.
    """
    import subprocess  # noqa: PLC0415 - most ranks ask nobody

    with suppress(OSError, subprocess.SubprocessError, ValueError, IndexError, TypeError):
        done = subprocess.run(
            [*interpreter, "-c", _ASK, first_on_path], env=dict(environment), cwd=cwd, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, errors="surrogateescape", timeout=ASK_TIMEOUT_S, check=True,
        )  # fmt: skip
        said, loaded = json.loads(done.stdout.splitlines()[-1])
        return library_that_says(str(said), [str(path) for path in loaded])
    return None


def library_that_says(said: str, loaded: Sequence[str] = ()) -> MpiLibrary:
    """Return the library whose MPI_Get_library_version is `said`; `loaded` are the paths of its files."""
    path = min(loaded, key=lambda one: (not Path(one).name.startswith("libmpi.so"), one), default="")
    for family, name, version in _VERSIONS:
        if match := re.match(version, said):
            major = re.match(r"\d+", match[1])
            speaks_pmix = family == MPICH and "pmix" in said.lower()
            return MpiLibrary(family, f"{name} {match[1]}", path, int(major[0]) if major else None, speaks_pmix)
    first = said.strip("\0 \n").partition("\n")[0]
    return MpiLibrary(None, first[:_MAX_NAME], path)


def library_called(soname: str) -> MpiLibrary | None:
    """Return the library of that soname, as compiled programs ask the loader for it, or None if it is not an MPI."""
    found = ((family, name) for family, name, pattern in _SONAMES if re.fullmatch(pattern, soname))
    family, name = next(found, (None, None))
    return None if name is None else MpiLibrary(family, name, soname)


def is_of_open_mpi_4(environment: Mapping[str, str]) -> bool:
    """Return True if the mpirun of Open MPI 4 has started a process with this environment."""
    return environment.get("PMIX_NAMESPACE", "").isdecimal() and not environment.get(_SLURM_STEP)


def variables_for(library: MpiLibrary, *, by_open_mpi_4: bool) -> Mapping[str, str]:
    """Return the variables without which ranks of servers that go by names would hang; mostly none."""
    is_new = library.family == OPEN_MPI and library.major is not None and library.major >= _FIRST_OF_PRRTE
    return _WITHOUT_HAN if is_new and by_open_mpi_4 else {}


def why_apart(library: MpiLibrary, environment: Mapping[str, str]) -> str | None:
    """Return what would happen to ranks that cannot meet with this library under the engine around them, or None."""
    if library.family is None:
        return None
    offered = {protocol for protocol, names in _OFFERS.items() if any(environment.get(name) for name in names)}
    if library.family == MPICH:
        goes = library.speaks_pmix or not offered or _PMI in offered or any(map(environment.get, _OTHER_PMI))
        return None if goes else _FAILS_OR_ALONE
    if _PMIX in offered:
        is_old = library.major is not None and library.major < _FIRST_OF_PRRTE
        by_new = environment.get("PMIX_NAMESPACE", "").startswith(_OF_PRRTE)
        return _FAILS_OR_ALONE if is_old and by_new else None
    is_new = library.major is not None and library.major >= _FIRST_OF_PRRTE
    goes = not is_new if environment.get(_SLURM_STEP) else not offered
    return None if goes else _ALONE
