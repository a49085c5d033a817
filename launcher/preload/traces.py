"""Find objects whose finalisation a user could notice: unwritten buffers, `__del__`, `finally` in a generator."""

from __future__ import annotations

import _io
import _weakref
import gc
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Types with a visible finalisation but no `__del__`, and types whose `__del__` has no visible effect.
_WRITING = frozenset({"sqlite3.Connection", "_dbm.dbm", "_gdbm.gdbm"})
_SILENT = frozenset({"_socket.socket", "socket.socket", "torch.multiprocessing.reductions.StorageWeakRef"})
_RUNNING = ("gi_frame", "cr_frame", "ag_frame")  # frames of generators and coroutines; None once they have ended


def are_left(modules: frozenset[str] = frozenset()) -> bool:
    """Return True if the garbage collector knows an object whose finalisation could be noticed.

    `modules`: weak references whose callbacks are functions of these modules also count. So do objects whose methods
    raise when inspected.
    """
    silent: set[type] = set()
    try:
        for one in gc.get_objects():
            kind = type(one)
            if kind in silent:
                continue
            if issubclass(kind, _weakref.ref):
                if getattr(one.__callback__, "__module__", None) in modules:
                    return True
            elif not _has_an_end(kind):
                silent.add(kind)
            elif not _is_silent(one, kind):
                return True
    except BaseException:
        return True
    return False


def _has_an_end(kind: type) -> bool:
    """Return True if an action runs when an object of this type is freed."""
    return any("__del__" in vars(base) or _name(base) in _WRITING for base in kind.__mro__)


def _is_silent(one: Any, kind: type) -> bool:
    if issubclass(kind, _io._IOBase):
        # File classes of other modules can have arbitrary methods.
        is_plain = kind.__module__ == "_io" and (kind is _io.FileIO or one.closed or not one.writable())
        return is_plain or _is_standard(one)
    for frame in _RUNNING:
        if hasattr(kind, frame):
            return getattr(one, frame) is None
    return _name(kind) in _SILENT


def _is_standard(file: Any) -> bool:
    """Return True for a standard stream or its buffer, which is flushed separately."""
    streams = sys.__stdout__, sys.__stderr__
    return any(file is stream or file is getattr(stream, "buffer", None) for stream in streams if stream is not None)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
