"""Which MPI a program would load, and which mpirun it goes with. tests/end_to_end has real ones."""

import sys
from pathlib import Path

import pytest

from launcher.core.machine import engine_rank

OPEN_MPI_4 = "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: v4.1.4, May 26, 2022"
OPEN_MPI_3 = "Open MPI v3.1.6, package: Open MPI user@localhost Distribution, ident: 3.1.6"
OPEN_MPI_OF_NO_NUMBER = "Open MPI vgit, package: Open MPI user@localhost Distribution"
OPEN_MPI_5 = "Open MPI v5.0.11, package: Open MPI user@localhost Distribution, ident: 5.0.11"
MPICH = "MPICH Version:      5.0.2\nMPICH Device:       ch4:ucx ofi\nMPICH configure:    --with-pm=hydra:gforker\n"
MPICH_WITH_PMIX = MPICH.replace("--with-pm=hydra:gforker", "--with-pmix=/usr")
INTEL = "Intel(R) MPI Library 2021.18.1 for Linux* OS\n\0"
STRANGE = "CRAY MPICH version 8.1.27.26\n"

BY_OPEN_MPI_5 = {"PMIX_NAMESPACE": "prterun-vm-1@1", "PMIX_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}
BY_OPEN_MPI_4 = {**BY_OPEN_MPI_5, "PMIX_NAMESPACE": "1641873409"}
BY_HYDRA = {"PMI_RANK": "0", "PMI_SIZE": "4", "PMI_FD": "9"}
BY_SRUN = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}
BY_SRUN_PMIX = {**BY_SRUN, "PMIX_NAMESPACE": "slurm.pmix.7.0", "PMIX_RANK": "0"}
BY_SRUN_PMI2 = {**BY_SRUN, "PMI_FD": "9", "PMI_RANK": "0", "PMI_SIZE": "2"}
BY_NOBODY = {}


def test_a_library_is_known_by_its_words():
    names = [engine_rank.library_that_says(said).name for said in (OPEN_MPI_4, OPEN_MPI_5, MPICH, INTEL, STRANGE, "")]
    open_mpi = ["Open MPI 4.1.4", "Open MPI 5.0.11"]
    assert names == [*open_mpi, "MPICH 5.0.2", "Intel MPI 2021.18.1", "CRAY MPICH version 8.1.27.26", ""]
    loaded = ["/usr/lib/libmpi_cxx.so.40", "/usr/lib/libmpi.so.40.30.4"]
    assert engine_rank.library_that_says(OPEN_MPI_4, loaded).path == "/usr/lib/libmpi.so.40.30.4"


