"""What the environment of a job and Slurm's commands say of it: nodes, devices, CPUs, the time that is left."""

import time
from dataclasses import replace

import pytest

from launcher.core.errors import UnreadableError, UsageError
from launcher.core.machine.engine_rank import counts_per_node
from launcher.core.records import Supervision
from launcher.engines.slurm_allocation import (
    Allocation,
    Node,
    cluster_of,
    read_allocation,
    short_of_cpus,
    shortage_warnings,
)
from launcher.engines.slurm_time import seconds_of, time_left_s, within_job
from tests.conftest import executable
from tests.servers import SLURM_JOB


def slurm_here(directory, **programs):
    for name, text in programs.items():
        executable(directory / name, f"#!/bin/sh\n{text}\n")
    return {"PATH": f"{directory}:/usr/bin:/bin", "SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[1-2]"}


SCONTROL = """case $1 in --version) echo slurm 23.11.4;; *)
echo "NodeName=n1 Arch=x86_64 Gres=gpu:8 NodeAddr=10.0.0.1 NodeHostName=alpha Version=23.11.4"
echo "NodeName=n2 Arch=x86_64 Gres=gpu:8 NodeAddr=n2-ib NodeHostName=n2 Version=23.11.4";; esac"""


def test_an_allocation_is_read_from_the_environment_and_the_controller(tmp_path):
    given = {"SLURM_JOB_CPUS_PER_NODE": "4(x2)", "SLURM_JOB_END_TIME": "99"}
    assert read_allocation(slurm_here(tmp_path, scontrol=SCONTROL) | given) == Allocation(
        job_id="12", nodes=(Node("n1", "alpha", "10.0.0.1"), Node("n2", "n2", "n2-ib")), ends_at_s=99.0,
        gpus_per_node=None, here=None, version="Slurm 23.11.4", cpus_per_node=(4, 4),
    )  # fmt: skip
    with pytest.raises(UsageError) as error:
        read_allocation({})
    assert all(way in error.value.hint for way in ("salloc", "tlaunch render slurm"))


@pytest.mark.parametrize(("given", "count"), [
    ({"SLURM_GPUS_ON_NODE": "4"}, 4), ({"SLURM_GPUS_PER_NODE": "a100:4,v100:2"}, 6), ({"SLURM_GPUS": "6"}, 3),
    ({"SLURM_GPUS": "7"}, None), ({"SLURM_GPUS_PER_TASK": "2", "SLURM_TASKS_PER_NODE": "4,3"}, 6),
    ({"SLURM_GPUS_PER_TASK": "a100:1", "SLURM_TASKS_PER_NODE": "8(x2)"}, 8), ({"SLURM_GPUS_ON_NODE": "x"}, None),
])  # fmt: skip
def test_gpus_are_counted_however_they_were_asked_for(tmp_path, given, count):
    assert read_allocation(slurm_here(tmp_path, scontrol=SCONTROL) | given).gpus_per_node == count


def test_a_job_makes_a_rank_table():
    made = cluster_of(replace(SLURM_JOB, gpus_per_node=2))
    assert [(one.server_id, [device.global_rank for device in one.devices]) for one in made.servers] == [
        ("n1", [0, 1]), ("n2", [2, 3]), ("n3", [4, 5]),
    ]  # fmt: skip
    assert cluster_of(SLURM_JOB, 4).device_count == 12
    with pytest.raises(UsageError, match="the number of devices per node is unknown for job"):
        cluster_of(SLURM_JOB)
    with pytest.raises(UsageError, match="--devices 0"):
        cluster_of(SLURM_JOB, 0)


@pytest.mark.parametrize(("given", "groups"), [
    ({"SLURM_HET_SIZE": "2"}, 2), ({"SLURM_PACK_SIZE": "3"}, 3), ({"SLURM_HET_SIZE": "1"}, 1), ({"SLURM_HET_SIZE": "x"}, 1),
    ({"SLURM_HET_SIZE": ""}, 1), ({"SLURM_HET_SIZE": "9" * 5000}, 1), ({}, 1),
])  # fmt: skip
def test_no_rank_table_is_made_of_a_part_of_a_heterogeneous_job(tmp_path, given, groups):
    allocation = read_allocation(slurm_here(tmp_path, scontrol=SCONTROL) | given)
    assert allocation.groups == groups
    if groups == 1:
        assert cluster_of(allocation, 2).device_count == 4
        return
    with pytest.raises(UsageError, match=f"job 12 is heterogeneous and has {groups} node groups, .* n1, n2\n") as error:
        cluster_of(allocation, 2)
    assert "--rank-table" in error.value.hint


