"""Process attributes that only Linux has. Elsewhere the functions do nothing, and say so."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# Loaded once, before any fork: a child between fork and exec should do as little as it can.
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def become_subreaper() -> bool:
    """Adopt every descendant whose parent ends, so that none can leave this process tree. False where impossible."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent_pid: int, number: int = signal.SIGKILL) -> bool:
    """Ask for that signal when the parent ends; exit at once if it has ended already. False where impossible.

    "Parent" is the thread that forked, which is why agents fork from their main thread only.
    """
    armed = signal_of_parents_end(number)
    if os.getppid() != parent_pid:
        os._exit(128 + number)
    return armed


def signal_of_parents_end(number: int) -> bool:
    """Ask for that signal, and do no more: whether the parent has ended already is to be looked for afterwards."""
    return _prctl(_PR_SET_PDEATHSIG, number)


def _prctl(option: int, value: int) -> bool:
    return _LIBC is not None and _LIBC.prctl(option, value, 0, 0, 0) == 0
