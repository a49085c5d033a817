"""What ranks find alike without talking to each other."""

import pytest

from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.machine.engine_rank import EngineRank
from launcher.core.records import Layout
from launcher.engines.external_run import MIN_PORT, PORTS, check_size, master_port, run_name, unused


def rank(job="prterun-a-1@1", global_rank=0, size=8):
    return EngineRank("Open MPI", global_rank, size, 0, size, job)


def test_as_many_ranks_as_the_layout_has_are_wanted():
    layout = Layout(dp=2, mp=2, pp=2)
    assert check_size(rank(size=8), layout) is check_size(rank(size=None), layout) is None
    with pytest.raises(RefusedLayoutError) as error:
        check_size(rank(size=1), layout)
    assert error.value.message == "Open MPI started 1 rank, but dp * mp * pp = 2 * 2 * 2 = 8"
    with pytest.raises(RefusedLayoutError, match="rank 9, but dp=2 mp=2 pp=2 has ranks 0 to 7"):
        check_size(rank(size=None, global_rank=9), layout)


def test_all_ranks_of_a_job_find_one_name_and_one_port():
    names = {run_name(rank(global_rank=number), "train", None, {}) for number in range(8)}
    assert names == {"train-prterun-a-1-1"}
    assert {master_port(rank(global_rank=number), "x", None) for number in range(8)} == {master_port(rank(), "y", None)}
    ports = {master_port(rank(f"prterun-a-{pid}@1"), "x", None) for pid in range(1000)}
    assert len(ports) > 900
    assert MIN_PORT <= min(ports) <= max(ports) < MIN_PORT + PORTS


def test_a_run_id_of_the_environment_is_the_whole_name():
    assert run_name(rank(), "train", "mine", {"TLAUNCH_RUN_ID": "20261121-1"}) == "20261121-1"
    assert run_name(rank(), "train", "mine", {}) == "mine-prterun-a-1-1"
    outer = {"TLAUNCH_RUN_ID": "outer", "TLAUNCH_RUN_DIR": "/runs/outer"}
    assert run_name(rank(), "train", None, outer) == "train-prterun-a-1-1"


def test_a_job_without_a_name_needs_one():
    with pytest.raises(UsageError, match="does not provide a job ID") as error:
        run_name(rank(job=""), "train", None, {})
    assert "TLAUNCH_RUN_ID=$(date +%Y%m%d-%H%M%S)" in error.value.hint
    assert run_name(rank(job=""), "train", "mine", {}) == "mine"
    assert master_port(rank(job=""), "mine", None) != master_port(rank(job=""), "mine-2", None)


@pytest.mark.parametrize("name", ["../up", ".hidden", "latest", "a\nb", "x" * 300])
def test_names_that_are_no_directory_s_are_refused(name):
    with pytest.raises(UsageError, match="is not a valid name for a run directory"):
        run_name(rank(), "train", None, {"TLAUNCH_RUN_ID": name})
    with pytest.raises(UsageError):
        run_name(rank(job=""), "train", name, {})


def test_what_is_given_and_not_used_is_told():
    assert master_port(rank(), "x", 1234) == 1234
    assert not list(unused("x", 1234, "x", 1234, {"MASTER_PORT": "77"}))
    assert not list(unused("x", 77, "x", None, {"MASTER_PORT": "77"}))
    (port,) = unused("x", 1234, None, None, {"MASTER_PORT": "77\n"})
    assert port.startswith("MASTER_PORT=77\\n in the environment is not used")
    assert "; 1234 is used. To choose a port for all ranks, use --master-port" in port
    given = {"TLAUNCH_RUN_ID": "m2"}
    assert list(unused("m2", 1, "foo", 1, given)) == ["--name foo is not used: TLAUNCH_RUN_ID=m2 is the complete name"]
    assert not list(unused("2026-foo", 1, "foo", 1, {"TLAUNCH_RUN_ID": "2026-foo"}))
    assert not list(unused("foo-1", 1, "foo", 1, {**given, "TLAUNCH_RUN_DIR": "/runs/m2"}))
