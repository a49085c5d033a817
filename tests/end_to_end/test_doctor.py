"""`tlaunch doctor` over several hosts: nothing is found on sound ones, and what is planted on one of them is found there."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from launcher.core.events import Cause
from launcher.core.run_dir import RunDir
from launcher.core.run_report import Report

from .conftest import BESIDE, PATIENCE_S, ROOT, VIRTUAL_HOSTS, hosts_of, run_to_end, table_of

HOSTS = 10
BASHRC = Path("~root/.bashrc").expanduser()  # Debian's bash reads it for commands over ssh, too
FAKE_TIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
PORT = 29411

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(600)]


class HostCluster:
    """Some of the hosts, a rank table of them, and the doctor on the hub."""

    def __init__(self, hosts, directory, names, mpirun="beside Python", devices=1):
        places = {"system": "/usr/bin", "beside Python": os.pathsep.join((str(BESIDE), os.environ["PATH"]))}
        self.mpirun = shutil.which("mpirun", path=places[mpirun])
        if self.mpirun is None or None in map(shutil.which, ("nft", "tc")):
            pytest.skip(f"no nft or tc here, or no mpirun: {mpirun}")
        self.hosts, self.root, self.directory, self.names = hosts, hosts.root, directory, names
        self.runs, self.cwd, self.table = directory / "runs", directory / "here" / "cwd", directory / "table.json"
        self.runs.mkdir()
        self.cwd.mkdir(parents=True)
        self.temporary = Path(tempfile.mkdtemp(dir=directory))
        table_of(self.table, names, devices)

    def environment(self):
        search = os.pathsep.join((str(Path(self.mpirun).parent), "/usr/bin", "/bin", "/usr/sbin", "/sbin"))
        return self.hosts.environment() | {"PATH": search, "TMPDIR": str(self.temporary)}

    def command(self, *options, by=("--engine", "mpi"), host="hub"):
        where = (self.root / "hub",) if host == "hub" else (self.root / "on", host)
        command = (BESIDE / "python", "-m", "launcher", "doctor", "--rank-table", self.table, "--runs-dir", self.runs)
        return list(map(str, (*where, "env", "-C", self.cwd, *command, *by, *options)))

    def __call__(self, *options):
        done = run_to_end(self.command("--json", *options), cwd=self.cwd, env=self.environment())
        assert done.stdout, done.stderr
        print(done.stdout, done.stderr)
        return done.returncode, json.loads(done.stdout), done.stderr

    def examined(self, *options):
        """Exit code, findings but for notes, and which servers have told of themselves."""
        code, told, _ = self(*options)
        found = {(one["code"], tuple(one["servers"])) for one in told["findings"] if one["severity"] != "note"}
        return code, found, [one["server"] for one in told["servers"] if one["facts"]]

    def kept_run(self):
        """The only run that a doctor has kept since it failed; nothing else is left."""
        assert list(self.runs.iterdir()) == []
        (kept,) = self.temporary.iterdir()
        assert kept.name.startswith("tlaunch-links-")
        (kept,) = kept.iterdir()
        return kept

    @contextmanager
    def over(self, host, path, source=None, *, options=()):
        """On one host another file or directory, or an empty file system, is at `path`."""
        mount = ("mount", "--bind", source, path) if source else ("mount", "-t", "tmpfs", *options, "tmpfs", path)
        assert self.hosts.on(host, *mount).returncode == 0
        try:
            yield
        finally:
            assert self.hosts.on(host, "umount", "-l", path).returncode == 0

    @contextmanager
    def shell(self, host, *lines):
        """What its shell does before each command that comes by ssh."""
        if not BASHRC.is_file():
            pytest.skip(f"no {BASHRC} that could be replaced")
        source = self.directory / f"{host}.bashrc"
        source.write_text("".join(f"{line}\n" for line in lines))
        with self.over(host, BASHRC, source):
            yield

    @contextmanager
    def changed(self, path, text):
        """Another content of a file that all hosts see."""
        before = path.read_text()
        path.write_text(text)
        try:
            yield
        finally:
            path.write_text(before)

    @contextmanager
    def planted(self, faults):
        """One fault on each server but the first, in their order: what is to be found."""
        with ExitStack() as stack:
            for host, plant in zip(self.names[1:], faults.values(), strict=False):
                stack.enter_context(plant(self, host))
            yield {(code, (index,)) for index, code in enumerate(faults, start=1)}


@contextmanager
def undone(do, *undo):
    """What a command does, until the second one."""
    subprocess.run(list(map(str, do)), check=True, timeout=60, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(list(map(str, undo)), check=True, timeout=60, capture_output=True)


@pytest.fixture(scope="module", name="many_hosts")
def _many_hosts(tmp_path_factory):
    with hosts_of(HOSTS, tmp_path_factory) as hosts:
        yield hosts


@pytest.fixture(name="cluster_of")
def _cluster_of(many_hosts, tmp_path):
    """Gives a function: the first `count` hosts, with the mpirun beside Python where it makes no difference which."""

    def cluster_of(count, mpirun="beside Python", devices=1):
        return HostCluster(many_hosts, tmp_path, [f"h{number + 1}" for number in range(count)], mpirun, devices)

    return cluster_of


# --- sound hosts ---


def test_sound_hosts_raise_no_alarm_and_keep_nothing(cluster_of):
    """Links are measured by a run of which nothing is left, and all that is said is a note."""
    cluster = cluster_of(3, "system")
    assert cluster.examined() == (0, set(), [0, 1, 2])
    assert [*cluster.runs.iterdir(), *cluster.temporary.iterdir()] == []


def test_started_by_hand_the_first_server_reports_and_all_end_alike(cluster_of):
    cluster = cluster_of(2)
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    second, first = (subprocess.Popen(cluster.command(by=(), host=host), **pipes) for host in ("h2", "h1"))
    ended = [process.communicate(timeout=PATIENCE_S) for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], ended
    (out, err), (second_out, second_err) = ended
    assert "2 servers examined: no problem would break a run" in out
    assert "measuring links" in err  # of what takes long one is told before
    assert second_out == ""
    assert "server h2 has been examined; server h1 shows the report" in second_err
    assert list(cluster.runs.iterdir()) == []


# --- what keeps a server from coming at all: the others are examined nevertheless ---


def host_key_unknown(cluster, host):
    path = cluster.root / "known_hosts"
    known = path.read_text().splitlines(keepends=True)
    return cluster.changed(path, "".join(line for line in known if not line.startswith(f"{host},")))


def other_version(cluster, host):
    source = cluster.directory / "version.py"
    source.write_text('__version__ = "0.0.7"\n')
    return cluster.over(host, ROOT / "launcher" / "__init__.py", source)


def hanging_agent(cluster, host):
    """An agent that starts and never says anything, as one on a dead NFS server."""
    source = cluster.directory / "agent.py"
    source.write_text("import time\n\ntime.sleep(1000)\n")
    return cluster.over(host, ROOT / "launcher" / "cli" / "commands" / "agent_command.py", source)


OUT_OF_REACH = {
    "host-key": host_key_unknown,
    "host-unreachable": lambda _, host: undone((VIRTUAL_HOSTS / "cut.sh", host, "hub"), VIRTUAL_HOSTS / "heal.sh", host),
    "ssh-refused": lambda cluster, host: cluster.hosts.network(host, "tcp dport 22 reject with tcp reset"),
    "python-missing": lambda cluster, host: cluster.over(host, sys.prefix),
}  # fmt: skip
WITHOUT_AN_AGENT = {
    "tlaunch-missing": lambda cluster, host: cluster.over(host, ROOT / "launcher"),
    "refused": other_version,
    "did-not-come": hanging_agent,
}


@pytest.mark.parametrize("mpirun", ["system", "beside Python"])
def test_servers_on_which_no_engine_starts_anything_are_told_of(cluster_of, mpirun):
    cluster = cluster_of(6, mpirun)
    with cluster.planted(OUT_OF_REACH) as expected:
        found = cluster.examined("--no-links")
    if Path(cluster.mpirun).is_relative_to(sys.prefix):  # it brings a daemon of its own, which is missing like Python
        expected = expected - {("python-missing", (4,))} | {("program-missing", (4,))}
    assert found == (1, expected, [0, 5])


@pytest.fixture(scope="module", name="waited_for")
def _waited_for(many_hosts, tmp_path_factory):
    """Examinations that do little but wait, all at the same time, each on hosts of its own: what each gives, by name."""
    names = {"hanging": "h1 h2", "without agent": "h3 h4 h5 h6", "no way back": "h7 h8", "one machine": "h9 h10 h11"}
    clusters = {
        name: HostCluster(many_hosts, tmp_path_factory.mktemp("waits"), on.split()) for name, on in names.items()
    }
    hosts, known = many_hosts.root / "hosts", many_hosts.root / "known_hosts"
    with ExitStack() as stack:
        # Of two servers small amounts of data reach each other, and no more: all ranks wait.
        stack.enter_context(many_hosts.network("h2", "ip saddr 10.77.0.1 tcp sport != 22 quota over 1 mbytes drop"))
        expected = stack.enter_context(clusters["without agent"].planted(WITHOUT_AN_AGENT))
        # A firewall on an agent's way back. ssh answers from port 22: those packets pass.
        no_way = "ip saddr 10.77.0.254 tcp sport != 22 tcp flags & (syn | ack) == (syn | ack) tcp dport != 22 drop"
        stack.enter_context(many_hosts.network("h8", no_way))
        # h11 is another name of h10: the table has one machine twice.
        stack.enter_context(clusters["one machine"].changed(hosts, f"{hosts.read_text()}10.77.0.10 h11\n"))
        key = known.read_text().split(maxsplit=1)[1].splitlines()[0]
        stack.enter_context(clusters["one machine"].changed(known, f"{known.read_text()}h11 {key}\n"))
        pool = stack.enter_context(ThreadPoolExecutor())
        hanging = pool.submit(clusters["hanging"])
        without = pool.submit(clusters["without agent"].examined, "--no-links")
        no_way_back = pool.submit(clusters["no way back"].examined, "--no-links", "--join-timeout", "20")
        one_machine = pool.submit(clusters["one machine"].examined, "--no-links")
        found = {
            "hanging": (clusters["hanging"], *hanging.result()), "without agent": (expected, without.result()),
            "no way back": no_way_back.result(), "one machine": one_machine.result(),
        }  # fmt: skip
        many_hosts.on("h8", "pkill", "-9", "prted|orted")  # mpirun's own process there heard nothing of its end
    return found


def test_servers_whose_agents_do_not_come_or_do_not_answer_are_told_of(waited_for):
    expected, found = waited_for["without agent"]
    assert found == (1, expected, [0])


def test_a_server_that_does_not_reach_the_hub_is_told_of(waited_for):
    """Its agent starts, and is refused by a firewall on the way back; it says so within its patience."""
    code, found, told = waited_for["no way back"]
    assert (code, {which for _, which in found}, told) == (1, {(1,)}, [0])


def test_one_machine_under_two_names_is_refused_and_found_out(waited_for):
    code, found, _ = waited_for["one machine"]
    assert ("one-machine", (1, 2)) in found
    assert code == 1


def test_a_run_that_hangs_ends_within_its_limit_and_what_it_wrote_is_kept(waited_for):
    """By the run's own patience with ranks that hang: the doctor has no need to end it."""
    cluster, code, told, _ = waited_for["hanging"]
    (finding,) = [one for one in told["findings"] if one["severity"] == "breaks"]
    assert (code, finding["code"]) == (1, "trial-run-failed")
    kept = cluster.kept_run()
    assert str(kept) in finding["hint"]
    assert str(cluster.runs) not in finding["message"]
    assert [attempt.cause for attempt in Report.from_json(RunDir(kept).report.read_text()).attempts] == [Cause.HUNG]


