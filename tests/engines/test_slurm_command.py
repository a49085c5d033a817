"""The command that starts agents by srun, word by word. tests/end_to_end has a real one."""

import re
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.core.errors import RefusedLayoutError
from launcher.core.records import Device, Server
from launcher.doctor import network_facts as network
from launcher.engines.slurm import cpus_notes, nodes_of, slurm_command
from launcher.engines.slurm_allocation import Node
from tests.servers import SLURM_JOB, servers

HOSTFILE = Path("/runs/x/hosts")


def command(*names, job=SLURM_JOB, agent=("agent",), **more):
    return slurm_command(job, servers(*names), agent, directory=Path("/runs/x"), **more)


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
    made = command("n1", job=replace(SLURM_JOB, gpus_per_node=8), options=("--gres=npu:8",))
    assert made.argv.index("--gres=gpu:8") < made.argv.index("--gres=npu:8") == len(made.argv) - 2


@pytest.mark.parametrize("names", [("n2", "n1"), ("host2", "10.0.0.1"), ("n2.example.org", "N1"), ("10.0.0.2", "n1")])
def test_nodes_are_known_by_names_and_addresses(names):
    assert nodes_of(SLURM_JOB, servers(*names)) == ("n2", "n1")


def test_a_server_with_more_ranks_than_cpus_is_told():
    table = [Server("n3", (Device(0, 0), Device(1, 1))), Server("10.0.0.1", (Device(0, 2),))]
    [said] = cpus_notes(replace(SLURM_JOB, cpus_per_node=(1, 8, 1)), table)
    assert "1 CPU on n3 for 2 ranks;" in said
    assert cpus_notes(replace(SLURM_JOB, cpus_per_node=(1, 8, 2)), table) == ()
    assert cpus_notes(SLURM_JOB, table) == ()


def test_servers_that_are_no_nodes_are_all_named():
    with pytest.raises(RefusedLayoutError) as error:
        nodes_of(SLURM_JOB, servers("n1", "10.0.0.9", "n11"))
    assert error.value.message == "10.0.0.9, n11 of the rank table are not nodes of job 12, which has n1, n2, n3"
    assert "--nodelist=n1,10.0.0.9,n11" in error.value.hint
    # A name of two nodes is no node's.
    job = replace(SLURM_JOB, nodes=(Node("a", "localhost", "127.0.0.1"), Node("b", "localhost", "127.0.0.1")))
    with pytest.raises(RefusedLayoutError):
        nodes_of(job, servers("localhost"))
    assert nodes_of(job, servers("b", "a")) == ("b", "a")


def test_a_name_server_that_is_slow_is_waited_for_and_one_that_is_silent_is_told(monkeypatch):
    """All names are asked for at once, and once: a dead first name server costs every one of them seconds."""
    nodes = tuple(Node(f"node{number}", f"node{number}", f"node{number}-ib") for number in range(40))
    job = replace(SLURM_JOB, nodes=nodes)
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
    silent = "; node0, node0-ib, node1, node1-ib cannot be resolved: is the name server up?"
    assert silent in error.value.message


def test_processes_for_all_ranks_are_those_of_an_mpi():
    assert "--mpi=none" in command("n1", "n2").argv
    made = command("n1", "n2", counts=[2, 2], options=("--mpi=pmix",))
    assert [word for word in made.argv if word.startswith("--mpi")] == ["--mpi=pmix"]
