"""Who an engine says that a process is, in the words of real engines."""

import pytest

from launcher.core.errors import UsageError
from launcher.core.machine.engine_rank import EngineRank, read_engine_rank, read_task

PID = 4242
OPEN_MPI_4 = {
    "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_RANK": "3", "PMIX_NAMESPACE": "2136211457",
    "OMPI_MCA_orte_precondition_transports": "b662095af4bddf66-dbb462121395834f",
}  # fmt: skip
OPEN_MPI_5 = {
    "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "PMIX_RANK": "3", "PMIX_NAMESPACE": "prterun-vm-5224@1",
}  # fmt: skip
MPICH = {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_FD": "9", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
INTEL = {**MPICH, "I_MPI_HYDRA_UUID": "a3140000-567e-c934-d160-06002abbe05d"}
BATCH = {
    "SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0", "SLURM_NODEID": "0",
    "SLURM_TASK_PID": str(PID),
}  # fmt: skip
SRUN = {
    **BATCH, "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}  # fmt: skip
DAEMON = {**SRUN, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1", "SLURM_TASK_PID": "17"}
PMIX_OF_SRUN = {"PMIX_RANK": "3", "PMIX_NAMESPACE": "slurm.pmix.7.2"}


@pytest.mark.parametrize(("environment", "expected"), [
    (OPEN_MPI_4, EngineRank("Open MPI", 3, 4, 1, 2, "2136211457-b662095a")),
    (OPEN_MPI_5, EngineRank("Open MPI", 3, 4, 2, 4, "prterun-vm-5224@1")),
    (MPICH, EngineRank("MPICH or Intel MPI", 3, 4, 1, 2, "")),
    (INTEL, EngineRank("MPICH or Intel MPI", 3, 4, 1, 2, "a3140000-567e-c934-d160-06002abbe05d")),
    (SRUN, EngineRank("Slurm", 3, 4, 1, 2, "slurm-7.2")),
    ({**SRUN, **PMIX_OF_SRUN}, EngineRank("Slurm", 3, 4, 1, 2, "slurm-7.2")),
    ({**SRUN, "PMI_RANK": "3", "PMI_SIZE": "4"}, EngineRank("Slurm", 3, 4, 1, 2, "slurm-7.2")),
    ({"PMIX_RANK": "3", "PMIX_NAMESPACE": "job@1"}, EngineRank("PMIx", 3, None, None, None, "job@1")),
], ids=["Open MPI 4", "Open MPI 5", "MPICH", "Intel", "srun", "srun pmix", "srun pmi2", "PMIx alone"])  # fmt: skip
def test_each_engine_is_understood(environment, expected):
    assert read_engine_rank(environment, PID) == expected


@pytest.mark.parametrize("environment", [{}, BATCH, {"SLURM_STEP_ID": "0"}, {"OMPI_MCA_btl": "self", "RANK": "3"}])
def test_no_engine_started_what_only_looks_like_a_rank(environment):
    """The shell of a batch job has SLURM_PROCID=0, too."""
    assert read_engine_rank(environment, PID) is None


@pytest.mark.parametrize("mpirun", [OPEN_MPI_4, OPEN_MPI_5, MPICH])
@pytest.mark.parametrize("around", [BATCH, DAEMON, {**DAEMON, "PMIX_RANK": "0", "PMIX_NAMESPACE": "slurm.pmix.7.2"}])
def test_an_mpirun_inside_a_job_counts_and_not_the_job(mpirun, around):
    """Its daemons are tasks of Slurm, whose ranks are not those of MPI."""
    found = read_engine_rank({**around, **mpirun}, PID)
    assert found.global_rank == 3
    assert found.engine != "Slurm"


@pytest.mark.parametrize("outer", [OPEN_MPI_5, MPICH])
def test_what_srun_itself_started_is_a_rank_of_srun(outer):
    left = {name: "0" if name.endswith("RANK") else value for name, value in outer.items()}
    found = read_engine_rank({**left, **SRUN}, PID)
    assert (found.global_rank, found.engine) == (3, "Slurm")


def test_only_srun_s_own_ranks_are_told_the_name_of_their_node():
    """Others inherit that of the shell which called mpirun, on whatever node they are."""
    for around, node in ((SRUN, "n2"), (OPEN_MPI_5, None), ({**BATCH, **MPICH}, None)):
        assert read_engine_rank({**around, "SLURMD_NODENAME": "n2"}, PID).node == node


def test_engines_that_contradict_each_other_are_refused():
    with pytest.raises(UsageError, match="Open MPI says rank 3 of 4, MPICH or Intel MPI says rank 0 of 2") as error:
        read_engine_rank({**OPEN_MPI_5, "PMI_RANK": "0", "PMI_SIZE": "2"}, PID)
    assert "env -i" in error.value.hint


@pytest.mark.parametrize(("changes", "message"), [
    ({"PMI_RANK": "three"}, "PMI_RANK is 'three', not a whole number"),
    ({"PMI_RANK": "-1"}, "PMI_RANK is '-1', not a whole number"),
    ({"PMI_SIZE": "٤"}, "PMI_SIZE is '٤', not a whole number"),
    ({"PMI_RANK": "4"}, "PMI_RANK is 4, but PMI_SIZE is 4"),
])  # fmt: skip
def test_numbers_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(UsageError) as error:
        read_engine_rank({**MPICH, **changes}, PID)
    assert message in error.value.message


def test_tasks_on_a_node_are_read_in_slurm_s_notation():
    for tasks, node, local in (("2(x2),1", "2", 1), ("3,1", "0", 3), ("x", "0", None), ("2", "5", None)):
        environment = {**SRUN, "SLURM_STEP_TASKS_PER_NODE": tasks, "SLURM_NODEID": node}
        assert read_engine_rank(environment, PID).local_world_size == local


def test_a_job_s_name_becomes_part_of_a_file_s():
    def token(job):
        return EngineRank("x", 0, 1, 0, 1, job).job_token

    assert [token(job) for job in ("prterun-vm-5224@1", "slurm-7.2", "../a b/$(c)\n")] == [
        "prterun-vm-5224-1", "slurm-7.2", "a-b-c",
    ]  # fmt: skip
    assert token("j" * 300 + "a") != token("j" * 300 + "b")
    assert len(token("j" * 300)) < 50


def test_a_task_is_the_process_that_srun_started():
    assert read_task(SRUN, PID).global_rank == 3
    assert (read_task(SRUN, PID + 1), read_task(BATCH, PID)) == (None, None)