# --- what is wrong with servers that come ---


def wrong_hosts_file(cluster, host):
    source = cluster.directory / "hosts"
    text = (cluster.root / "hosts").read_text()
    source.write_text(
        "".join(f"127.0.1.1 {host}\n" if line.endswith(f" {host}") else f"{line}\n" for line in text.splitlines())
    )
    return cluster.over(host, "/etc/hosts", source)


def other_torch(cluster, host):
    metadata = cluster.directory / "fake" / "torch-1.0.0.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.0.0\n")
    return cluster.shell(host, f"export PYTHONPATH={metadata.parents[1]}")


def other_table(cluster, host):
    other = table_of(cluster.directory / "other.json", cluster.names, 1, network="10.9")
    return cluster.over(host, cluster.table, other)


def small_packets(_, host):
    mtu = ("ip", "-n", f"tl{host}", "link", "set", "eth0", "mtu")
    return undone((*mtu, "1400"), *mtu, "1500")


def no_loopback(_, host):
    loopback = ("ip", "-n", f"tl{host}", "link", "set", "lo")
    return undone((*loopback, "down"), *loopback, "up")


def stale_program(cluster, host):
    program, stale = cluster.directory / "train.py", cluster.directory / "stale.py"
    program.write_text("print('new')")
    stale.write_text("print('stale')")
    return cluster.over(host, program, stale)


