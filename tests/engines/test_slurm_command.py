"""The job of Slurm as it is read, and the command that starts agents by srun, word by word. tests/end_to_end has a real one."""

import re
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.core.errors import RefusedLayoutError, UnreadableError, UsageError
from launcher.core.records import Device, Server, Supervision
from launcher.doctor import network
from launcher.engines.slurm import cpus_notes, nodes_of, slurm_command
from launcher.engines.slurm_allocation import (
    Allocation,
    Node,
    cluster_of,
    cpus_per_node,
    read_allocation,
    short_here,
    short_of_cpus,
)
from launcher.engines.slurm_time import seconds_of, time_left_s, within_job
from tests.conftest import executable
from tests.servers import servers

NODES = (Node("n1", "n1", "10.0.0.1"), Node("n2", "host2", "10.0.0.2"), Node("n3", "n3", "10.0.0.3"))
JOB = Allocation("12", NODES, None, None, None, "Slurm 22.05.8")
HOSTFILE = Path("/runs/x/hosts")


def command(*names, job=JOB, agent=("agent",), **more):
    return slurm_command(job, servers(*names), agent, directory=Path("/runs/x"), **more)


def slurm_here(directory, **programs):
    """Programs of Slurm that run these scripts, and the environment of a job."""
    for name, text in programs.items():
        executable(directory / name, f"#!/bin/sh\n{text}\n")
    return {"PATH": f"{directory}:/usr/bin:/bin", "SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[1-2]"}


SCONTROL = """case $1 in --version) echo slurm 23.11.4;; *)
echo "NodeName=n1 Arch=x86_64 Gres=gpu:8 NodeAddr=10.0.0.1 NodeHostName=alpha Version=23.11.4"
echo "NodeName=n2 Arch=x86_64 Gres=gpu:8 NodeAddr=n2-ib NodeHostName=n2 Version=23.11.4";; esac"""


def test_tasks_stand_in_a_file_in_the_order_of_the_table():
    """A list would be sorted; what sbatch has set about tasks is taken away, for an agent is none of them."""
    made = command("n3", "n1", agent=("agent", "a b"), counts=[1, 2])
    assert made.files == {HOSTFILE: "n3\nn1\nn1\n"}
    assert made.argv[:4] == ("srun", "--nodes=2", "--ntasks=3", "--distribution=arbitrary")
    assert made.argv[-2:] == ("agent", "a b")
    assert made.env["SLURM_HOSTFILE"] == str(HOSTFILE)
    assert made.env["SLURM_NTASKS_PER_NODE"] is None
    assert not any(word.startswith("--gres") for word in made.argv)
    assert made.engine == "Slurm 22.05.8"
    # Ranks may be dealt out to nodes in turn.
    assert command("n2", "10.0.0.1", "n2", "10.0.0.1", counts=[1] * 4).files == {HOSTFILE: "n2\nn1\nn2\nn1\n"}


def test_a_user_s_options_come_last():
    made = command("n1", job=replace(JOB, gpus_per_node=8), options=("--gres=npu:8",))
    assert made.argv.index("--gres=gpu:8") < made.argv.index("--gres=npu:8") == len(made.argv) - 2


@pytest.mark.parametrize("names", [("n2", "n1"), ("host2", "10.0.0.1"), ("n2.example.org", "N1"), ("10.0.0.2", "n1")])
def test_nodes_are_known_by_names_and_addresses(names):
    assert nodes_of(JOB, servers(*names)) == ("n2", "n1")


def test_a_server_with_more_ranks_than_cpus_is_told():
    """The table's order is not Slurm's: each server is looked at on its own node."""
    table = [Server("n3", (Device(0, 0), Device(1, 1))), Server("10.0.0.1", (Device(0, 2),))]
    [said] = cpus_notes(replace(JOB, cpus_per_node=(1, 8, 1)), table)
    assert "1 CPU on n3 for 2 ranks;" in said
    assert cpus_notes(replace(JOB, cpus_per_node=(1, 8, 2)), table) == ()
    assert cpus_notes(JOB, table) == ()


def test_servers_that_are_no_nodes_are_all_named():
    with pytest.raises(RefusedLayoutError) as error:
        nodes_of(JOB, servers("n1", "10.0.0.9", "n11"))
    assert error.value.message == "10.0.0.9, n11 of the rank table are no nodes of job 12, which has n1, n2, n3"
    assert "--nodelist=n1,10.0.0.9,n11" in error.value.hint
    # A name of two nodes is no node's.
    job = replace(JOB, nodes=(Node("a", "localhost", "127.0.0.1"), Node("b", "localhost", "127.0.0.1")))
    with pytest.raises(RefusedLayoutError):
        nodes_of(job, servers("localhost"))
    assert nodes_of(job, servers("b", "a")) == ("b", "a")


def test_a_name_server_that_is_slow_is_waited_for_and_one_that_is_silent_is_told(monkeypatch):
    """All names are asked for at once, and once: a dead first name server costs every one of them seconds."""
    nodes = tuple(Node(f"node{number}", f"node{number}", f"node{number}-ib") for number in range(40))
    job = replace(JOB, nodes=nodes)
    table = servers(*(f"10.1.0.{number}" for number in range(40)))
    asked, ended = [], threading.Event()

    def answer(name, *_arguments, **_options):
        asked.append(name)
        time.sleep(0.05)
        number = re.fullmatch(r"node(\d+)-ib", name)
        return [(None, None, 0, "", (f"10.1.0.{number[1]}", 0))] if number else []

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    for _ in range(2):
        assert nodes_of(job, table) == tuple(node.name for node in nodes)
    assert len(asked) == len(set(asked)) == 80
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_arguments, **_options: ended.wait(20) and [])
    monkeypatch.setattr(network, "RESOLVE_S", 0.1)
    with pytest.raises(RefusedLayoutError) as error:
        nodes_of(replace(job, nodes=nodes[:2]), table)
    ended.set()
    silent = "; the resolver does not answer for node0, node0-ib, node1, node1-ib: is the name server up?"
    assert silent in error.value.message


