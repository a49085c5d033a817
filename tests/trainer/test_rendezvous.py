"""A rank that an engine started by itself, as far as it needs no MPI. With MPI: tests/end_to_end/test_engines.py."""

import os
import subprocess
import sys

import pytest

from launcher.core.errors import UsageError
from launcher.trainer.parallel import rendezvous
from launcher.trainer.parallel.rendezvous import engine_variables

MPICH = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
MEETING = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


@pytest.fixture(autouse=True)
def _ended():
    yield
    while rendezvous._claimed:
        rendezvous._claimed.popitem()[1].close()


def test_a_rank_that_knows_where_to_meet_takes_its_place_from_the_engine():
    expected = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert engine_variables({**MPICH, **MEETING}) == expected


@pytest.mark.parametrize("environment", [
    {}, {**MPICH, "RANK": "0"}, {**MPICH, "WORLD_SIZE": "1"}, {"PMI_RANK": "0", "PMI_SIZE": "1"},
    {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "1"},
], ids=["no engine", "RANK is set", "WORLD_SIZE is set", "one process", "a batch job's shell"])  # fmt: skip
def test_whoever_says_who_a_rank_is_counts_more_than_an_engine(environment):
    assert engine_variables(environment) == {}


def test_an_engine_that_does_not_tell_its_size_is_refused():
    with pytest.raises(UsageError, match="PMIx started this process as rank 2 without the number of ranks"):
        engine_variables({"PMIX_RANK": "2", "PMIX_NAMESPACE": "job@1", **MEETING})


def test_ranks_that_nothing_tells_where_to_meet_need_mpi4py(monkeypatch):
    """Or an address, with which it is not needed: both are said."""
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    said = "started 4 ranks without a rendezvous address: mpi4py is not installed"
    with pytest.raises(UsageError, match=said) as error:
        engine_variables(MPICH)
    assert "MASTER_ADDR (an address of rank 0's server) and MASTER_PORT" in error.value.hint


def test_two_ranks_with_one_local_rank_are_refused():
    """They would take one device: the second is told so while the first one lives, and not by itself."""
    meeting = {**MEETING, "MASTER_PORT": str(os.getpid())}
    code = "from launcher.trainer.parallel.rendezvous import engine_variables as v; import os; v(os.environ); print(v(os.environ)); input()"
    env, pipe = {**os.environ, **MPICH, **meeting, "PMI_RANK": "1"}, subprocess.PIPE
    first = subprocess.Popen([sys.executable, "-c", code], env=env, stdin=pipe, stdout=pipe, text=True)
    try:
        assert "'RANK': '1'" in first.stdout.readline()
        with pytest.raises(UsageError, match=r"two processes on .* as local rank 1; this one is rank 3"):
            engine_variables({**MPICH, **meeting})
        assert engine_variables({**MPICH, **meeting, "MPI_LOCALRANKID": "0"})["LOCAL_RANK"] == "0"
    finally:
        first.communicate("\n", timeout=60)
    assert engine_variables({**MPICH, **meeting})["LOCAL_RANK"] == "1"