RISKS = {
    "own-name-is-loopback": wrong_hosts_file,
    "small-shared-memory": lambda cluster, host: cluster.over(host, "/dev/shm", options=("-o", "size=16m")),
    "shared-memory-closed": lambda cluster, host: cluster.over(host, "/dev/shm", options=("-o", "ro")),
    "few-open-files": lambda cluster, host: cluster.shell(host, "ulimit -n 128"),
    "mtu-differs": small_packets,
}
WOULD_BREAK_A_RUN = {
    "table-differs": other_table,
    "version-differs": other_torch,
    "disk-nearly-full": lambda cluster, host: cluster.over(host, cluster.runs, options=("-o", "size=50m")),
    "no-such-interface": lambda cluster, host: cluster.shell(host, "export GLOO_SOCKET_IFNAME=ib7"),
    "not-itself": no_loopback,
    "program-differs": stale_program,
    "cwd-missing": lambda cluster, host: cluster.over(host, cluster.cwd.parent),
}
BETWEEN = {
    ("unreachable", (8, 9)): 'iifname "v9" oifname "v10" tcp flags & (syn | ack) == syn tcp dport != 22 drop',
    ("large-packets-lost", (0, 1)): 'iifname "v1" oifname "v2" ether type ip meta length > 1000 drop',
}


