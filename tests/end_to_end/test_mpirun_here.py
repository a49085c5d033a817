"""`tlaunch run --engine mpi` whose only server is this machine: what a real mpirun makes of it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE_S = 150
OF_OTHER_JOBS = ("TLAUNCH_", "OMPI_", "PMIX_", "PMI_", "SLURM_", "RANK", "WORLD_SIZE", "MASTER_")
MPIRUNS = sorted({str(Path(found).parent) for path in (str(Path(sys.executable).parent), "/usr/bin")
                  if (found := shutil.which("mpirun", path=path))})  # fmt: skip

pytestmark = [pytest.mark.distributed, pytest.mark.skipif(not MPIRUNS, reason="there is no mpirun")]


@pytest.fixture(name="run", params=MPIRUNS)
def _run(request, tmp_path):
    """Gives a function that runs one rank to its end: exit code, and all that was said."""
    table = {
        "version": "1.0", "server_count": "1", "status": "completed",
        "server_list": [{"server_id": os.uname().nodename,
                         "device": [{"device_id": "0", "device_ip": "10.0.0.1", "rank_id": "0"}]}],
    }  # fmt: skip
    (tmp_path / "table.json").write_text(json.dumps(table))
    env = {name: value for name, value in os.environ.items() if not name.startswith(OF_OTHER_JOBS)}
    env |= {"PATH": f"{request.param}{os.pathsep}{env['PATH']}"}
    env |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{env.get('PYTHONPATH', '')}"}

    def run(*options):
        argv = (sys.executable, "-m", "launcher", "run", "--engine", "mpi", "--rank-table", "table.json",
                "--join-timeout", "60", *options, "--", "/bin/sh", "-c", "sleep 0.3")  # fmt: skip
        process = subprocess.Popen(
            argv, cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        )  # fmt: skip
        try:
            said, _ = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            pytest.fail(f"hangs: {process.communicate()[0]}")
        return process.returncode, said

    run.directory, run.env = tmp_path, env
    return run


def test_what_ssh_says_is_told_of_the_server_that_it_could_not_reach(run):
    """Before all that mpirun concludes from it, and where no rank was started none has left anything."""
    words = "ssh: connect to host 127.0.0.2 port 22: Connection refused"
    ssh = run.directory / "reach"
    ssh.write_text(f"#!/bin/sh\necho '{words}' >&2\nexit 255\n")
    ssh.chmod(0o755)
    names = ("OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent", "HYDRA_LAUNCHER_EXEC")
    run.env.update(dict.fromkeys(names, str(ssh)))
    table = json.loads((run.directory / "table.json").read_text())
    far = {"server_id": "127.0.0.2", "device": [{"device_id": "0", "device_ip": "10.0.0.2", "rank_id": "1"}]}
    table = {**table, "server_count": "2", "server_list": [*table["server_list"], far]}
    (run.directory / "two.json").write_text(json.dumps(table))
    code, said = run("--rank-table", "two.json")
    assert code == 1, said
    assert said.partition("error: ")[2].splitlines()[1].endswith(words), said
    assert said.partition("error: ")[2].startswith("server 127.0.0.2 did not come: "), said
    assert "that ranks left" not in said


def test_a_comma_in_a_run_s_name_is_no_end_of_the_hostfile_s(run):
    """Open MPI 5 would look for two files."""
    code, said = run("--name", "a,b")
    assert code == 0, said


def test_an_option_that_mpirun_does_not_know_is_told_in_its_words(run):
    """And nobody is asked by ssh whether this machine is there."""
    code, said = run("--engine-option=--nonsense")
    assert code != 0, said
    assert "nonsense" in said.partition("hint:")[0]
    assert "ssh" not in said


def test_an_argument_that_mpirun_starts_in_place_of_the_agent_is_suspected(run):
    """Nobody else knows mpirun's options well enough to tell before."""
    code, said = run("--engine-option=true")
    assert code != 0, said
    assert "an argument of --engine-option" in said
