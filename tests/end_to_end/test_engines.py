"""The bundled trainer, started in every way there is, on one machine and on two hosts: the losses are the same."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import PATIENCE_S, TLAUNCH, TOLD, environment, run_to_end, table_of

TRAINER = (sys.executable, "-m", "launcher.trainer")
STEPS = 3
SMALL = (
    f"train.steps={STEPS}", "train.batch_size=64", "train.micro_batches=2", "train.translations=0", "model.dropout=0.0",
    "model.d_model=32", "model.heads=4", "model.feed_forward_dim=64", "model.vocabulary_size=400",
)  # fmt: skip
RANKS = 4  # each imports torch: eight would take most of this file's time
LAYOUT = ("--mp", "2", "--pp", "2", "--micro-batches", "2")

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", name="settings")
def _settings(small_text):
    """Of a small model, and a small part of the sample corpus: it is not the time of training that is tested here."""
    pytest.importorskip("torch")
    return ("--data", str(small_text), *(word for setting in SMALL for word in ("--set", setting)))


def losses(run):
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record["loss"] for record in records if "loss" in record]


class Training:
    """`tlaunch run` of the bundled trainer, always with the same settings."""

    def __init__(self, directory, settings):
        self.directory, self._settings = directory, settings
        self._started = []

    def start(self, *options, before=(), env=None):
        words = (*TLAUNCH, "run", *options, *LAYOUT, "--env", "OMP_NUM_THREADS=1",
                 "--bind", "none", "--console", "none", *self._settings)  # fmt: skip
        process = subprocess.Popen(
            list(map(str, (*before, "env", "-C", self.directory, *words))), env=env or environment({}),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        self._started.append(process)

    def losses(self):
        try:
            said = [process.communicate(timeout=PATIENCE_S)[0] for process in self._started]
        finally:
            for process in self._started:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        assert [process.returncode for process in self._started] == [0] * len(said), "\n".join(said)
        return losses(self.directory / "runs" / "latest")


@pytest.fixture(name="training")
def _training(tmp_path, settings):
    return Training(tmp_path, settings)


@pytest.fixture(scope="module", name="expected")
def _expected(tmp_path_factory, settings):
    alone = Training(tmp_path_factory.mktemp("expected"), settings)
    alone.start("--devices", RANKS)
    found = alone.losses()
    assert len(found) == STEPS
    return found


# --- by `tlaunch run` on two hosts ---


def test_by_mpirun_on_two_hosts(two_hosts, training, expected, mpirun):
    table = table_of(training.directory / "table.json", two_hosts.addresses())
    env = two_hosts.environment(Path(mpirun.path).parent)
    training.start("--engine", "mpi", "--rank-table", table, before=(two_hosts.root / "hub",), env=env)
    assert training.losses() == expected


def test_by_hand_on_two_hosts(two_hosts, training, expected):
    table = table_of(training.directory / "table.json", two_hosts.addresses())
    for host in ("h1", "h2"):
        training.start("--rank-table", table, before=(two_hosts.root / "on", host))
    assert training.losses() == expected


def test_by_slurm_on_two_hosts(two_hosts, training, expected, slurm_on_hosts):
    table = table_of(training.directory / "table.json", two_hosts.addresses())
    job = (two_hosts.root / "hub", "salloc", "--quiet", "--time=10", "--nodes=2")
    training.start("--engine", "slurm", "--rank-table", table, before=job, env=slurm_on_hosts)
    assert training.losses() == expected


# --- by an mpirun that starts the ranks ---


def test_training_under_mpirun_is_training_under_tlaunch_run(mpirun, settings, expected):
    done = mpirun.exec(RANKS, *LAYOUT, "--", *TRAINER, *settings)
    assert done.returncode == 0, done.stderr + mpirun.logs()[0]
    assert losses(mpirun.latest) == expected
    assert len(mpirun.logs()) == RANKS


def test_the_trainer_alone_meets_over_the_network(two_hosts, mpirun, settings, expected):
    """Without tlaunch exec, without an address: rank 0 tells one over MPI that the other host reaches."""
    pytest.importorskip("mpi4py")
    done = mpirun(2, *TRAINER, *settings, options=two_hosts.options(1), before=(two_hosts.root / "hub",))
    assert done.returncode == 0, done.stderr
    assert "layout: dp=2 mp=1 pp=1" in done.stdout
    found = [float(loss) for loss in re.findall(r"step: \d+, loss is ([\d.]+)", done.stdout)]
    assert found == pytest.approx(expected, abs=2e-4)


@pytest.mark.usefixtures("mpirun")
def test_a_process_of_an_engine_that_does_not_meet_the_others_is_refused(tmp_path):
    """One that an engine of another MPI might have started: else each would train alone, and nobody would notice."""
    pytest.importorskip("mpi4py")
    env = {"TMPDIR": str(tmp_path), "PMI_RANK": "1", "PMI_SIZE": "2"}
    env |= {"OMPI_MCA_btl": "self"}  # alone, Open MPI 5 would leave its shared memory behind
    done = run_to_end(TRAINER, cwd=tmp_path, env=environment(env))
    assert done.returncode == 2, done.stderr
    assert "started this process as rank 1 of 2, but MPI says rank 0 of 1: mpi4py uses" in done.stderr


def test_ranks_on_two_hosts_write_to_one_run(two_hosts, mpirun, tmp_path):
    """Two on each, over ssh, with the devices and the address that the table gives them."""
    file = table_of(tmp_path / "table.json", two_hosts.addresses())
    done = mpirun.exec(
        4, "--rank-table", file, "--mp", "2", "--", sys.executable, TOLD,
        options=two_hosts.options(2), before=(two_hosts.root / "hub",),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = mpirun.environments()
    assert [each["RANK"] for each in shown] == ["0", "1", "2", "3"]
    assert [each["DEVICE_ID"] for each in shown] == [each["LOCAL_RANK"] for each in shown] == ["0", "1"] * 2
    assert [each["GROUP_RANK"] for each in shown] == ["0", "0", "1", "1"]
    assert {each["MASTER_ADDR"] for each in shown} == {"10.77.0.1"}
    assert len({each["MASTER_PORT"] for each in shown}) == 1
    assert json.loads((mpirun.latest / "run.json").read_text())["engine"] == "Open MPI"


def test_mpirun_on_a_host_with_ranks_gives_them_what_others_get(two_hosts, mpirun, tmp_path):
    """Though ranks beside it inherit its whole environment, and those on the other host what is handed on."""
    file = table_of(tmp_path / "table.json", two_hosts.addresses())
    done = mpirun.exec(
        4, "--rank-table", file, "--", sys.executable, TOLD,
        options=two_hosts.options(2), before=(two_hosts.root / "on", "h1", "env", "-C", tmp_path),
        env={"MASTER_PORT": "13451", "MASTER_ADDR": "10.77.0.9", "ROLE_NAME": "torchrun's"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = mpirun.environments()
    assert [each["GROUP_RANK"] for each in shown] == ["0", "0", "1", "1"]
    assert {each["MASTER_ADDR"] for each in shown} == {"10.77.0.1"}
    assert len({each["MASTER_PORT"] for each in shown} - {"13451"}) == len({each["MASTER_PORT"] for each in shown}) == 1
    assert not any("ROLE_NAME" in each for each in shown)
    assert done.stderr.count("MASTER_PORT=13451 in the environment is not used") == 1


def test_hosts_that_are_told_different_ports_are_refused(two_hosts, mpirun, tmp_path):
    table_of(tmp_path / "table.json", two_hosts.addresses(), 1)
    start = ["sh", "-c", 'exec "$@" --master-port 2345$OMPI_COMM_WORLD_RANK --rank-table table.json -- sleep 0.5', "sh"]
    done = mpirun(
        2, *start, *TLAUNCH, "exec",
        options=two_hosts.options(1), before=(two_hosts.root / "on", "h1", "env", "-C", tmp_path),
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    found = re.findall(
        r"this rank has MASTER_PORT 2345([01]), the first has 2345([01])\s+\(rank (\d) on h(\d)\)", done.stderr
    )
    assert found in ([("0", "1", "0", "1")], [("1", "0", "1", "2")]), done.stderr


def test_hosts_in_another_order_than_the_table_s_are_refused(two_hosts, mpirun, tmp_path):
    """Once per host, with the order to write; the run's directory is not even made."""
    file = table_of(tmp_path / "table.json", two_hosts.addresses())
    done = mpirun.exec(
        4, "--rank-table", file, "--", "sleep", "0.5",
        options=two_hosts.options(2, order=["h2", "h1"]), before=(two_hosts.root / "hub",),
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    told = re.findall(
        r"rank \d is on server (\S+) \(h\d\), but the rank table has ranks \S+ on server (\S+)", done.stderr
    )
    assert set(told) <= {("10.77.0.2", "10.77.0.1"), ("10.77.0.1", "10.77.0.2")}
    assert 1 <= len(told) == len(set(told))
    assert "10.77.0.1 slots=2, 10.77.0.2 slots=2" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["table.json"]
