"""A user's MPI program under `tlaunch run --engine mpi`: MPI knows all its ranks, and tlaunch attends to each of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.engines.mpi import Dialect, find_mpirun

from .conftest import (
    MPIRUNS,
    PROGRAMS,
    TLAUNCH,
    environment,
    more_mpiruns,
    reached_by,
    run_to_end,
    stub_of_mpi4py,
    table_of,
)

PROGRAM = PROGRAMS / "mpi_world_rank.py"
RANKS_OF_ENGINES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "PMI_FD")
LOST_BY_OPEN_MPI = 14
OTHERS = {True: "MPICH Version:      5.0.2\n", False: "Open MPI v5.0.11, package: Open MPI\n"}  # by: is it Open MPI?
LEAVES = """import os, sys
from mpi4py import MPI
for step in range(100):
    MPI.COMM_WORLD.alltoall(range(MPI.COMM_WORLD.size))
    if step == 50 and MPI.COMM_WORLD.rank == 1:
        os._exit(0) if sys.argv[1] == "leave" else os.kill(os.getpid(), 9)
"""
OVER_TCP = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self", "OMPI_MCA_btl_tcp_if_include": "lo"}
# What rank 1 does: its status, and the exit code of a run without restarts.
FAILURES = {"raise": (1, 1), "exit": (3, 3), "kill": (-9, 137)}

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(300)]


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
        table = table_of(self.directory / "table.json", servers)
        tlaunch = (*TLAUNCH, "run", "--engine", "mpi", "--rank-table", table)
        return run_to_end(
            [*self.before, *tlaunch, *options, "--", self.python, *command], cwd=self.directory, env=self.env
        )

    @property
    def latest(self):
        return (self.directory / "runs" / "latest").resolve()

    @property
    def other_mpi(self):
        """What a library says that does not go with this mpirun."""
        return OTHERS[find_mpirun(self.env).dialect is not Dialect.HYDRA]

    def logs(self):
        logs = (self.latest / f"device{rank}" / "train.log" for rank in range(len([*self.latest.glob("device*")])))
        return [log.read_text().splitlines() for log in logs]

    def attempts(self):
        return json.loads((self.latest / "report.json").read_text())["attempts"]


@pytest.fixture(name="here")
def _here(mpirun_path, tmp_path):
    return World(mpirun_path, tmp_path)


@pytest.fixture(name="there")
def _there(mpirun_path, two_hosts, tmp_path):
    return World(mpirun_path, tmp_path, (two_hosts.root / "hub",), reached_by(two_hosts.root / "tlssh"))


def left_on(hosts, directory):
    lines = []
    for number in range(hosts.count):
        listed = subprocess.run(
            [hosts.root / "on", f"h{number + 1}", "ps", "-eo", "args"], check=True, capture_output=True, text=True
        )
        lines += [line for line in listed.stdout.splitlines() if str(directory) in line or str(PROGRAM) in line]
    return lines


def known(size):
    """What each rank of a world says: MPI's numbers are those that the rank table gives."""
    return [f"{rank} {size} {rank} {sum(range(size))}" for rank in range(size)]


def check_failure(world, servers, how, restarts):
    """Rank 1 fails in the first attempt: it is named, and all others have their grace. The next attempt ends well."""
    status, exit_code = FAILURES[how]
    done = world(servers, PROGRAM, how, options=("--max-restarts", restarts))
    assert done.returncode == (0 if restarts else exit_code), done.stderr
    failed, *later = world.attempts()
    assert (failed["verdict"]["culprit"], [attempt["cause"] for attempt in later]) == (1, ["finished"] * restarts)
    statuses = {ended["global_rank"]: ended["status"] for ended in failed["exits"]}
    assert statuses[1] == status
    logs = world.logs()
    assert [log[0] for log in logs] == known(len(logs))
    if restarts:
        assert [log[-1] for log in logs] == known(len(logs))
    if how == "raise":
        assert "ValueError: no such word" in done.stderr
    else:
        # Open MPI itself ends a rank whose connection to one on another server is lost, with 14.
        others = [rank for rank, ended in statuses.items() if rank != 1 and ended != LOST_BY_OPEN_MPI]
        assert all("had its grace" in logs[rank] for rank in others)