def test_the_time_that_is_left_is_that_of_this_job_alone(tmp_path):
    assert time_left_s(SLURM_JOB, slurm_here(tmp_path, squeue="echo '13 5:00'; echo '12 1-02:03:04'")) == 93784.0
    assert time_left_s(SLURM_JOB, slurm_here(tmp_path, squeue="echo '13 5:00'; echo '12 UNLIMITED'")) is None
    environment = slurm_here(tmp_path, squeue="echo 'slurm_load_jobs error: Unable to contact' >&2; exit 1")
    assert time_left_s(replace(SLURM_JOB, ends_at_s=0.0), environment) == 0.0
    with pytest.raises(UnreadableError, match="Unable to contact"):
        time_left_s(SLURM_JOB, environment)


@pytest.mark.parametrize(("text", "seconds"), [
    ("90", 5400), ("2:30", 150), ("36:00:00", 129600), ("1-12", 129600), ("1-12:30", 131400), ("0", 0), ("0:00", 0),
    ("9:48", 588), ("1-02:03:04", 93784), ("UNLIMITED", None), ("infinite", None),
])  # fmt: skip
def test_times_are_read_as_sbatch_reads_them(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "INVALID", "1:2:3:4", "-5", "1-", "٣"])
def test_what_is_no_time_is_an_error(text):
    with pytest.raises(ValueError, match="is not a Slurm time"):
        seconds_of(text)


def test_a_run_knows_when_slurm_will_kill_what_is_left(tmp_path):
    given = "echo 'KillOnBadExit           = 0'; echo 'KillWait                = 7 sec'"
    environment = slurm_here(tmp_path, squeue="echo '12 1:00'", scontrol=given)
    before_s = time.time()
    within = within_job(Supervision(grace_s=9.0), SLURM_JOB, environment)
    assert before_s + 67 <= within.killed_at_s <= time.time() + 67
    assert within == Supervision(grace_s=9.0, killed_at_s=within.killed_at_s, kill_wait_s=7.0)
    silent = slurm_here(tmp_path, squeue="exit 1", scontrol="exit 1")
    assert within_job(Supervision(grace_s=9.0), SLURM_JOB, silent) == Supervision(grace_s=9.0)


@pytest.mark.parametrize(("given", "cpus"), [
    ("1(x2)", (1, 1)), ("72,36(x2),4", (72, 36, 36, 4)), ("8", (8,)), ("", ()), ("x(y)", ()), ("8,", ()), (None, ()),
])  # fmt: skip
def test_the_cpus_of_each_node_are_read_as_slurm_writes_them(given, cpus):
    assert counts_per_node({} if given is None else {"CPUS": given}, "CPUS") == cpus


def test_ranks_that_share_a_cpu_are_reported_with_numbers_and_remedy():
    on_n1 = {"SLURM_JOB_ID": "12", "SLURMD_NODENAME": "n1", "SLURM_CPUS_ON_NODE": "1"}
    [said] = shortage_warnings(on_n1, 8)
    assert all(part in said for part in ("1 CPU on n1 for 8 ranks", "--exclusive", "--cpus-per-task=8"))
    [said] = short_of_cpus([("n1", 2, 4), ("n2", 8, 8), ("n3", 1, 4)])
    assert "1 CPU on n3 for 4 ranks, and too few on 1 more" in said
    for cpus in (2, 3):
        assert shortage_warnings({**on_n1, "SLURM_CPUS_ON_NODE": str(cpus)}, 2) == ()
        assert short_of_cpus([("n1", cpus, 2), ("n2", cpus, 1)]) == ()
    # A shell of salloc on another machine, on no node of the job, knows the job, and has that machine's CPUs.
    for missing in ({}, *({name} for name in on_n1)):
        left = {name: value for name, value in on_n1.items() if missing and name not in missing}
        assert shortage_warnings(left, 8) == ()
