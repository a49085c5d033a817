"""`tlaunch doctor` over three hosts: nothing is found on sound ones, and what is planted on one of them is found there."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from launcher.core.run_dir import RunDir

ROOT = Path(__file__).parents[2]
VIRTUAL_HOSTS = ROOT.parent / "shared" / "virtual_hosts"
BESIDE = Path(sys.executable).parent
PATIENCE_S = 240
BASHRC = Path("~root/.bashrc").expanduser()  # Debian's bash reads it for commands over ssh, too
FAKE_TIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(600)]


class HostCluster:
    """Three hosts, a rank table of them, and the doctor on the hub."""

    def __init__(self, hosts, directory, names, mpirun):
        self.hosts, self.root, self.directory, self.mpirun = hosts, hosts.root, directory, mpirun
        self.runs, self.cwd, self.table = directory / "runs", directory / "here" / "cwd", directory / "table.json"
        self.runs.mkdir()
        self.cwd.mkdir(parents=True)
        self.write_table(self.table, names)
        self.known_hosts = (self.root / "known_hosts").read_text()

    def write_table(self, path, names, device_ip="192.168.0"):
        servers = [
            {
                "server_id": name,
                "device": [
                    {"device_id": str(local), "device_ip": f"{device_ip}.{rank + 1}", "rank_id": str(rank)}
                    for local, rank in enumerate((2 * index, 2 * index + 1))
                ],
            }
            for index, name in enumerate(names)
        ]
        table = {"version": "1.0", "server_count": str(len(names)), "server_list": servers, "status": "completed"}
        path.write_text(json.dumps(table))
        return path

    def environment(self):
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("TLAUNCH_", "OMPI_", "PMIX_"))
        }
        agent = dict.fromkeys(("OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent", "HYDRA_LAUNCHER_EXEC"), "tlssh")
        search = os.pathsep.join((str(Path(self.mpirun).parent), "/usr/bin", "/bin", "/usr/sbin", "/sbin"))
        return kept | {name: str(self.root / value) for name, value in agent.items()} | {"PATH": search}

    def command(self, *options):
        return [
            self.root / "hub", BESIDE / "python", "-m", "launcher", "doctor", "--rank-table", self.table,
            "--engine", "mpi", "--runs-dir", self.runs, *options,
        ]  # fmt: skip

    def __call__(self, *options):
        """Exit code, stdout and stderr. What hangs is killed with all that it started."""
        process = subprocess.Popen(
            list(map(str, self.command(*options))), cwd=self.cwd, env=self.environment(), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            out, err = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            pytest.fail(f"the doctor hangs:\n{out}\n{err}")
        return process.returncode, out, err

    def examined(self, *options):
        """Exit code, findings but for notes, and which servers have told of themselves."""
        code, out, err = self("--json", *options)
        assert out, err
        told = json.loads(out)
        print(json.dumps(told["findings"], indent=1), err)
        found = {(one["code"], tuple(one["servers"])) for one in told["findings"] if one["severity"] != "note"}
        return code, found, [one["server"] for one in told["servers"] if one["facts"]]

    def on(self, host, *command, check=True):
        return subprocess.run(
            [self.root / "on", host, *map(str, command)], check=check, timeout=60, capture_output=True
        )

    @contextmanager
    def over(self, host, path, source=None, *, options=()):
        """On one host another file or directory, or an empty file system, is at `path`."""
        mount = ("mount", "--bind", source, path) if source else ("mount", "-t", "tmpfs", *options, "tmpfs", path)
        self.on(host, *mount)
        try:
            yield
        finally:
            self.on(host, "umount", "-l", path)

    @contextmanager
    def shell(self, host, *lines):
        """What its shell does before each command that comes by ssh."""
        if not BASHRC.is_file():
            pytest.skip(f"no {BASHRC} that could be replaced")
        source = self.directory / "bashrc"
        source.write_text("".join(f"{line}\n" for line in lines))
        with self.over(host, BASHRC, source):
            yield


@pytest.fixture(params=["system", "beside Python"])
def cluster_by_mpirun(request, three_hosts, tmp_path):
    yield from cluster_with(request.param, three_hosts, tmp_path, ["h1", "h2", "h3"])


@pytest.fixture
def cluster(three_hosts, tmp_path):
    """With one mpirun, where it makes no difference which."""
    yield from cluster_with("beside Python", three_hosts, tmp_path, ["h1", "h2", "h3"])


def cluster_with(which, hosts, directory, names):
    places = {"system": "/usr/bin", "beside Python": os.pathsep.join((str(BESIDE), *os.environ["PATH"].split(":")))}
    mpirun = shutil.which("mpirun", path=places[which])
    if mpirun is None:
        pytest.skip(f"no mpirun: {which}")
    yield HostCluster(hosts, directory, names, mpirun)


# --- sound hosts ---


def test_sound_hosts_raise_no_alarm_and_keep_nothing(cluster_by_mpirun):
    """Links are measured by a run of which nothing is left, and all that is said is a note."""
    assert cluster_by_mpirun.examined() == (0, set(), [0, 1, 2])
    assert list(cluster_by_mpirun.runs.iterdir()) == []


def test_started_by_hand_the_first_server_reports_and_all_end_alike(cluster):
    """Nobody's sshd is needed."""

    def start(host):
        command = [
            cluster.root / "on", host, "env", "-C", cluster.cwd, BESIDE / "python", "-m", "launcher", "doctor",
            "--rank-table", cluster.table, "--runs-dir", cluster.runs,
        ]  # fmt: skip
        return subprocess.Popen(
            list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    processes = [start(host) for host in ("h3", "h1", "h2")]
    ended = [(*process.communicate(timeout=PATIENCE_S), process.returncode) for process in processes]
    assert [code for *_, code in ended] == [0, 0, 0], ended
    assert "3 servers examined: nothing stands in the way of a run" in ended[1][0]
    assert "measuring links" in ended[1][1]  # of what takes long one is told before
    assert ended[0][0] == ended[2][0] == ""
    assert "server h3 has been examined; server h1 reports what was found" in ended[0][1]
    assert list(cluster.runs.iterdir()) == []


# --- what keeps a server from coming at all: the others are examined nevertheless ---


@contextmanager
def host_key_unknown(cluster):
    path = cluster.root / "known_hosts"
    path.write_text("".join(line for line in cluster.known_hosts.splitlines(True) if not line.startswith("h2,")))
    try:
        yield
    finally:
        path.write_text(cluster.known_hosts)


@contextmanager
def cut(cluster):
    subprocess.run([VIRTUAL_HOSTS / "cut.sh", "h2", "hub"], check=True, timeout=60)
    try:
        yield
    finally:
        subprocess.run([VIRTUAL_HOSTS / "heal.sh", "h2"], check=True, timeout=60)


@contextmanager
def other_version(cluster):
    source = cluster.directory / "version.py"
    source.write_text('__version__ = "0.0.7"\n')
    with cluster.over("h2", ROOT / "launcher" / "__init__.py", source):
        yield


ABSENT = {
    "host-key": host_key_unknown,
    "host-unreachable": cut,
    "ssh-refused": lambda cluster: cluster.hosts.network("h2", "tcp dport 22 reject with tcp reset"),
    "tlaunch-missing": lambda cluster: cluster.over("h2", ROOT / "launcher"),
    "python-missing": lambda cluster: cluster.over("h2", sys.prefix),
    "refused": other_version,
}


@pytest.mark.parametrize("code", ABSENT)
def test_a_server_on_which_nothing_starts_is_told_of_and_the_others_are_examined(cluster_by_mpirun, code):
    """By its cause, whatever the engine makes of it."""
    with ABSENT[code](cluster_by_mpirun):
        exit_code, found, told = cluster_by_mpirun.examined("--no-links")
    brings_its_own = Path(cluster_by_mpirun.mpirun).is_relative_to(
        sys.prefix
    )  # a daemon, which is missing like Python then
    expected = "program-missing" if code == "python-missing" and brings_its_own else code
    assert (exit_code, found, told) == (1, {(expected, (1,))}, [0, 2])


def test_a_server_that_does_not_reach_the_hub_is_told_of(cluster):
    """Its agent starts, and is refused by a firewall on the way back; it says so within its patience."""
    if shutil.which("nft") is None:
        pytest.skip("no nft here")
    # ssh answers from port 22: those packets pass.
    with cluster.hosts.network(
        "h2", "ip saddr 10.77.0.254 tcp sport != 22 tcp flags & (syn | ack) == (syn | ack) tcp dport != 22 drop"
    ):
        began = time.monotonic()
        code, found, told = cluster.examined("--no-links", "--join-timeout", "10")
        took_s = time.monotonic() - began
    assert (code, {which for _, which in found}, told) == (1, {(1,)}, [0, 2])
    assert took_s < 10 + 40, "ten seconds, ten more for who is started once more, and what a busy machine adds"
    cluster.hosts.on("h2", "pkill", "-9", "prted|orted")  # mpirun's own process there heard nothing of its end


def test_an_agent_that_hangs_in_its_file_system_is_told_of(cluster):
    """Nobody ever writes to a pipe that stands where the rank table was, as nobody answers for a dead NFS server."""
    pipe = cluster.directory / "pipe"
    os.mkfifo(pipe)
    with cluster.over("h2", cluster.table, pipe):
        code, found, told = cluster.examined("--no-links")
    assert (code, found, told) == (1, {("no-answer", (1,))}, [0, 2])


# --- what is wrong with a server that comes ---


@contextmanager
def wrong_hosts_file(cluster):
    source = cluster.directory / "hosts"
    source.write_text((cluster.root / "hosts").read_text().replace("10.77.0.2 h2", "127.0.1.1 h2"))
    with cluster.over("h2", "/etc/hosts", source):
        yield


@contextmanager
def other_torch(cluster):
    metadata = cluster.directory / "fake" / "torch-1.0.0.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.0.0\n")
    with cluster.shell("h2", f"export PYTHONPATH={metadata.parents[1]}"):
        yield