def test_an_allocation_is_read_from_the_environment_and_the_controller(tmp_path):
    """Outside of a job the hint is how to get one."""
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
    made = cluster_of(replace(JOB, gpus_per_node=2))
    assert [(one.server_id, [device.global_rank for device in one.devices]) for one in made.servers] == [
        ("n1", [0, 1]), ("n2", [2, 3]), ("n3", [4, 5]),
    ]  # fmt: skip
    assert cluster_of(JOB, 4).device_count == 12
    with pytest.raises(UsageError, match="does not say how many devices"):
        cluster_of(JOB)
    with pytest.raises(UsageError, match="--devices 0"):
        cluster_of(JOB, 0)


def test_the_time_that_is_left_is_that_of_this_job_alone(tmp_path):
    """A controller that does not answer leaves the end that was given before; without one it is an error."""
    assert time_left_s(JOB, slurm_here(tmp_path, squeue="echo '13 5:00'; echo '12 1-02:03:04'")) == 93784.0
    assert time_left_s(JOB, slurm_here(tmp_path, squeue="echo '13 5:00'; echo '12 UNLIMITED'")) is None
    environment = slurm_here(tmp_path, squeue="echo 'slurm_load_jobs error: Unable to contact' >&2; exit 1")
    assert time_left_s(replace(JOB, ends_at_s=0.0), environment) == 0.0
    with pytest.raises(UnreadableError, match="Unable to contact"):
        time_left_s(JOB, environment)


@pytest.mark.parametrize(("text", "seconds"), [
    ("90", 5400), ("2:30", 150), ("36:00:00", 129600), ("1-12", 129600), ("1-12:30", 131400), ("0", 0), ("0:00", 0),
    ("9:48", 588), ("1-02:03:04", 93784), ("UNLIMITED", None), ("infinite", None),
])  # fmt: skip
def test_times_are_read_as_sbatch_reads_them(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "INVALID", "1:2:3:4", "-5", "1-", "٣"])
def test_what_is_no_time_is_an_error(text):
    with pytest.raises(ValueError, match="no time of Slurm's"):
        seconds_of(text)


def test_a_run_knows_when_slurm_will_kill_what_is_left(tmp_path):
    """KillWait after the limit; a controller that is silent sets none."""
    given = "echo 'KillOnBadExit           = 0'; echo 'KillWait                = 7 sec'"
    environment = slurm_here(tmp_path, squeue="echo '12 1:00'", scontrol=given)
    before_s = time.time()
    within = within_job(Supervision(grace_s=9.0), JOB, environment)
    assert before_s + 67 <= within.killed_at_s <= time.time() + 67
    assert within == Supervision(grace_s=9.0, killed_at_s=within.killed_at_s, kill_wait_s=7.0)
    silent = slurm_here(tmp_path, squeue="exit 1", scontrol="exit 1")
    assert within_job(Supervision(grace_s=9.0), JOB, silent) == Supervision(grace_s=9.0)


def test_processes_for_all_ranks_are_those_of_an_mpi():
    """Which one, the cluster or the user says; agents alone are processes of none."""
    assert "--mpi=none" in command("n1", "n2").argv
    made = command("n1", "n2", counts=[2, 2], options=("--mpi=pmix",))
    assert [word for word in made.argv if word.startswith("--mpi")] == ["--mpi=pmix"]


@pytest.mark.parametrize(("given", "cpus"), [
    ("1(x2)", (1, 1)), ("72,36(x2),4", (72, 36, 36, 4)), ("8", (8,)), ("", ()), ("x(y)", ()), ("8,", ()), (None, ()),
])  # fmt: skip
def test_the_cpus_of_each_node_are_read_as_slurm_writes_them(given, cpus):
    assert cpus_per_node({} if given is None else {"SLURM_JOB_CPUS_PER_NODE": given}) == cpus


def test_ranks_that_share_a_cpu_are_reported_with_numbers_and_remedy():
    """Of several nodes the worst is named, and others are counted. A CPU for each rank is enough."""
    on_n1 = {"SLURM_JOB_ID": "12", "SLURMD_NODENAME": "n1", "SLURM_CPUS_ON_NODE": "1"}
    [said] = short_here(on_n1, 8)
    assert all(part in said for part in ("1 CPU on n1 for 8 ranks", "--exclusive", "--cpus-per-task=8"))
    [said] = short_of_cpus([("n1", 2, 4), ("n2", 8, 8), ("n3", 1, 4)])
    assert "1 CPU on n3 for 4 ranks, and too few on 1 more" in said
    for cpus in (2, 3):
        assert short_here({**on_n1, "SLURM_CPUS_ON_NODE": str(cpus)}, 2) == ()
        assert short_of_cpus([("n1", cpus, 2), ("n2", cpus, 1)]) == ()
    # A shell of salloc on another machine, on no node of the job, knows the job, and has that machine's CPUs.
    for missing in ({}, *({name} for name in on_n1)):
        assert short_here({name: value for name, value in on_n1.items() if missing and name not in missing}, 8) == ()
