"""Check that this process can be forked safely, from its actual state rather than from what modules promise."""

from __future__ import annotations

import os
import sys
import time

_MAX_WAIT_S = 3.0
_DEVICES = ("/dev/nvidia", "/dev/davinci", "/dev/kfd", "/dev/dri/render", "/dev/hisi_hdc", "/dev/devmm_svm")
_ACCELERATORS = ("torch.cuda", "torch.xpu", "torch_npu.npu", "torch_mlu.mlu")


def why_unsafe() -> str | None:
    """Describe why a fork would be unsafe, for example "started 2 threads". Return None if it is safe."""
    threads = _threads_after_a_fork() if _threads() > 1 else 1
    if threads > 1:
        return f"started {threads - 1} thread{'s' if threads > 2 else ''}"
    if _has_children():
        return "started a process"
    if opened := _open_device():
        return f"opened {opened}"
    for name in _ACCELERATORS:  # as recorded by the module, without asking the device
        try:
            if name in sys.modules and sys.modules[name].is_initialized():
                return f"initialised {name}"
        except Exception:
            continue
    return None


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _threads_after_a_fork() -> int:
    """Fork once and count the threads that are left. Libraries such as OpenBLAS stop their threads before a fork.

    They start them again when there is work. Joined threads that are still exiting are awaited; these do not sleep.
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
    """Return True if every thread except the main thread is running, runnable or gone."""
    for name in os.listdir("/proc/self/task"):
        try:
            with open("/proc/self/task/" + name + "/stat", "rb") as file:
                state = file.read().rpartition(b") ")[2][:1]
        except OSError:  # it ended meanwhile
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
        except OSError:  # the descriptor of this listing
            continue
        if target.startswith(_DEVICES):
            return target
    return None
