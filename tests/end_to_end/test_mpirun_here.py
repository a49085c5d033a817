"""`tlaunch run --engine mpi` whose only server is this machine: what a real mpirun makes of it."""

import ast
import os
import sys
from pathlib import Path

import pytest

from .conftest import ROOT, TLAUNCH, environment, executable, reached_by, run_to_end, table_of

pytestmark = [pytest.mark.distributed]


@pytest.fixture(name="run")
def _run(mpirun_path, tmp_path):
    """Gives a function that runs one rank to its end: exit code, and all that was said."""
    table_of(tmp_path / "table.json", [os.uname().nodename], 1)
    env = environment({"PATH": f"{Path(mpirun_path).parent}{os.pathsep}{os.environ['PATH']}"})
    env |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{env.get('PYTHONPATH', '')}"}

    def run(*options):
        argv = (*TLAUNCH, "run", "--engine", "mpi", "--rank-table", "table.json",
                "--join-timeout", "60", *options, "--", "/bin/sh", "-c", "sleep 0.3")  # fmt: skip
        done = run_to_end(argv, cwd=tmp_path, env=env)
        return done.returncode, done.stdout + done.stderr

    run.directory, run.env = tmp_path, env
    return run


def test_what_ssh_says_is_told_of_the_server_that_it_could_not_reach(run):
    """Before all that mpirun concludes from it, and where no rank was started none has left anything."""
    words = "ssh: connect to host 127.0.0.2 port 22: Connection refused"
    run.env |= reached_by(executable(run.directory / "reach", f"#!/bin/sh\necho '{words}' >&2\nexit 255\n"))
    table_of(run.directory / "two.json", [os.uname().nodename, "127.0.0.2"], 1)
    code, said = run("--rank-table", "two.json")
    assert code == 1, said
    assert said.partition("error: ")[2].splitlines()[1].endswith(words), said
    assert said.partition("error: ")[2].startswith("server 127.0.0.2 did not join: "), said
    assert "that ranks left" not in said


def test_a_comma_in_a_run_s_name_is_no_end_of_the_hostfile_s(run):
    """Open MPI 5 would look for two files."""
    code, said = run("--name", "a,b")
    assert code == 0, said


def test_an_option_that_mpirun_does_not_know_is_told_in_its_words(run):
    code, said = run("--engine-option=--nonsense")
    assert code != 0, said
    assert "nonsense" in said.partition("hint:")[0]
    assert "ssh" not in said


def test_an_argument_that_mpirun_starts_in_place_of_the_agent_is_suspected(run):
    """Nobody else knows mpirun's options well enough to tell before."""
    code, said = run("--engine-option=true")
    assert code != 0, said
    assert "check --engine-option" in said


def test_ranks_of_an_mpirun_meet_by_mpi(mpirun):
    """Nothing says where: each gets a place of its own, and all one address and port."""
    code = "import os; from launcher.trainer.parallel import rendezvous as r; print(sorted(r.engine_variables(os.environ).items()))"
    done = mpirun(2, sys.executable, "-c", f"{code}; import time; time.sleep(0.5)", env={"PYTHONPATH": str(ROOT)})
    one, other = map(
        dict, map(ast.literal_eval, sorted(done.stdout.splitlines(), key=lambda line: "('RANK', '1')" in line))
    )
    assert (one["RANK"], other["RANK"], one["LOCAL_WORLD_SIZE"]) == ("0", "1", "2")
    assert (one["MASTER_ADDR"], one["MASTER_PORT"]) == (other["MASTER_ADDR"], other["MASTER_PORT"])


def test_no_table_is_needed_for_ranks_of_this_machine(mpirun_path, tmp_path):
    env = environment({"PATH": f"{Path(mpirun_path).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)})
    argv = (
        *TLAUNCH,
        "run",
        "--engine",
        "mpi",
        "--devices",
        "3",
        "--",
        "/bin/sh",
        "-c",
        "echo $RANK of $WORLD_SIZE; sleep 0.5",
    )
    done = run_to_end(argv, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    logs = sorted(path.read_text() for path in (tmp_path / "runs" / "latest").glob("device*/train.log"))
    assert logs == [f"{rank} of 3\n" for rank in range(3)]
