"""A user's MPI program under `tlaunch run --engine mpi`: MPI knows all its ranks, and tlaunch attends to each of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import environment, more_mpiruns, run_to_end

PROGRAM = Path(__file__).parents[1] / "programs" / "mpi_world_rank.py"
MPIRUNS = {
    "system": "/usr/bin/mpirun",
    "beside Python": str(Path(sys.executable).parent / "mpirun"),
    **{path: path for path in more_mpiruns()},
}
RANKS_OF_ENGINES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "PMI_FD")
KNOWN = ["0 4 0 6", "1 4 1 6", "2 4 2 6", "3 4 3 6"]
LOST_BY_OPEN_MPI = 14
FAILURES = {"raise": (1, 1), "exit": (3, 3), "kill": (-9, 137)}  # status of rank 1, exit code of the run

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(300)]


def table_of(servers):
    """Of server ids, each with the global ranks on it."""
    listed = [
        {
            "server_id": server_id,
            "device": [
                {"device_id": str(index), "device_ip": f"192.168.{len(servers)}.{rank + 1}", "rank_id": str(rank)}
                for index, rank in enumerate(ranks)
            ],
        }
        for server_id, ranks in servers.items()
    ]
    return {"version": "1.0", "server_count": str(len(listed)), "server_list": listed, "status": "completed"}


class World:
    """`tlaunch run --engine mpi` with one mpirun, and with the Python that has an mpi4py for it."""

    def __init__(self, mpirun, directory, before=(), env=None):
        self.directory, self.before = directory, before
        beside = Path(mpirun).parent
        search = os.pathsep.join(map(str, (beside, os.environ["PATH"])))
        self.env = environment({**(env or {}), "PATH": search})
        self.python = beside / "python" if str(beside) != "/usr/bin" else Path(sys.executable)
        if subprocess.run([self.python, "-c", "import mpi4py"], check=False, capture_output=True).returncode:
            pytest.skip(f"no mpi4py for {self.python}")

    def __call__(self, servers, *command, options=()):
        table = self.directory / "table.json"
        table.write_text(json.dumps(table_of(servers)))
        tlaunch = (sys.executable, "-m", "launcher", "run", "--engine", "mpi", "--rank-table", table)
        return run_to_end(
            [*self.before, *tlaunch, *options, "--", self.python, *command], cwd=self.directory, env=self.env
        )

    @property
    def latest(self):
        return (self.directory / "runs" / "latest").resolve()

    def logs(self):
        """Of each rank, what it printed."""
        return [(self.latest / f"device{rank}" / "train.log").read_text().splitlines() for rank in range(4)]

    def attempt(self):
        report = json.loads((self.latest / "report.json").read_text())
        assert len(report["attempts"]) == 1
        return report["attempts"][0]


@pytest.fixture(params=MPIRUNS.values(), ids=MPIRUNS, name="mpirun_path")
def _mpirun_path(request):
    if not Path(request.param).exists():
        pytest.skip(f"no {request.param} here")
    return request.param


@pytest.fixture(name="here")
def _here(mpirun_path, tmp_path):
    return World(mpirun_path, tmp_path)


@pytest.fixture(name="there")
def _there(mpirun_path, two_hosts, tmp_path):
    reach = two_hosts.root / "tlssh"
    names = ("OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent", "HYDRA_LAUNCHER_EXEC")
    return World(mpirun_path, tmp_path, (two_hosts.root / "hub",), {name: str(reach) for name in names})


def left_on(hosts, directory):
    """Processes of any host that know of this run."""
    lines = []
    for number in range(hosts.count):
        listed = subprocess.run(
            [hosts.root / "on", f"h{number + 1}", "ps", "-eo", "args"], check=True, capture_output=True, text=True
        )
        lines += [line for line in listed.stdout.splitlines() if str(directory) in line or str(PROGRAM) in line]
    return lines


def check_failure(world, done, how):
    status, exit_code = FAILURES[how]
    assert done.returncode == exit_code, done.stderr
    attempt = world.attempt()
    assert attempt["verdict"]["culprit"] == 1
    statuses = {ended["global_rank"]: ended["status"] for ended in attempt["exits"]}
    assert statuses[1] == status
    if how == "raise":
        assert "ValueError: no such word" in done.stderr
    else:
        # Open MPI itself ends a rank whose connection to one on another server is lost, with 14.
        others = [rank for rank, ended in statuses.items() if rank != 1 and ended != LOST_BY_OPEN_MPI]
        logs = world.logs()
        assert {logs[rank][-1] for rank in others} == {"had its grace"}


def test_mpi_knows_all_ranks(here):
    """By the numbers that the rank table gives them."""
    done = here({"127.0.0.1": range(4)}, PROGRAM, "well")
    assert done.returncode == 0, done.stderr
    assert [log[0] for log in here.logs()] == KNOWN


@pytest.mark.parametrize("how", FAILURES)
def test_the_rank_that_fails_is_named(here, how):
    """Others have their grace, whatever the engine makes of it, and nobody waits in MPI_Finalize."""
    check_failure(here, here({"127.0.0.1": range(4)}, PROGRAM, how), how)


def test_a_restart_takes_another_engine(here):
    """Whose world is as large."""
    done = here({"127.0.0.1": range(4)}, PROGRAM, "exit", options=("--max-restarts", "1"))
    assert done.returncode == 0, done.stderr
    report = json.loads((here.latest / "report.json").read_text())
    assert [attempt["cause"] for attempt in report["attempts"]] == ["failed", "finished"]
    assert [log[-1] for log in here.logs()] == KNOWN


def test_a_program_without_mpi_gets_one_process_of_the_engine(here):
    """And its ranks nothing of that one."""
    source = f"import os; print([name for name in {RANKS_OF_ENGINES} if name in os.environ])"
    done = here({"127.0.0.1": range(4)}, "-c", source)
    assert done.returncode == 0, done.stderr
    assert here.logs() == [["[]"]] * 4


def test_ranks_that_never_call_mpi_end_as_others_do(here):
    """Asked for by --mpi-ranks."""
    source = f"import os; print({{os.environ[name] for name in {RANKS_OF_ENGINES[:2]} if name in os.environ}})"
    done = here({"127.0.0.1": range(4)}, "-c", source, options=("--mpi-ranks",))
    assert done.returncode == 0, done.stderr
    assert here.logs() == [[f"{{'{rank}'}}"] for rank in range(4)]


@pytest.mark.parametrize("placed", [(range(2), range(2, 4)), ((0, 2), (1, 3))], ids=["in order", "in turn"])
def test_mpi_knows_the_ranks_of_all_servers(there, two_hosts, placed):
    """However the table deals them out."""
    done = there(dict(zip(two_hosts.addresses(), placed, strict=True)), PROGRAM, "well")
    assert done.returncode == 0, done.stderr
    assert [log[0] for log in there.logs()] == KNOWN


@pytest.mark.parametrize("how", FAILURES)
def test_a_failure_on_one_server_ends_all(there, two_hosts, how):
    """By the same grace, and nothing is left on any of them."""
    done = there(dict(zip(two_hosts.addresses(), (range(2), range(2, 4)), strict=True)), PROGRAM, how)
    check_failure(there, done, how)
    assert left_on(two_hosts, there.directory) == []


def test_another_attempt_begins_on_all_servers(there, two_hosts):
    """By another mpirun, after the first one has gone."""
    servers = dict(zip(two_hosts.addresses(), (range(2), range(2, 4)), strict=True))
    done = there(servers, PROGRAM, "kill", options=("--max-restarts", "1"))
    assert done.returncode == 0, done.stderr
    assert [log[-1] for log in there.logs()] == KNOWN