@contextmanager
def small_shared_memory(cluster):
    with cluster.over("h2", "/dev/shm", options=("-o", "size=16m")):
        yield


@contextmanager
def small_packets(cluster):
    mtu = ("ip", "-n", "tlh2", "link", "set", "eth0", "mtu")
    subprocess.run([*mtu, "1400"], check=True, timeout=60)
    try:
        yield
    finally:
        subprocess.run([*mtu, "1500"], check=True, timeout=60)


@contextmanager
def wrong_clock(cluster):
    library = next((path for path in (FAKE_TIME, Path(os.environ.get("TL_FAKETIME", "/"))) if path.is_file()), None)
    if library is None:
        pytest.skip("no libfaketime here: apt install libfaketime, or its path in TL_FAKETIME")
    copy = shutil.copy(library, cluster.directory / "libfaketime.so")
    with cluster.shell("h2", f"export LD_PRELOAD={copy} FAKETIME=+90s FAKETIME_DONT_FAKE_MONOTONIC=1"):
        yield


@contextmanager
def no_loopback(cluster):
    loopback = ("ip", "-n", "tlh2", "link", "set", "lo")
    subprocess.run([*loopback, "down"], check=True, timeout=60)
    try:
        yield
    finally:
        subprocess.run([*loopback, "up"], check=True, timeout=60)


