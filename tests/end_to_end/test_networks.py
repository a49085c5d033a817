"""Hosts on two networks: ranks use the one of the table's addresses. And servers that mpirun knows by name."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import AS_ROOT, PROGRAMS, TLAUNCH, environment, run_to_end, table_of

DEBIANS_MPIRUN = Path("/usr/bin/mpirun")
FABRIC = ("10.88.0.1", "10.88.0.2")
SENT_BYTES = 20 << 20
LITTLE_BYTES = 4 << 20  # what ssh, agents and Open MPI's own daemons send in a few seconds
SUMS = """import torch, torch.distributed as dist
dist.init_process_group("gloo")
content = torch.ones(1 << 20)
for _ in range(5):
    dist.all_reduce(content)
dist.destroy_process_group()
"""
PROGRAM = PROGRAMS / "mpi_world_rank.py"  # it waits for all in MPI_Barrier

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(300)]


class Fabric:
    """Two hosts with eth0, which their names mean, and a second network, ib0, by whose addresses a table calls them."""

    def __init__(self, hosts, directory):
        self.hosts, self.directory = hosts, directory
        self.table = table_of(directory / "table.json", FABRIC, 1)
        self.program = directory / "sums.py"
        self.program.write_text(SUMS)

    def counts(self):
        found = {}
        for host in ("h1", "h2"):
            rows = self.hosts.on(host, "cat", "/proc/net/dev").stdout.splitlines()[2:]
            split = [(name.strip(), numbers.split()) for name, _, numbers in (row.partition(":") for row in rows)]
            found[host] = {name: int(numbers[0]) + int(numbers[8]) for name, numbers in split}
        return found

    def carried(self, before, interface):
        """The least of what it has carried on any host since."""
        after = self.counts()
        return min(after[host][interface] - before[host][interface] for host in after)

    def from_hub(self, *words):
        env = self.hosts.environment()
        return run_to_end([self.hosts.root / "hub", *TLAUNCH, *words], cwd=self.directory, env=env)

    def by_engine(self):
        options = ("--engine", "mpi", "--rank-table", self.table)
        return self.from_hub("run", *options, "--", sys.executable, self.program)

    def by_hand(self):
        """The same command on each host; how the first one ended."""
        words = (*TLAUNCH, "run", "--rank-table", self.table, "--", sys.executable, self.program)
        there = ("sh", "-c", 'cd "$0" && exec "$@"', self.directory, *words)
        first, second = ([str(word) for word in (self.hosts.root / "on", host, *there)] for host in ("h1", "h2"))
        nowhere = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        with subprocess.Popen(second, env=environment({}), **nowhere) as other:
            done = run_to_end(first, cwd=self.directory, env=environment({}))
            assert other.wait(60) == done.returncode
        return done

    def environments(self):
        logs = sorted((self.directory / "runs" / "latest").resolve().glob("device*/env.log"))
        return [dict(line.split("=", 1) for line in log.read_text().splitlines()) for log in logs]


@pytest.fixture(name="second_network", scope="module")
def _second_network(two_hosts):
    """10.88.0.0/24: a bridge on the hub, and ib0 on each host. It goes with the hosts."""

    def ip(place, *words):
        subprocess.run(["ip", "-n", place, *words], check=True, timeout=60)

    ip("tlhub", "link", "add", "br1", "type", "bridge")
    ip("tlhub", "addr", "add", "10.88.0.254/24", "dev", "br1")
    ip("tlhub", "link", "set", "br1", "up")
    for number, address in enumerate(FABRIC, start=1):
        place = f"tlh{number}"
        ip("tlhub", "link", "add", f"w{number}", "type", "veth", "peer", "name", "ib0", "netns", place)
        ip("tlhub", "link", "set", f"w{number}", "master", "br1", "up")
        ip(place, "addr", "add", f"{address}/24", "dev", "ib0")
        ip(place, "link", "set", "ib0", "up")
    config = two_hosts.root / "ssh_config"
    key = " ".join((two_hosts.root / "host_key.pub").read_text().split()[:2])
    common = config.read_text().partition("\nHost h1")[0].partition("\n")[2]
    with config.open("a") as file:
        file.write(f"Host 10.88.0.*\n{common}\n")
    with (two_hosts.root / "known_hosts").open("a") as file:
        file.writelines(f"{address} {key}\n" for address in FABRIC)
    return two_hosts


@pytest.fixture(name="fabric")
def _fabric(second_network, tmp_path):
    return Fabric(second_network, tmp_path)


@pytest.mark.parametrize("how", ["by_engine", "by_hand"])
def test_data_goes_by_the_network_of_the_tables_addresses(fabric, how):
    """Though the hosts' own names mean the other one, which gloo would take."""
    before = fabric.counts()
    done = getattr(fabric, how)()
    assert done.returncode == 0, done.stderr
    assert fabric.carried(before, "ib0") > SENT_BYTES
    assert fabric.carried(before, "eth0") < LITTLE_BYTES
    assert "_SOCKET_IFNAME" in done.stderr
    for told in fabric.environments():
        assert (told["GLOO_SOCKET_IFNAME"], told["NCCL_SOCKET_IFNAME"]) == ("ib0", "=ib0")


