"""Programs of MindSpore, unchanged, on two hosts: by mpirun, by hand, and in a job of Slurm."""

import subprocess

import pytest

from .conftest import ROOT, TLAUNCH, run_to_end, table_of
from .test_mindspore import EXAMPLES, PYTHON, sums, wanted, with_mindspore

pytestmark = [pytest.mark.slow, pytest.mark.distributed, pytest.mark.timeout(600), with_mindspore]


def test_ranks_of_two_hosts_reduce(two_hosts, tmp_path_factory):
    directory = tmp_path_factory.mktemp("hosts")
    table = table_of(directory / "table.json", two_hosts.addresses(), 1)
    program = (PYTHON, EXAMPLES / "all_reduce.py")
    run = (*TLAUNCH, "run", "--rank-table", table, "--runs-dir", directory / "mpi", "--engine", "mpi", "--", *program)
    done = run_to_end((two_hosts.root / "hub", *run), cwd=directory, env=two_hosts.environment())
    assert done.returncode == 0, done.stderr
    assert sums(directory / "mpi" / "latest", 2) == wanted(2)
    by_hand = (*TLAUNCH, "run", "--rank-table", table, "--runs-dir", directory / "hand", "--", *program)
    started = [
        subprocess.Popen(
            list(map(str, (two_hosts.root / "on", host, "env", f"PYTHONPATH={ROOT}", *by_hand))), cwd=directory
        )
        for host in ("h1", "h2")
    ]
    assert [process.wait(300) for process in started] == [0, 0]
    assert sums(directory / "hand" / "latest", 2) == wanted(2)


def test_ranks_of_two_nodes_of_slurm_reduce(two_hosts, slurm_on_hosts, tmp_path_factory):
    """Which Slurm calls by names, and MindSpore by addresses."""
    directory = tmp_path_factory.mktemp("job")
    run = (*TLAUNCH, "run", "--engine", "slurm", "--devices", 1, "--", PYTHON, EXAMPLES / "all_reduce.py")
    done = run_to_end((two_hosts.root / "hub", "salloc", "--nodes=2", *run), cwd=directory, env=slurm_on_hosts)
    assert done.returncode == 0, done.stderr
    assert sums(directory / "runs" / "latest", 2) == wanted(2)