INTEL_PMI2 = {**BY_SRUN_PMIX, "I_MPI_PMI_LIBRARY": "/usr/lib/libpmi2.so"}
# Libraries that go with an engine, and those that are apart from it.
PAIRS = [
    (BY_OPEN_MPI_4, [OPEN_MPI_4, OPEN_MPI_5], [MPICH]),
    (BY_OPEN_MPI_5, [OPEN_MPI_5, OPEN_MPI_OF_NO_NUMBER, MPICH_WITH_PMIX, STRANGE], [INTEL, OPEN_MPI_4, OPEN_MPI_3]),
    (BY_HYDRA, [MPICH, INTEL], [OPEN_MPI_4, OPEN_MPI_5]),
    ({**BY_HYDRA, **BY_OPEN_MPI_5}, [OPEN_MPI_5], []),
    (BY_SRUN, [MPICH], [OPEN_MPI_5]),
    (BY_SRUN_PMI2, [OPEN_MPI_4, MPICH], [OPEN_MPI_5]),
    (BY_SRUN_PMIX, [OPEN_MPI_4, OPEN_MPI_5], [MPICH]),
    (INTEL_PMI2, [INTEL], []),
    (BY_NOBODY, [MPICH, OPEN_MPI_5], []),
]
# Names of libraries without what they say: the number of the interface tells the family only.
NAMES = [
    (BY_OPEN_MPI_4, ["libmpi.so.40", "libmpi_mpifh.so.40"], []),
    (BY_OPEN_MPI_5, ["libmpi_abi.so.0", "libmpi_gnu.so.12"],
     ["libmpi.so.12", "libmpifort.so.12", "libmpicxx.so.12", "libmpich.so.12", "libmpichfort.so.12"]),
    (BY_HYDRA, ["libmpi.so.12", "libmpifort.so.12", "libmpich.so.12"],
     ["libmpi.so.40", "libmpi_mpifh.so.40", "libmpi_cxx.so.40", "libmpi_usempif08.so.40"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("known", "pairs"), [(engine_rank.library_that_says, PAIRS), (engine_rank.library_called, NAMES)]
)
def test_whether_a_library_goes_with_its_engine(known, pairs):
    """As was measured: apart it ends with 0 and wrong numbers, or with an error, or never. The unknown is not refused."""
    for environment, together, apart in pairs:
        assert [each for each in together if engine_rank.why_apart(known(each), environment)] == []
        assert [each for each in apart if engine_rank.why_apart(known(each), environment) is None] == []


def test_other_libraries_are_none_of_mpi():
    assert not any(
        map(engine_rank.library_called, ("libc.so.6", "libmpich.so.1", "libmpi", "xlibmpi.so.12", "libmpi.so.12x"))
    )


def stub(directory, says):
    package = directory / "packages" / "mpi4py"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("class rc:\n    initialize = True\n")
    (package / "MPI.py").write_text(
        f"import mpi4py\nassert not mpi4py.rc.initialize\ndef Get_library_version():\n    return {says!r}\n"
    )
    return {"PYTHONPATH": str(package.parent)}


def test_python_is_asked_and_nothing_is_initialised(tmp_path):
    """In the environment of a rank, whatever else it prints.

    Modules of the directory are not taken for those of the library: `python -c` would, a script elsewhere would not.
    """
    environment = stub(tmp_path, MPICH)
    (tmp_path / "packages" / "sitecustomize.py").write_text("print('hello')")
    assert engine_rank.library_of_python((sys.executable, "-u"), environment, tmp_path).name == "MPICH 5.0.2"
    (tmp_path / "json.py").write_text("raise SystemExit('not this one')")
    elsewhere = tmp_path / "scripts"
    elsewhere.mkdir()
    assert engine_rank.library_of_python((sys.executable,), environment, tmp_path) is None
    assert engine_rank.library_of_python((sys.executable,), environment, tmp_path, str(elsewhere)).name == "MPICH 5.0.2"


@pytest.mark.parametrize("says", [None, "raise RuntimeError('cannot load MPI library')", "import os; os._exit(0)"])
def test_a_python_that_does_not_tell(tmp_path, says):
    environment = stub(tmp_path, "")
    code = tmp_path / "packages" / "mpi4py" / ("__init__.py" if says is None else "MPI.py")
    code.write_text(says or "raise ImportError")
    assert engine_rank.library_of_python((sys.executable,), environment, tmp_path) is None
    assert engine_rank.library_of_python((str(Path("/nowhere/python")),), environment, tmp_path) is None


def test_open_mpi_5_under_the_mpirun_of_4_is_kept_from_hanging():
    def added(said, environment):
        return engine_rank.variables_for(
            engine_rank.library_that_says(said), by_open_mpi_4=engine_rank.is_of_open_mpi_4(environment)
        )

    assert added(OPEN_MPI_5, BY_OPEN_MPI_4) == {"OMPI_MCA_coll": "^han"}
    assert not any(added(said, BY_OPEN_MPI_4) for said in (OPEN_MPI_4, OPEN_MPI_OF_NO_NUMBER, MPICH_WITH_PMIX))
    assert not any(added(OPEN_MPI_5, environment) for environment in (BY_OPEN_MPI_5, BY_SRUN_PMIX, BY_NOBODY))