@pytest.mark.parametrize(("how", "restarts"), [("raise", 0), ("exit", 1), ("kill", 0)])
def test_the_rank_that_fails_is_named_and_a_restart_takes_another_engine(here, how, restarts):
    """Others have their grace, whatever the engine makes of it, and nobody waits in MPI_Finalize."""
    check_failure(here, {"127.0.0.1": range(2)}, how, restarts)


@pytest.mark.parametrize(
    ("how", "found"), [("leave", ("likely", "ended too early")), ("kill", ("certain", "SIGKILL (signal 9)"))]
)
def test_ranks_that_open_mpi_ends_are_not_to_blame(tmp_path, how, found):
    """It ends who lost a connection, and tells mpirun alone why: what is to blame is the rank that has gone."""
    mpirun = MPIRUNS["beside Python"]  # ranks of Open MPI 4 may hang instead
    if not Path(mpirun).exists():
        pytest.skip(f"no {mpirun} here")
    world = World(mpirun, tmp_path, env=OVER_TCP)
    if find_mpirun(world.env).dialect is Dialect.HYDRA:
        pytest.skip("this is not Open MPI")
    done = world({"127.0.0.1": range(3)}, "-c", LEAVES, how, options=("--mpi-ranks",))
    (attempt,) = world.attempts()
    cause, *others = attempt["verdict"]["failures"]
    assert (attempt["verdict"]["confidence"], cause["what"], cause["global_rank"]) == (*found, 1), done.stderr
    assert others or how == "kill"  # its own end may be judged before others have noticed it
    assert {(one["status"], one["role"]) for one in others} <= {(LOST_BY_OPEN_MPI, "consequence")}
    assert all(one["reason"].startswith("it lost the connection to another rank") for one in others)


@pytest.mark.parametrize("wish", [(), ("--mpi-ranks",)], ids=["not asked for", "asked for"])
def test_ranks_that_never_call_mpi_end_as_others_do(here, wish):
    """There is one process of the engine, of which ranks have nothing; or one for each, where --mpi-ranks asks for it."""
    names = RANKS_OF_ENGINES[:2] if wish else RANKS_OF_ENGINES
    source = f"import os; print([*{{os.environ[name] for name in {names} if name in os.environ}}])"
    done = here({"127.0.0.1": range(2)}, "-c", source, options=wish)
    assert done.returncode == 0, done.stderr
    assert here.logs() == [[f"['{rank}']"] if wish else ["[]"] for rank in range(2)]


def test_an_mpi_that_does_not_go_with_mpirun_is_refused_before_any_rank_starts(here, tmp_path):
    """All ranks would be alone, and the run would end with 0."""
    stub = stub_of_mpi4py(tmp_path / "packages", here.other_mpi)
    options = ("--mpi-ranks", "--env", f"PYTHONPATH={stub}")
    done = here({"127.0.0.1": range(2)}, "-c", "import mpi4py", options=options)
    assert done.returncode == 3, done.stderr
    engine, library = find_mpirun(here.env), "MPICH 5.0.2" if "MPICH" in here.other_mpi else "Open MPI 5.0.11"
    assert f"mpi4py of {here.python} loads {library}, " in done.stderr
    assert (
        f"which does not work with {engine.version} ({Path(engine.path).resolve().with_name('mpirun')})" in done.stderr
    )
    assert "hint: put that MPI's mpirun first on PATH" in done.stderr
    assert not list(here.latest.glob("device*/train.log"))