def test_what_is_risky_is_found_where_it_is_and_nothing_else(cluster_of):
    """A run would not fail of it."""
    cluster = cluster_of(len(RISKS) + 1, devices=2)  # ranks of one host talk through its shared memory
    with cluster.planted(RISKS) as expected:
        assert cluster.examined("--no-links") == (0, expected, list(range(len(RISKS) + 1)))


def test_what_would_break_a_run_is_found_where_it_is_and_nothing_else(cluster_of):
    """Also on the way between servers, and a port that somebody has on the server of rank 0, where ranks would meet."""
    cluster = cluster_of(HOSTS)
    listen = f"import socket, sys; s = socket.create_server(('', {PORT})); print(flush=True); sys.stdin.read()"
    with ExitStack() as stack:
        listener = [cluster.root / "on", "h1", sys.executable, "-c", listen]
        listener = stack.enter_context(subprocess.Popen(listener, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        listener.stdout.readline()
        stack.enter_context(cluster.hosts.network("hub", *BETWEEN.values()))
        expected = stack.enter_context(cluster.planted(WOULD_BREAK_A_RUN)) | {*BETWEEN, ("port-taken", (0,))}
        found = cluster.examined(
            "--no-links", "--master-port", PORT, "--", sys.executable, cluster.directory / "train.py"
        )
    assert found == (1, expected, list(range(HOSTS)))


def test_a_wrong_clock_is_found(cluster_of):
    cluster = cluster_of(3)
    library = next((path for path in (FAKE_TIME, Path(os.environ.get("TL_FAKETIME", "/"))) if path.is_file()), None)
    if library is None:
        pytest.skip("no libfaketime here: apt install libfaketime, or its path in TL_FAKETIME")
    copy = shutil.copy(library, cluster.directory / "libfaketime.so")
    with cluster.shell("h2", f"export LD_PRELOAD={copy} FAKETIME=+90s FAKETIME_DONT_FAKE_MONOTONIC=1"):
        assert cluster.examined("--no-links") == (0, {("clock-skew", (1,))}, [0, 1, 2])


def test_a_slow_link_is_found_by_measuring(cluster_of):
    cluster = cluster_of(3)
    place = ("ip", "netns", "exec", "tlh2", "tc", "qdisc")
    slow = ("add", "dev", "eth0", "root", "tbf", "rate", "80mbit", "burst", "32kbit", "latency", "400ms")
    with undone((*place, *slow), *place, "del", "dev", "eth0", "root"):
        code, found, told = cluster.examined()
    assert (code, told) == (0, [0, 1, 2])
    assert ("slow-link", (1,)) in found


def test_what_ranks_of_one_server_fail_of_is_told_of_that_server(cluster_of):
    cluster = cluster_of(3)
    libraries = Path(importlib.util.find_spec("torch").origin).parent / "lib"
    with cluster.over("h2", libraries):
        assert cluster.examined() == (1, {("trial-run-failed", (1,))}, [0, 1, 2])
    assert "Error" in (cluster.kept_run() / "device1" / "train.log").read_text()