FAULTS = {
    "unreachable": (
        lambda cluster: cluster.hosts.network(
            "hub", 'iifname "v2" oifname "v3" tcp flags & (syn | ack) == syn tcp dport != 22 drop'
        ),
        {("unreachable", (1, 2))}, 1,
    ),
    "name resolution": (wrong_hosts_file, {("own-name-is-loopback", (1,))}, 0),
    "table": (
        lambda cluster: cluster.over(
            "h2", cluster.table, cluster.write_table(cluster.directory / "other.json", ["h1", "h2", "h3"], "10.9.9")
        ),
        {("table-differs", (1,))}, 1,
    ),
    "torch": (other_torch, {("version-differs", (1,))}, 1),
    "disk": (
        lambda cluster: cluster.over("h2", cluster.runs, options=("-o", "size=50m")),
        {("disk-nearly-full", (1,))}, 1,
    ),
    "shared memory": (small_shared_memory, {("small-shared-memory", (1,))}, 0),
    "closed shared memory": (
        lambda cluster: cluster.over("h2", "/dev/shm", options=("-o", "ro")), {("shared-memory-closed", (1,))}, 0,
    ),
    "open files": (lambda cluster: cluster.shell("h2", "ulimit -n 128"), {("few-open-files", (1,))}, 0),
    "interface": (
        lambda cluster: cluster.shell("h2", "export GLOO_SOCKET_IFNAME=ib7"), {("no-such-interface", (1,))}, 1,
    ),
    "packets": (small_packets, {("mtu-differs", (1,))}, 0),
    "large packets": (
        lambda cluster: cluster.hosts.network(
            "hub", 'iifname "v1" oifname "v2" ether type ip meta length > 1000 drop'
        ),
        {("large-packets-lost", (0, 1))}, 1,
    ),
    "loopback": (no_loopback, {("not-itself", (1,))}, 1),
    "directory": (
        lambda cluster: cluster.over("h2", cluster.cwd.parent), {("cwd-missing", (1,))}, 1,
    ),
    "clock": (wrong_clock, {("clock-skew", (1,))}, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_where_it_is_and_nothing_else(cluster, name):
    """One at a time; the exit code tells whether a run would fail of it."""
    plant, expected, code = FAULTS[name]
    with plant(cluster):
        assert cluster.examined("--no-links") == (code, expected, [0, 1, 2])


def test_a_port_that_somebody_has_is_found_on_the_server_of_rank_0(cluster):
    """The one that the run's ranks would meet at."""
    listen = "import socket, sys; s = socket.create_server(('', 29411)); print(flush=True); sys.stdin.read()"
    command = [cluster.root / "on", "h1", sys.executable, "-c", listen]
    with ExitStack() as stack:
        listener = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        listener.stdout.readline()
        assert cluster.examined("--no-links", "--master-port", "29411") == (1, {("port-taken", (0,))}, [0, 1, 2])


def test_a_slow_link_is_found_by_measuring(cluster):
    """The server whose card it is, and no pair without it."""
    place = ["ip", "netns", "exec", "tlh2", "tc", "qdisc"]
    slow = ["add", "dev", "eth0", "root", "tbf", "rate", "80mbit", "burst", "32kbit", "latency", "400ms"]
    if shutil.which("tc") is None or subprocess.run([*place, *slow], check=False, timeout=60).returncode:
        pytest.skip("no tc here")
    try:
        code, found, told = cluster.examined()
    finally:
        subprocess.run([*place, "del", "dev", "eth0", "root"], check=True, timeout=60)
    assert (code, told) == (0, [0, 1, 2])
    assert ("slow-link", (1,)) in found


def test_what_ranks_of_one_server_fail_of_is_told_of_that_server(cluster):
    """Whatever the versions of what is installed promise."""
    libraries = Path(importlib.util.find_spec("torch").origin).parent / "lib"
    with cluster.over("h2", libraries):
        code, found, told = cluster.examined()
    assert (code, found, told) == (1, {("trial-run-failed", (1,))}, [0, 1, 2])
    kept = kept_run()
    assert "Error" in (kept / "device2" / "train.log").read_text()
    assert list(cluster.runs.iterdir()) == []
    shutil.rmtree(kept.parent)


def test_a_stale_copy_of_the_program_is_found(cluster):
    """And `tlaunch run` refuses it before any rank starts, with the same words."""
    program = cluster.cwd / "train.py"
    program.write_text("print('new')")
    stale = cluster.directory / "stale.py"
    stale.write_text("print('stale')")
    command = ("--", sys.executable, program.name)
    with cluster.over("h2", program, stale):
        assert cluster.examined("--no-links", *command) == (1, {("program-differs", (1,))}, [0, 1, 2])
        run = [word if word != "doctor" else "run" for word in cluster.command(*command)]
        done = subprocess.run(
            list(map(str, run)), cwd=cluster.cwd, env=cluster.environment(), capture_output=True, text=True, timeout=120, check=False
        )  # fmt: skip
    assert done.returncode == 3
    assert "error: the program is not the same on server h2 as on server h1: train.py differs" in done.stderr
    assert not list(cluster.runs.glob("*/device*/train.log"))
    assert cluster.examined("--no-links", *command) == (0, set(), [0, 1, 2])


def kept_run():
    """The only run that a doctor has kept since it failed."""
    (kept,) = Path(tempfile.gettempdir()).glob("tlaunch-links-*/*")
    return kept


def test_a_run_that_hangs_ends_within_its_limit_and_what_it_wrote_is_kept(cluster):
    """Of two servers small amounts of data reach each other, and no more: all ranks wait."""
    began = time.monotonic()
    with cluster.hosts.network("h2", "ip saddr 10.77.0.1 tcp sport != 22 quota over 1 mbytes drop"):
        code, out, err = cluster("--json")
    took_s = time.monotonic() - began
    (finding,) = [one for one in json.loads(out)["findings"] if one["severity"] == "breaks"]
    print(finding, err)
    assert (code, finding["code"]) == (1, "trial-run-failed")
    assert took_s < 150, "the run's own patience with ranks that hang is one minute"
    kept = kept_run()
    assert str(kept) in finding["hint"]
    assert str(cluster.runs) not in finding["message"]
    assert RunDir(kept).report.is_file()
    assert list(cluster.runs.iterdir()) == []
    shutil.rmtree(kept.parent)


def test_one_machine_under_two_names_is_refused_and_found_out(cluster):
    """h9 is another name of h2: the table has one machine twice."""
    hosts = cluster.root / "hosts"
    before = hosts.read_text()
    hosts.write_text(before + "10.77.0.2 h9\n")
    known = cluster.root / "known_hosts"
    key = next(line.partition(" ")[2] for line in cluster.known_hosts.splitlines())
    known.write_text(cluster.known_hosts + f"h9 {key}\n")
    cluster.write_table(cluster.table, ["h1", "h2", "h9"])
    try:
        code, found, _ = cluster.examined("--no-links")
    finally:
        hosts.write_text(before)
        known.write_text(cluster.known_hosts)
    assert ("one-machine", (1, 2)) in found
    assert code == 1


# --- what a person sees ---


def test_the_report_names_the_fault_and_what_to_do(cluster):
    """As text, on stdout; stderr is for what goes on meanwhile."""
    with ABSENT["ssh-refused"](cluster):
        code, out, err = cluster("--no-links")
    assert code == 1, err
    assert "BREAKS: server h2: the ssh port refuses connections" in out
    assert "hint: is sshd running there?" in out
    assert "2 of 3 servers examined: 1 problem would break a run, 0 risks" in out
