"""The check that this process may be forked: by what it holds, not by what a module promises."""

from __future__ import annotations

import os
import sys
import time

_MAX_WAIT_S = 3.0
_DEVICES = ("/dev/nvidia", "/dev/davinci", "/dev/kfd", "/dev/dri/render", "/dev/hisi_hdc", "/dev/devmm_svm")
_ACCELERATORS = ("torch.cuda", "torch.xpu", "torch_npu.npu", "torch_mlu.mlu")


def why_unsafe() -> str | None:
    """Return the end of the sentence "importing X ..."; None if nothing speaks against a fork."""
    threads = _threads()
    if threads > 1:
        threads = _threads_after_a_fork()
    if threads > 1:
        return f"started {threads - 1} thread{'s' if threads > 2 else ''}"
    if _has_children():
        return "started a process"
    opened = _open_device()
    if opened:
        return f"opened {opened}"
    for name in _ACCELERATORS:  # what a module says of itself, without asking the device
        module = sys.modules.get(name)
        try:
            if module is not None and module.is_initialized():
                return f"initialised {name}"
        except Exception:
            continue
    return None


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _threads_after_a_fork() -> int:
    """Return how many are left once this process has forked: some libraries (OpenBLAS) end their threads for that.

    They start them again when there is work. A thread that was joined may still be on its way out of the system: it does
    not sleep, as those that stay mostly do.
    """
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    deadline = time.monotonic() + _MAX_WAIT_S
    while _threads() > 1 and _others_run() and time.monotonic() < deadline:
        time.sleep(0.01)
    return _threads()


def _others_run() -> bool:
    """Return whether every thread but the main one is on a processor, or waits for one, or is gone."""
    for name in os.listdir("/proc/self/task"):
        try:
            with open("/proc/self/task/" + name + "/stat", "rb") as file:
                state = file.read().rpartition(b") ")[2][:1]
        except OSError:  # gone meanwhile
            continue
        if int(name) != os.getpid() and state not in b"RXZ":
            return False
    return True


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _open_device() -> str | None:
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink("/proc/self/fd/" + name)
        except OSError:  # that of the listing itself
            continue
        if target.startswith(_DEVICES):
            return target
    return None