@pytest.mark.parametrize("path", more_mpiruns())
def test_a_python_with_a_real_mpi_of_another_kind_is_refused(path, tmp_path):
    world = World(path, tmp_path)
    if find_mpirun(world.env).dialect is not Dialect.HYDRA:
        pytest.skip("this Python has an Open MPI, too")
    world.python = Path(sys.executable)
    done = world({"127.0.0.1": range(2)}, PROGRAM, "well")
    assert done.returncode == 3, done.stderr
    assert f"mpi4py of {world.python} loads Open MPI " in done.stderr
    assert "/libmpi.so.40" in done.stderr
    assert "first on PATH: PATH=/" in done.stderr


def test_an_open_mpi_that_is_too_old_for_mpirun_is_refused(here):
    """Of the same family, and never of the same job. The mpirun beside it is named; that one takes both."""
    [library, *_] = [*Path("/usr/lib").glob("*/libmpi.so.40"), None]
    system = Path(MPIRUNS["system"])
    if library is None or not system.exists() or find_mpirun(here.env, str(system)).dialect is not Dialect.OPEN_MPI_4:
        pytest.skip("no Open MPI 4 of the system here")
    if (dialect := find_mpirun(here.env).dialect) is Dialect.HYDRA:
        pytest.skip("no Open MPI")
    done = here({"127.0.0.1": range(2)}, PROGRAM, "well", options=("--env", f"MPI4PY_LIBMPI={library}"))
    if dialect is Dialect.OPEN_MPI_4:
        assert (done.returncode, [log[0] for log in here.logs()]) == (0, known(2)), done.stderr
        return
    assert done.returncode == 3, done.stderr
    assert "loads Open MPI 4" in done.stderr
    assert "put that MPI's mpirun first on PATH: PATH=/usr/bin:$PATH" in done.stderr


def test_a_program_of_which_nobody_knows_whether_it_uses_mpi_is_told_of_the_option(mpirun, tmp_path):
    """A shell's script may start anything, an installed package too. Whoever has chosen, or starts what can be read, is told nothing."""
    note = "ranks of {} are not MPI processes; add --mpi-ranks if it calls MPI_Init\n"
    world = World(mpirun.path, tmp_path)
    python = world.python

    def said(program, *words, options=()):
        world.python = program
        return world({"127.0.0.1": range(2)}, *words, options=("--dry-run", *options)).stderr

    assert note.format("sh") in said("/bin/sh", "-c", "sleep 0.5")
    assert "not MPI processes" not in said("/bin/sh", "-c", "sleep 0.5", options=("--no-mpi-ranks",))
    assert "not MPI processes" not in said(python, "-c", "print()")
    assert note.format("pip") in said(python, "-m", "pip")


def test_mpi_knows_the_ranks_of_all_servers(there, two_hosts):
    done = there(dict(zip(two_hosts.addresses(), ((0, 2), (1, 3)), strict=True)), PROGRAM, "well")
    assert done.returncode == 0, done.stderr
    assert [log[0] for log in there.logs()] == known(4)


def test_another_mpi_on_one_server_alone_is_refused(there, two_hosts, tmp_path):
    place = Path("/tmp/packages")  # each host has a /tmp of its own
    stub_of_mpi4py(tmp_path / "packages", there.other_mpi)
    assert two_hosts.on("h2", "cp", "-r", tmp_path / "packages", place).returncode == 0
    try:
        first, second = two_hosts.addresses()
        options = ("--mpi-ranks", "--env", f"PYTHONPATH={place}")
        done = there({first: range(2), second: range(2, 4)}, "-c", "import mpi4py", options=options)
    finally:
        two_hosts.on("h2", "rm", "-r", place)
    assert done.returncode == 3, done.stderr
    assert f"server {second} (h2): mpi4py of {there.python} loads " in done.stderr
    assert not list(there.latest.glob("device*/train.log"))


def test_a_failure_on_one_server_ends_all(there, two_hosts, wait_until):
    """By the same grace, and nothing is left on any of them. Another mpirun starts the next attempt on all."""
    servers = dict(zip(two_hosts.addresses(), (range(2), range(2, 4)), strict=True))
    check_failure(there, servers, "kill", 1)
    wait_until(lambda: not left_on(two_hosts, there.directory), "that nothing is left")
