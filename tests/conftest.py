"""No test may leave a process, an open pipe, socket or file, or a temporary file behind."""

import gc
import os
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from launcher.supervise.linux import become_subreaper
from launcher.supervise.spawn import keep_descriptors_private

SETTLE_S = 5
keep_descriptors_private()  # as agents do: whoever runs the tests may have left some open for every child
become_subreaper()  # else what a killed launcher orphans would go to init, unseen
# Under nohup, or in the background of a script, these are ignored, and every child would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
# Made once per process by libraries, on purpose, and ended with it.
KEPT_PROCESSES = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
KEPT_DESCRIPTORS = ("/dev/", "anon_inode:[", "/proc/", "/memfd:")
KEPT_TEMPORARY_FILES = ("torchinductor_", "pymp-")


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


@pytest.fixture(autouse=True)
def _no_temporary_file_left(tmp_path_factory, monkeypatch):
    directory = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield
    left = [path.name for path in directory.iterdir() if not path.name.startswith(KEPT_TEMPORARY_FILES)]
    assert not left, f"temporary files left behind: {left}"


def _children():
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
    found = {link.name: _target(link) for link in Path("/proc/self/fd").glob("*")}
    return {name: target for name, target in found.items() if not target.startswith(KEPT_DESCRIPTORS)}


def _target(link):
    try:
        return str(link.readlink())
    except OSError:  # the descriptor of the listing itself
        return "/proc/"
