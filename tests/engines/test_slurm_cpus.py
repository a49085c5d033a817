"""Whether a job of Slurm has a CPU for each rank: only environments are read here, tests/end_to_end has a real Slurm."""

import pytest

from launcher.engines.slurm import cpus_per_node, short_here, short_of_cpus

HERE = {"SLURM_JOB_ID": "12", "SLURMD_NODENAME": "n1", "SLURM_CPUS_ON_NODE": "1"}


@pytest.mark.parametrize(
    ("told", "cpus"), [("1(x2)", (1, 1)), ("72,36(x2),4", (72, 36, 36, 4)), ("8", (8,)), ("", ()), ("x(y)", ()), ("8,", ())]
)  # fmt: skip
def test_the_cpus_of_each_node_are_read_as_slurm_writes_them(told, cpus):
    assert cpus_per_node({"SLURM_JOB_CPUS_PER_NODE": told}) == cpus


def test_a_machine_outside_of_slurm_has_nothing_to_say():
    assert cpus_per_node({}) == ()
    assert short_here({}, 8) == ()


@pytest.mark.parametrize("missing", HERE)
def test_who_is_on_no_node_of_a_job_is_not_told_of_its_cpus(missing):
    """A shell of salloc on another machine knows the job, and has that machine's CPUs."""
    assert short_here({name: value for name, value in HERE.items() if name != missing}, 8) == ()


def test_ranks_that_share_a_cpu_are_told_with_numbers_and_remedy():
    [said] = short_here(HERE, 8)
    assert "1 CPU on n1 for 8 ranks" in said
    assert "--exclusive" in said
    assert "--cpus-per-task=8" in said


@pytest.mark.parametrize("cpus", [2, 3])
def test_a_cpu_for_each_rank_is_enough(cpus):
    assert short_here({**HERE, "SLURM_CPUS_ON_NODE": str(cpus)}, 2) == ()
    assert short_of_cpus([("n1", cpus, 2), ("n2", cpus, 1)]) == ()


def test_the_worst_node_is_named_and_others_are_counted():
    [said] = short_of_cpus([("n1", 2, 4), ("n2", 8, 8), ("n3", 1, 4)])
    assert "1 CPU on n3 for 4 ranks, and too few on 1 more" in said
