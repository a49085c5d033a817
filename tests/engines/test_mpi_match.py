"""Which MPI a program is taken to use. tests/end_to_end has real ones."""

import os
import sys

import pytest

from launcher.core.errors import RefusedError
from launcher.engines import mpi_match
from launcher.engines.mpi import Dialect, Mpirun
from launcher.engines.mpi_match import check_library, compiled_for, variables_under
from tests.conftest import stub_of_mpi4py


@pytest.mark.parametrize(("needed", "name"), [
    (("libmpi_mpifh.so.40",), "libmpi_mpifh.so.40"),
    (("libm.so.6", "libmpi_strange.so.3", "libmpi.so.40"), "libmpi.so.40"),
    (("libmpi_strange.so.3",), "libmpi_strange.so.3"), (("libmpich.so.12",), "libmpich.so.12"),
    (("libstrange.so.40",), None),
])  # fmt: skip
def test_of_the_names_in_a_program_one_that_shows_the_family_is_taken(monkeypatch, tmp_path, needed, name):
    monkeypatch.setattr(mpi_match, "needed_libraries", lambda _file: needed)
    assert getattr(compiled_for([sys.executable], None, tmp_path), "path", None) == name


@pytest.fixture(name="in_a_step")
def _in_a_step(tmp_path):
    """The environment of a rank by srun without PMI; its mpi4py loads nothing, and says it has loaded Open MPI 5."""
    packages = stub_of_mpi4py(tmp_path / "packages", "Open MPI v5.0.11, package: Open MPI")
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(packages), **step}


USES_MPI = "from mpi4py import MPI"


@pytest.mark.parametrize(("program", "mentioned", "refused"), [
    # The mpi4py beside a program that does not use it is no reason to refuse: which MPI it uses, if any, is not known.
    (("-c", "pass"), False, False), (("-c", "pass"), True, False),
    # Nor is one beside an installed program, which cannot be read from here, of a rank that another engine has started.
    (("-m", "installed.train"), True, False), (("-m", "installed.train"), False, True), (("-c", USES_MPI), False, True),
])  # fmt: skip
def test_a_library_that_does_not_go_with_srun_is_refused(in_a_step, tmp_path, program, mentioned, refused):
    if not refused:
        check_library([sys.executable, *program], in_a_step, tmp_path, mentioned=mentioned)
        return
    with pytest.raises(RefusedError) as error:
        check_library([sys.executable, *program], in_a_step, tmp_path, mentioned=mentioned)
    assert "loads Open MPI 5.0.11, which does not work with this step of srun: " in error.value.message
    assert "--engine-option --mpi=pmix; or use an MPI that a plugin" in error.value.hint
    assert "mpirun" not in error.value.message + error.value.hint


@pytest.mark.parametrize(("by_names", "expected"), [(True, {"OMPI_MCA_coll": "^han"}), (False, {})])
def test_a_library_that_would_hang_between_servers_needs_a_variable(in_a_step, tmp_path, by_names, expected):
    """Open MPI 5's, started by the mpirun of Open MPI 4; on one server, and by addresses, it does not hang."""
    started = {name: value for name, value in in_a_step.items() if not name.startswith("SLURM_")}
    started |= {"PMIX_NAMESPACE": "1641873409", "PMIX_RANK": "0"}
    assert check_library([sys.executable, "-c", USES_MPI], started, tmp_path, by_names=by_names) == expected


@pytest.mark.parametrize(("dialect", "program", "expected"), [
    (Dialect.OPEN_MPI_4, USES_MPI, {"OMPI_MCA_coll": "^han"}), (Dialect.OPEN_MPI_4, "pass", {}),
    (Dialect.OPEN_MPI_5, USES_MPI, {}),
])  # fmt: skip
def test_before_anything_is_started_it_is_told_by_the_mpirun_that_would(
    in_a_step, tmp_path, dialect, program, expected
):
    mpirun = Mpirun("/usr/bin/mpirun", dialect, f"{dialect.value}.0")
    assert variables_under(mpirun, [sys.executable, "-c", program], in_a_step, tmp_path) == expected
