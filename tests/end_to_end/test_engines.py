"""The bundled trainer under a real mpirun: by `tlaunch exec`, by itself, and on two hosts."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[1] / "programs"
TRAINER = (sys.executable, "-m", "launcher.trainer")
SETTINGS = tuple(
    word
    for setting in ("train.steps=3", "model.dropout=0.0", "train.batch_size=32", "train.micro_batches=2")
    for word in ("--set", setting)
)
RANKS = 2  # each imports torch: more would take most of this file's time
LAYOUT = ("--pp", "2", "--micro-batches", "2")

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", name="cache")
def _cache(tmp_path_factory):
    return {"TLAUNCH_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}


def losses(run):
    """Of every step, as rank 0 measured them."""
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record["loss"] for record in records if "loss" in record]


@pytest.fixture(scope="module", name="expected")
def _expected(tmp_path_factory, cache):
    """What as many ranks of `tlaunch run` lose."""
    directory = tmp_path_factory.mktemp("expected")
    options = ("--devices", str(RANKS), *LAYOUT, "--console", "none", "--bind", "none")
    command = [sys.executable, "-m", "launcher", "run", *options]
    environment = {**os.environ, **cache, "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, *SETTINGS], cwd=directory, env=environment, check=True, timeout=300, capture_output=True)
    found = losses(directory / "runs" / "latest")
    assert len(found) == 3
    return found


def test_training_under_mpirun_is_training_under_tlaunch_run(mpirun, cache, expected):
    """The same losses, digit by digit."""
    pytest.importorskip("torch")
    done = mpirun.exec(RANKS, *LAYOUT, "--", *TRAINER, *SETTINGS, env=cache)
    assert done.returncode == 0, done.stderr + mpirun.logs()[0]
    assert losses(mpirun.latest) == expected
    assert len(mpirun.logs()) == RANKS


def test_the_trainer_takes_its_place_from_mpirun(mpirun, cache, expected):
    """Without tlaunch exec, without an address: the ranks meet over MPI."""
    pytest.importorskip("mpi4py")
    done = mpirun(2, *TRAINER, *SETTINGS, env=cache)
    assert done.returncode == 0, done.stderr
    found = [float(loss) for loss in re.findall(r"step: \d+, loss is ([\d.]+)", done.stdout)]
    assert found == pytest.approx(expected, abs=2e-4)


def mpi_alone(directory, environment):
    """One process that an engine of another MPI might have started."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("RANK", "WORLD", "MASTER"))}
    settings = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    settings |= {"OMPI_MCA_btl": "self"}  # alone, Open MPI 5 would leave its shared memory behind
    return subprocess.run(
        [*TRAINER, *SETTINGS],
        env={**inherited, **settings, "TMPDIR": str(directory), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.usefixtures("mpirun")
def test_mpi_that_does_not_belong_to_the_launcher_is_refused(tmp_path):
    """Else each of N processes would train alone, and nobody would notice."""
    pytest.importorskip("mpi4py")
    done = mpi_alone(tmp_path, {"PMI_RANK": "1", "PMI_SIZE": "2"})
    assert done.returncode == 2, done.stderr
    assert "made this process rank 1 of 2, but MPI takes it for rank 0 of 1: mpi4py uses" in done.stderr


def test_without_mpi4py_an_address_is_asked_for(tmp_path):
    """And with one it is not needed: only the missing peer is."""
    (tmp_path / "mpi4py.py").write_text("raise ModuleNotFoundError('hidden')\n")
    done = mpi_alone(tmp_path, {"PMI_RANK": "1", "PMI_SIZE": "2", "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 2, done.stderr
    assert "started 2 ranks, and nothing says where they meet: mpi4py is not installed" in done.stderr
    assert "MASTER_ADDR, an address of rank 0's server, and MASTER_PORT" in done.stderr


def table_of(hosts, path, count):
    servers = [
        {
            "server_id": address,
            "device": [
                {
                    "device_id": str(index),
                    "device_ip": f"192.{server}.0.{index + 1}",
                    "rank_id": str(count * server + index),
                }
                for index in range(count)
            ],
            "host_nic_ip": "reserve",
        }
        for server, address in enumerate(hosts.addresses())
    ]
    whole = {"version": "1.0", "server_count": str(len(servers)), "server_list": servers, "status": "completed"}
    path.write_text(json.dumps(whole))
    return path


def test_ranks_on_two_hosts_write_to_one_run(two_hosts, mpirun, tmp_path):
    """Four on each, over ssh, with the devices and the address that the table gives them."""
    file = table_of(two_hosts, tmp_path / "table.json", 4)
    done = mpirun.exec(
        8, "--rank-table", file, "--mp", "2", "--", sys.executable, PROGRAMS / "exec_rank.py",
        options=two_hosts.options(4), before=(two_hosts.root / "hub",),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = [json.loads(log) for log in mpirun.logs()]
    assert [each["RANK"] for each in shown] == [str(rank) for rank in range(8)]
    assert [each["DEVICE_ID"] for each in shown] == [each["LOCAL_RANK"] for each in shown] == ["0", "1", "2", "3"] * 2
    assert [each["GROUP_RANK"] for each in shown] == ["0"] * 4 + ["1"] * 4
    assert {each["MASTER_ADDR"] for each in shown} == {"10.77.0.1"}
    assert len({each["MASTER_PORT"] for each in shown}) == 1
    assert json.loads((mpirun.latest / "run.json").read_text())["engine"] == "Open MPI"


def test_mpirun_on_a_host_with_ranks_gives_them_what_others_get(two_hosts, mpirun, tmp_path):
    """Though ranks beside it inherit its whole environment, and those on the other host what is handed on."""
    file = table_of(two_hosts, tmp_path / "table.json", 2)
    done = mpirun.exec(
        4, "--rank-table", file, "--", sys.executable, PROGRAMS / "exec_rank.py",
        options=two_hosts.options(2), before=(two_hosts.root / "on", "h1", "env", "-C", tmp_path),
        env={"MASTER_PORT": "13451", "MASTER_ADDR": "10.77.0.9", "ROLE_NAME": "torchrun's"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = [json.loads(log) for log in mpirun.logs()]
    assert [each["GROUP_RANK"] for each in shown] == ["0", "0", "1", "1"]
    assert {each["MASTER_ADDR"] for each in shown} == {"10.77.0.1"}
    assert len({each["MASTER_PORT"] for each in shown} - {"13451"}) == len({each["MASTER_PORT"] for each in shown}) == 1
    assert {each["ROLE_NAME"] for each in shown} == {None}
    assert done.stderr.count("MASTER_PORT=13451 of the environment is not used") == 1


def test_hosts_that_are_told_different_ports_are_refused(two_hosts, mpirun, tmp_path):
    """On a file system that both see; the host that came later says so."""
    file = table_of(two_hosts, tmp_path / "table.json", 1)
    start = ["sh", "-c", 'exec "$@" --master-port 2345$OMPI_COMM_WORLD_RANK --rank-table table.json -- sleep 0.5', "sh"]
    done = mpirun(
        2, *start, sys.executable, "-m", "launcher", "exec",
        options=two_hosts.options(1), before=(two_hosts.root / "on", "h1", "env", "-C", tmp_path),
    )  # fmt: skip
    assert (done.returncode, file.name) == (3, "table.json"), done.stderr
    found = re.findall(
        r"this one has MASTER_PORT 2345([01]), the first had 2345([01])\s+\(rank (\d) on h(\d)\)", done.stderr
    )
    assert found in ([("0", "1", "0", "1")], [("1", "0", "1", "2")]), done.stderr


def test_hosts_in_another_order_than_the_table_s_are_refused(two_hosts, mpirun, tmp_path):
    """Once per host, with the order to write; the run's directory is not even made."""
    file = table_of(two_hosts, tmp_path / "table.json", 2)
    done = mpirun.exec(
        4, "--rank-table", file, "--", "sleep", "0.5",
        options=two_hosts.options(2, order=["h2", "h1"]), before=(two_hosts.root / "hub",),
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    told = re.findall(
        r"rank \d is on server (\S+) \(h\d\), and the rank table has ranks \S+ on server (\S+)", done.stderr
    )
    assert set(told) <= {("10.77.0.2", "10.77.0.1"), ("10.77.0.1", "10.77.0.2")}
    assert 1 <= len(told) == len(set(told))
    assert "10.77.0.1 slots=2, 10.77.0.2 slots=2" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["table.json"]


def test_the_trainer_alone_meets_over_the_network(two_hosts, mpirun, cache):
    """Rank 0 tells an address that the other host reaches."""
    pytest.importorskip("mpi4py")
    options, before = (*two_hosts.options(1), "-x", "TLAUNCH_CACHE_DIR"), (two_hosts.root / "hub",)
    done = mpirun(2, *TRAINER, *SETTINGS, env=cache, options=options, before=before)
    assert done.returncode == 0, done.stderr
    assert "layout: dp=2 mp=1 pp=1" in done.stdout
    assert "step: 3, loss is" in done.stdout
