"""What other launchers leave in the environment."""

import pytest

from launcher.engines.leftover_variables import Fate, conflicts, notes

DECIDED = {
    "RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "MASTER_PORT": "29500", "RANK_ID": "0",
    "RANK_TABLE_FILE": None, "TORCHELASTIC_RESTART_COUNT": "0",
}  # fmt: skip


def fates(environment, decided=None):
    met = conflicts(environment, DECIDED if decided is None else decided)
    return {found.name: found.fate for conflict in met for found in conflict.found}


@pytest.mark.parametrize("names", [
    "TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE ROLE_RANK PET_NNODES PET_RDZV_ENDPOINT",
    "MS_ROLE MS_SCHED_HOST MS_SCHED_PORT MS_WORKER_NUM MS_NODE_ID MS_WORKER_IP MINDSPORE_HCCL_CONFIG_PATH",
    "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_SIZE OMPI_UNIVERSE_SIZE PMIX_RANK PMIX_SERVER_URI41 PMI_RANK PMI_FD",
    "SLURM_PROCID SLURM_LOCALID SLURM_NTASKS SLURM_STEP_ID SLURM_STEP_NODELIST",
])  # fmt: skip
def test_who_another_launcher_took_a_process_for_is_taken_away(names):
    environment = dict.fromkeys(names.split(), "1")
    assert fates(environment) == dict.fromkeys(environment, Fate.REMOVED)
    assert len(conflicts(environment, DECIDED)) == 1


@pytest.mark.parametrize("name", [
    "SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_JOB_NODELIST", "MS_DEV_RUNTIME_CONF", "MS_COMPILER_CACHE_PATH",
    "MS_TOPO_TIMEOUT", "OMPI_MCA_btl", "PMIX_MCA_gds", "NCCL_DEBUG", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "PET_LOG_DIR", "OMP_NUM_THREADS", "MY_RANK", "RANK_OF_MINE", "HCCL_CONNECT_TIMEOUT",
])  # fmt: skip
def test_settings_that_say_nothing_of_who_a_process_is_stay(name):
    assert fates({name: "1"}) == {}


def test_values_that_this_run_decides_are_replaced():
    environment = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_PORT": "1", "RANK_TABLE_FILE": "/other"}
    assert fates(environment) == {"RANK": Fate.REPLACED, "MASTER_PORT": Fate.REPLACED, "RANK_TABLE_FILE": Fate.REMOVED}
    # A rank that starts tlaunch has torchrun's names from tlaunch.
    (conflict,) = conflicts({"RANK": "3", "TLAUNCH_RUN_ID": "outer"}, DECIDED)
    assert conflict.family == "another tlaunch run"


@pytest.mark.parametrize(
    ("value", "warned"), [("0", True), ("0,1,2", True), ("0,1,2,3", False), ("", False), ("-1", False)]
)
@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"])
def test_fewer_visible_devices_than_ranks_are_worth_a_warning(name, value, warned):
    assert fates({name: value}) == ({name: Fate.KEPT} if warned else {})
    # What --env says is what ranks see.
    assert fates({name: value}, {**DECIDED, name: "0,1,2,3"}) == {}


def test_a_note_names_what_was_there_and_what_becomes_of_it():
    environment = {"WORLD_SIZE": "16", "TORCHELASTIC_RUN_ID": "x{}", "RANK": "3", "CUDA_VISIBLE_DEVICES": "0"}
    assert list(notes(conflicts(environment, DECIDED))) == [
        (
            "RANK=3, WORLD_SIZE=16 from the environment (torchrun?) are replaced; "
            "TORCHELASTIC_RUN_ID=x{} is removed for ranks (use --env to keep it)"
        ),
        "warning: CUDA_VISIBLE_DEVICES=0: 4 ranks would need a device each, but only 1 device can be used",
    ]


@pytest.mark.parametrize("value", ["/t", "/is/missing", ""])
def test_a_rank_table_of_the_shell_can_still_be_used(value):
    """--env could not give it back; the option for tables is named, and nothing is said of a file that may be missing."""
    (note,) = notes(conflicts({"RANK_TABLE_FILE": value}, DECIDED))
    assert note.endswith("removed for ranks (to use a table, give --rank-table)")


def test_a_note_shows_no_secret_and_moves_no_cursor_and_is_not_endless():
    environment = {f"OMPI_COMM_WORLD_X{number}": "1" for number in range(6)}
    (note,) = notes(conflicts({**environment, "OMPI_UNIVERSE_SIZE": "1"}, DECIDED))
    assert "and 3 more from the environment (mpirun?)" in note
    (note,) = notes(conflicts({"PMI_SHARED_SECRET": "s3cr3t", "PMI_ID": "a\x1b[2J\n" + "b" * 99}, DECIDED))
    assert "s3cr3t" not in note
    assert note.isprintable()
    assert len(note) < 200


def test_what_identifies_a_rank_of_an_engine_stays():
    """MPI_Init needs it; what was left by others goes as always."""
    environment = {"OMPI_COMM_WORLD_RANK": "0", "PMI_FD": "9", "SLURM_STEP_ID": "0", "ROLE_RANK": "0", "MS_ROLE": "x"}
    met = conflicts(environment, DECIDED, within_engine=True)
    assert {found.name for conflict in met for found in conflict.found} == {"ROLE_RANK", "MS_ROLE"}