def test_each_rank_that_mpirun_starts_is_told_the_interface_of_its_server(fabric):
    hosts = fabric.hosts
    options = ("--mca", "plm_rsh_agent", hosts.root / "tlssh", "--host", "10.88.0.1:1,10.88.0.2:1", "-x", "PATH")
    ranks = (*TLAUNCH, "exec", "--rank-table", fabric.table, "--", sys.executable, fabric.program)
    mpirun = shutil.which("mpirun", path=hosts.environment()["PATH"])
    before = fabric.counts()
    done = run_to_end(
        [hosts.root / "hub", mpirun, *options, "-n", "2", *ranks],
        cwd=fabric.directory,
        env=hosts.environment() | AS_ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert fabric.carried(before, "ib0") > SENT_BYTES
    assert "_SOCKET_IFNAME" in done.stderr


def test_the_doctor_names_the_interface_that_it_measured(fabric):
    options = ("--engine", "mpi", "--rank-table", fabric.table, "--json", "--env", "GLOO_SOCKET_IFNAME=eth0")
    done = fabric.from_hub("doctor", *options)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert {one["code"] for one in told["findings"] if one["severity"] != "note"} == {"other-interface"}
    assert told["links"]["interfaces"] == ["eth0"] * 2
    (measured,) = [one["message"] for one in told["findings"] if one["code"] == "links-measured"]
    assert " by eth0" in measured


class ByName:
    """Debian's mpirun of Open MPI 4, a library of Open MPI 5 beside this Python, and a table of names."""

    def __init__(self, hosts, directory):
        self.hosts, self.directory = hosts, directory
        self.env = hosts.environment(DEBIANS_MPIRUN.parent)
        self.table = table_of(directory / "table.json", ("h1", "h2"))

    def __call__(self, *words, **more):
        return run_to_end([self.hosts.root / "hub", *words], cwd=self.directory, env=self.env | more)

    def check(self, done):
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("setting OMPI_MCA_coll=^han") == 1
        latest = (self.directory / "runs" / "latest").resolve()
        logs = [(latest / f"device{rank}" / "train.log").read_text() for rank in range(4)]
        assert logs == [f"{rank} 4 {rank} 6\n" for rank in range(4)]
        assert all("OMPI_MCA_coll=^han\n" in path.read_text() for path in latest.glob("device*/env.log"))


@pytest.fixture(name="by_name")
def _by_name(two_hosts, tmp_path):
    # Without MPI_Init: outside of a job it would leave a segment of shared memory behind.
    library = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"
    said = subprocess.run([sys.executable, "-c", library], capture_output=True, text=True, check=False).stdout
    if not DEBIANS_MPIRUN.exists() or "Open MPI v5" not in said:
        pytest.skip("needs Debian's Open MPI 4, and mpi4py with the library of Open MPI 5")
    version = subprocess.run([DEBIANS_MPIRUN, "--version"], capture_output=True, text=True, check=True).stdout
    if "(Open MPI) 4" not in version:
        pytest.skip("Debian's mpirun is not Open MPI 4 here")
    return ByName(two_hosts, tmp_path)


def test_open_mpi_5_does_not_hang_under_the_mpirun_of_4_over_names(by_name):
    program = ("--", sys.executable, PROGRAM, "well")
    words = ("run", "--engine", "mpi", "--rank-table", by_name.table, *program)
    by_name.check(by_name(*TLAUNCH, *words))


def test_open_mpi_5_does_not_hang_in_a_rank_that_the_mpirun_of_4_has_started(by_name):
    """`tlaunch exec` sets the variable before the program is there."""
    reach = ("--mca", "plm_rsh_agent", by_name.hosts.root / "tlssh", "--noprefix", "--bind-to", "none")
    tlaunch = (*TLAUNCH, "exec", "--rank-table", by_name.table)
    ranks = (*tlaunch, "--", sys.executable, PROGRAM, "well")
    by_name.check(by_name(DEBIANS_MPIRUN, *reach, "--host", "h1:2,h2:2", "-x", "PATH", "-n", "4", *ranks, **AS_ROOT))


def test_the_doctor_tells_of_a_library_that_would_hang(by_name):
    words = ("doctor", "--engine", "mpi", "--rank-table", by_name.table, "--no-links", "--json")
    done = by_name(*TLAUNCH, *words)
    assert done.returncode == 0, done.stderr
    found = {one["code"]: one["servers"] for one in json.loads(done.stdout)["findings"]}
    assert found["mpi-by-name"] == [0, 1]


@pytest.mark.parametrize("line", ["", "127.0.0.1 h1"], ids=["unknown", "loopback"])
def test_a_host_that_does_not_find_the_first_one_is_named_before_ranks_start(two_hosts, tmp_path, line):
    """Its agent comes all the same, since it gets addresses."""
    table = table_of(tmp_path / "table.json", ("h1", "h2"), 1)
    (tmp_path / "hosts").write_text(f"127.0.0.1 localhost\n10.77.0.2 h2\n{line}\n")
    assert two_hosts.on("h2", "mount", "--bind", tmp_path / "hosts", "/etc/hosts").returncode == 0
    try:
        words = (
            *TLAUNCH,
            "run",
            "--engine",
            "mpi",
            "--rank-table",
            table,
            "--",
            sys.executable,
            "-c",
            "print('began')",
        )
        done = run_to_end([two_hosts.root / "hub", *words], cwd=tmp_path, env=two_hosts.environment())
    finally:
        two_hosts.on("h2", "umount", "/etc/hosts")
    assert done.returncode == 3, done.stderr
    assert re.search(r"error: MASTER_ADDR h1 (cannot be resolved|is a loopback address) on server h2", done.stderr)
    assert not list(tmp_path.rglob("train.log"))
