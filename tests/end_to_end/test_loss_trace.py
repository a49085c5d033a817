"""The bundled trainer on two hosts, two ranks on each, started in every way there is: the losses of one machine."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import start_slurm

VIRTUAL_HOSTS = Path(__file__).parents[3] / "shared" / "virtual_hosts"
PATIENCE_S = 240
STEPS = 3
SETTINGS = tuple(
    word
    for setting in (f"train.steps={STEPS}", "model.dropout=0.0", "train.batch_size=32", "train.micro_batches=2")
    for word in ("--set", setting)
)
LAYOUT = ("--mp", "2", "--pp", "2", "--micro-batches", "2")
MPIRUNS = {
    "system": "/usr/bin/mpirun",
    "beside Python": str(Path(sys.executable).parent / "mpirun"),
    **{path: path for path in os.environ.get("TL_MPIRUNS", "").split(os.pathsep) if path},
}
OF_OTHER_JOBS = ("TLAUNCH_", "OMPI_", "PMIX_", "PMI_", "PRTE_", "SLURM_", "HYDRA_", "I_MPI_", "RANK", "WORLD_SIZE",
                 "MASTER_", "TORCHELASTIC_", "LD_LIBRARY_PATH")  # fmt: skip

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(600)]


def losses(run):
    """Of every step, as rank 0 measured them."""
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record["loss"] for record in records if "loss" in record]


class Training:
    """`tlaunch run` of the bundled trainer, always with the same settings."""

    def __init__(self, directory, cache):
        self.directory = directory
        self._variables = ("--env", f"TLAUNCH_CACHE_DIR={cache}", "--env", "OMP_NUM_THREADS=1")
        self._started = []

    def argv(self, *options):
        words = (sys.executable, "-m", "launcher", "run", *options, *LAYOUT, *self._variables, "--bind", "none",
                 "--console", "none", *SETTINGS)  # fmt: skip
        return ["env", "-C", str(self.directory), *map(str, words)]

    def start(self, *options, before=(), env=None):
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(OF_OTHER_JOBS)}
        process = subprocess.Popen(
            [*map(str, before), *self.argv(*options)], env={**inherited, **(env or {})}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        self._started.append(process)
        return process

    def losses(self):
        """Once all that was started has ended well."""
        said = [process.communicate(timeout=PATIENCE_S)[0] for process in self._started]
        assert [process.returncode for process in self._started] == [0] * len(said), "\n".join(said)
        return losses(self.directory / "runs" / "latest")

    def close(self):
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture(scope="module", name="cache")
def _cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module", name="expected")
def _expected(tmp_path_factory, cache):
    """What four ranks on one machine lose."""
    pytest.importorskip("torch")
    alone = Training(tmp_path_factory.mktemp("alone"), cache)
    try:
        alone.start("--devices", 4)
        found = alone.losses()
    finally:
        alone.close()
    assert len(found) == STEPS
    return found


@pytest.fixture(name="training")
def _training(tmp_path, cache):
    made = Training(tmp_path, cache)
    yield made
    made.close()


@pytest.fixture(name="table")
def _table(two_hosts, tmp_path):
    """Four devices: two on each host."""
    servers = [
        {
            "server_id": address,
            "device": [
                {
                    "device_id": f"{index}",
                    "device_ip": f"192.{server}.0.{index + 1}",
                    "rank_id": f"{2 * server + index}",
                }
                for index in range(2)
            ],
        }
        for server, address in enumerate(two_hosts.addresses())
    ]
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"version": "1.0", "server_count": "2", "server_list": servers, "status": "completed"}))
    return path


@pytest.mark.parametrize("mpirun", MPIRUNS.values(), ids=MPIRUNS)
def test_by_mpirun_on_two_hosts(two_hosts, training, table, expected, mpirun):
    """Digit by digit, whatever MPI brings the agents there: the ranks do not use it."""
    if not Path(mpirun).exists():
        pytest.skip(f"no {mpirun} here")
    ssh = training.directory / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {two_hosts.root}/ssh_config "$@"\n')
    ssh.chmod(0o755)
    search = os.pathsep.join((str(ssh.parent), str(Path(mpirun).parent), os.environ["PATH"]))
    training.start("--engine", "mpi", "--rank-table", table, before=(two_hosts.root / "hub",), env={"PATH": search})
    assert training.losses() == expected


def test_by_hand_on_two_hosts(two_hosts, training, table, expected):
    """The same command on each; nobody says which server it is."""
    for host in ("h1", "h2"):
        training.start("--rank-table", table, before=(two_hosts.root / "on", host))
    assert training.losses() == expected


@pytest.fixture(name="slurm")
def _slurm(two_hosts, tmp_path, wait_until):
    """A cluster of Slurm on the hosts: the environment of its commands."""
    if shutil.which("slurmctld") is None or shutil.which("slurmd") is None:
        pytest.skip("no Slurm here: apt install slurm-wlm")
    root = tmp_path / "slurm"
    environment = {"TL_SLURM_HOSTS": str(two_hosts.root), "SLURM_CONF": str(root / "slurm.conf")}

    whole = {**os.environ, **environment}
    start_slurm(2, root, whole, wait_until, (two_hosts.root / "hub",))
    yield environment
    subprocess.run([VIRTUAL_HOSTS / "slurm-down.sh", root], env=whole, check=True, timeout=60, capture_output=True)


def test_by_slurm_on_two_hosts(two_hosts, training, table, expected, slurm):
    """Inside an allocation."""
    job = (two_hosts.root / "hub", "salloc", "--quiet", "--time=10", "--nodes=2")
    training.start("--engine", "slurm", "--rank-table", table, before=job, env=slurm)
    assert training.losses() == expected
