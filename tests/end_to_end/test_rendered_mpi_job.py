"""The script of a rendered MPIJob, as Kubeflow's operator has it started, by Open MPI 4 and 5: hosts are the pods."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from .conftest import BESIDE, TLAUNCH, executable, run_to_end

SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MPIRUNS = {"Open MPI 4": Path("/usr/bin"), "Open MPI 5": BESIDE}
# Open MPI's mpirun may hang on ranks that end at once.
SHOW = """
import os, socket, time
time.sleep(0.5)
print(socket.gethostname(), *(os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "HUB_TOKEN", "MODE")))
"""

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(name="pods")
def _pods(two_hosts, tmp_path):
    """Two workers by the names that a Service gives them, and an ssh that asks nothing, as in the operator's pods."""
    workers = [f"t-worker-{index}.t" for index in range(2)]
    with (two_hosts.root / "hosts").open("a") as hosts:
        hosts.writelines(f"10.77.0.{index + 1} {name}.default.svc {name}\n" for index, name in enumerate(workers))
    config = tmp_path / "ssh_config"
    config.write_text(
        f"User root\nIdentityFile {two_hosts.root}/id\nIdentitiesOnly yes\nBatchMode yes\nLogLevel ERROR\n"
        "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n"
    )
    executable(tmp_path / "bin" / "ssh", f'#!/bin/sh\nexec {shutil.which("ssh")} -F {config} "$@"\n')
    (tmp_path / "hostfile").write_text("".join(f"{name}.default.svc slots=2\n" for name in workers))
    return two_hosts


def operators_environment(directory, path):
    """What the launcher's container has: the operator's variables, the image's PATH, and nothing of this test."""
    return {
        "PATH": os.pathsep.join((str(directory / "bin"), path)),
        "HOME": "/root",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_default_hostfile": str(directory / "hostfile"),
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
        "OMPI_MCA_orte_set_default_slots": "2",
        "HUB_TOKEN": "hidden",
    }


def version_of(mpirun):
    """As people call it: Open MPI 4.1.4."""
    told = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    return told.replace("(", "").replace(")", "")


@pytest.mark.parametrize("engine", MPIRUNS)
def test_ranks_are_on_the_workers(pods, tmp_path, engine):
    """By root, by the operator's hostfile, and with a tlaunch and a daemon that the ssh server's PATH does not have."""
    mpirun = MPIRUNS[engine] / "mpirun"
    if not mpirun.exists() or engine not in version_of(mpirun):
        pytest.skip(f"no {engine} here")
    table = tmp_path / "table.json"
    here = {"cwd": tmp_path, "env": dict(os.environ)}
    run_to_end((*TLAUNCH, "table", "generate", "--servers", "a,b", "--devices", 2, "-o", table), **here)
    options = ("--flavor", "mpi", "--image", "x", "--name", "t", "--rank-table", table, "--cwd", tmp_path)
    variables = ("--env-from-secret", "HUB_TOKEN=hub:token", "--env", "MODE=fast")
    done = run_to_end(
        (*TLAUNCH, "render", "kubernetes", *options, *variables, "--", sys.executable, "-c", SHOW), **here
    )
    assert done.returncode == 0, done.stderr
    config, _ = yaml.safe_load_all(done.stdout)
    mounted = tmp_path / "rank_table.json"
    mounted.write_text(config["data"]["rank_table.json"])
    script = tmp_path / "mpirun.sh"
    script.write_text(config["data"]["mpirun.sh"].replace("/etc/tlaunch/rank_table.json", str(mounted)))
    path = f"{SYSTEM}{os.pathsep}{BESIDE}" if engine == "Open MPI 4" else f"{BESIDE}{os.pathsep}{SYSTEM}"
    ran = run_to_end((pods.root / "hub", "bash", script), cwd="/", env=operators_environment(tmp_path, path))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    logs = sorted(tmp_path.glob("runs/2*/device?/train.log"))
    assert [log.read_text() for log in logs] == [
        f"h{rank // 2 + 1} {rank} {rank % 2} 4 hidden fast\n" for rank in range(4)
    ], ran.stderr
