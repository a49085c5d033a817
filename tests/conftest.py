"""No test may leave a process, an open pipe, socket or file, or a temporary file behind."""

import gc
import os
import random
import resource
import signal
import socket
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import hypothesis
import psutil
import pytest

from launcher.core.machine.proc import stat
from launcher.supervise.spawn import become_subreaper, keep_descriptors_private

from .parallel import (  # noqa: F401 - hooks
    pytest_collection_modifyitems,
    pytest_xdist_auto_num_workers,
    pytest_xdist_make_scheduler,
)

SETTLE_S = 60  # an agent that was left alone ends its ranks and writes its report first
# How long to wait for what must happen; never how long it may take. On a busy machine ranks that import torch may take a minute.
PATIENCE_S = 150
# The machine may be busy: how long an example takes, or the making of one, proves nothing. Examples are others in each
# run, so few of them find in a week of runs what many would find in one.
BUSY = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("busy", max_examples=40, **BUSY)
hypothesis.settings.load_profile("busy")
keep_descriptors_private()  # as agents do: whoever runs the tests may have left some open for every child
become_subreaper()  # else what a killed launcher orphans would go to init, unseen
# Under nohup, or in the background of a script, these are ignored, and every child would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
# readline, which pytest loads, puts the size of its terminal there, and workers of -n inherit it; no test's has that.
for variable in ("COLUMNS", "LINES"):
    os.environ.pop(variable, None)
# Runs are noted in the user's state directory; no test may write into a real one.
os.environ["XDG_STATE_HOME"] = "/dev/null/none"
# Made once per process by libraries, on purpose, and ended with it.
KEPT_PROCESSES = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
KEPT_DESCRIPTORS = ("/dev/", "anon_inode:[", "/proc/", "/memfd:")
KEPT_TEMPORARY_FILES = ("torchinductor_", "pymp-")


def pytest_collection_finish():
    gc.freeze()  # thousands of collected tests and what they import stay: no collection need look at them again


@contextmanager
def file_size_limit(size):
    """Have every write beyond `size` bytes of a file fail, as on a full disk."""
    before, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """No test may write into the user's cache."""
    os.environ["TLAUNCH_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def _no_process_left():
    before = _children()
    yield
    left = _children() - before
    deadline = time.monotonic() + SETTLE_S
    while left and time.monotonic() < deadline:
        _reap(left)
        time.sleep(0.01)
        left = _children() - before
    names = {pid: _command_line(pid) for pid in left}
    for pid in left:
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()
    assert not names, f"processes left behind: {names}"


@pytest.fixture(autouse=True)
def _no_descriptor_left():
    before = _descriptors()
    yield
    if _opened_since(before):
        gc.collect()  # a failed read's traceback may keep its file open until the next collection
    assert not _opened_since(before), "descriptors left open"


@pytest.fixture(scope="session", name="temporary_directories")
def _temporary_directories(tmp_path_factory):
    """The last of them is empty: a test that leaves nothing there leaves it to the next one.

    A new one costs more with each directory that a worker's tests have made before.
    """
    return [tmp_path_factory.mktemp("temporary")]


@pytest.fixture(autouse=True)
def _no_temporary_file_left(tmp_path_factory, temporary_directories, monkeypatch):
    directory = temporary_directories[-1]
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield
    if found := list(directory.iterdir()):
        temporary_directories.append(tmp_path_factory.mktemp("temporary"))
    left = [path.name for path in found if not _is_kept(path)]
    assert not left, f"temporary files left behind: {left}"


def _is_kept(path):
    """Of Open MPI an empty directory may stay, which it shares with all jobs of this user."""
    empty = path.name.startswith("ompi.") and not any(found.is_file() for found in path.rglob("*"))
    return empty or path.name.startswith(KEPT_TEMPORARY_FILES)


def wait_until(condition, what, patience_s=PATIENCE_S):
    deadline = time.monotonic() + patience_s
    begun = time.thread_time()
    while not (value := condition()):
        assert time.monotonic() < deadline, f"never seen: {what}"
        time.sleep(min(max(0.01, 3 * (time.thread_time() - begun)), 0.1))
        begun = time.thread_time()
    return value


@pytest.fixture(name="wait_until", scope="session")
def _wait_until():
    return wait_until


def executable(path, text="#!/bin/sh\n"):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def stub_of_mpi4py(directory, says):
    """A directory for PYTHONPATH whose mpi4py loads nothing, and says that it has loaded another MPI."""
    package = directory / "mpi4py"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("class rc:\n    initialize = True\n")
    (package / "MPI.py").write_text(f"def Get_library_version():\n    return {says!r}\n")
    return directory


def free_port():
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(min(10_000, lowest // 2), lowest)
        with suppress(OSError), socket.create_server(("", port)):
            return port


@contextmanager
def refusing_port():
    """A port of 127.0.0.1 at which nothing listens, and which nobody else gets meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def pids_in(runs):
    mark = f"TLAUNCH_RUN_DIR={runs}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended meanwhile
            if mark in path.read_bytes():
                found.append(int(path.parent.name))
    return found


@pytest.fixture
def install(tmp_path, monkeypatch):
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    return lambda name, script: executable(directory / name, f"#!/bin/sh\n{script}\n")


@pytest.fixture
def connected():
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        with theirs, server.accept()[0] as ours:
            yield ours, theirs


@pytest.fixture
def memory_group(request):
    """A control group that may use so many bytes as the test says, where this machine lets us make one."""
    version_1 = Path("/sys/fs/cgroup/memory")
    group = (version_1 if version_1.is_dir() else Path("/sys/fs/cgroup")) / f"tlaunch-test-{os.getpid()}"
    try:
        group.mkdir()
        limit = group / ("memory.limit_in_bytes" if version_1.is_dir() else "memory.max")
        limit.write_text(str(request.param), encoding="ascii")
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        pytest.skip(f"no memory control group can be made: {error}")
    yield group
    with suppress(FileNotFoundError):
        group.rmdir()


@pytest.fixture(scope="session")
def suspend():
    def stop(pid):
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: (found := stat(pid)) and found.stopped, f"that {pid} has stopped")

    return stop


@pytest.fixture(scope="session")
def reap():
    """Gives a function: the status, as in subprocess, of a process that becomes our child soon, if it is not yet."""

    def status_of(pid):
        wait_until(lambda: psutil.Process(pid).ppid() == os.getpid(), f"{pid} as our child")
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    return status_of


def _children():
    try:  # the kernel knows at once that there are none, where psutil reads of all processes of the machine
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return set()
    return {
        child.pid
        for child in psutil.Process().children(recursive=True)
        if not any(kept in _command_line(child.pid) for kept in KEPT_PROCESSES)
    }


def _command_line(pid):
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ""


def _reap(pids):
    for pid in pids:
        with suppress(psutil.NoSuchProcess, ChildProcessError):
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                os.waitpid(pid, os.WNOHANG)


def _opened_since(before):
    return {number: target for number, target in _descriptors().items() if before.get(number) != target}


def _descriptors():
    """Number and target of whatever a test could have opened; libraries keep devices and event queues open (inotify has no brackets)."""
    found = {}
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208 - several times for each test: no paths
        with suppress(OSError):  # the descriptor of the listing itself
            target = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115
            if not target.startswith(KEPT_DESCRIPTORS):
                found[number] = target
    return found
