"""Finalise a forked rank as CPython would, but skip everything that existed before the fork.

CPython ends by clearing every module; then the C library calls the exit handlers of all libraries. In a rank with torch
this copies thousands of shared pages and costs most of the time that preloading saved. This module does less, in the
order of CPython's `Py_FinalizeEx`:

    1. CPython joins non-daemon threads and calls `atexit` functions, `Ending` last
    2. flush stdout and stderr, and remove signal handlers
    3. remove and clear the modules that the rank loaded itself, including `__main__`, and collect garbage
    4. flush stdout and stderr again
    5. flush the C library's streams, and exit without calling the exit handlers of libraries

The program may do anything with preloaded modules, because the garbage collector knows every object created since
`gc.freeze`. CPython finishes the rest if a step fails, or if an object with a visible finaliser survives
step 3. CPython does everything if the program failed, or if `begin` or `_needs_python` requires it, for example for a
library loaded after the fork. If CPython takes over while such an object exists, it also finalises frozen objects,
since one may hold it.
"""

from __future__ import annotations

import _io
import _signal  # type: ignore[import-not-found] # the C part of `signal`, which does not import enum
import _thread
import _warnings
import _weakref
import atexit
import ctypes
import gc
import os
import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# These load a library that may act when the process exits, such as a profiler, or make CPython print a report at exit.
_WAITING_FOR_THE_END = (
    "LD_PRELOAD", "LD_AUDIT", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "GCOV_PREFIX", "PYTHONMALLOCSTATS",
    "PYTHONDUMPREFS", "PYTHONDUMPREFSFILE",
)  # fmt: skip
# Packages whose finalisation has no visible effect. (google is protobuf, which tensorboard imports.)
_PACKAGES = frozenset({"torch", "numpy", "google"})
_KNOWN = _PACKAGES | {"launcher"} | sys.stdlib_module_names
# Libraries that the standard library links. (The C library also loads libnss_* to look up names.)
_LIBRARIES = {"libbz2", "libcrypto", "libexpat", "libffi", "liblzma", "libsqlite3", "libssl", "libuuid", "libz"}
# Types with a visible finalisation but no `__del__`, and types whose `__del__` has no visible effect.
_WRITING = frozenset({"sqlite3.Connection", "_dbm.dbm", "_gdbm.gdbm"})
_SILENT = frozenset({"_socket.socket", "socket.socket", "torch.multiprocessing.reductions.StorageWeakRef"})
_RUNNING = ("gi_frame", "cr_frame", "ag_frame")  # frames of generators and coroutines; None once they have ended


class Ending:
    """Finalises a forked process faster than CPython does. Create it before any module is imported for the program."""

    def __init__(self) -> None:
        self.is_success = False  # the program exited with code 0
        self._is_for_python = atexit._ncallbacks() > 0  # these would run after `run`
        self._is_full = _traces_are_left()  # CPython must also finalise frozen objects
        self._is_frozen = False
        self._last_module = ""
        self._libraries: set[str] = set()
        self._since_the_fork: list[Any] = []
        atexit.register(self.run)

    def import_module(self, name: str) -> None:
        """Import a module. If it is not in `_KNOWN`, check the objects it creates and the libraries it loads."""
        if _root(name) in _KNOWN:
            __import__(name)
            return
        gc.freeze()
        libraries = _libraries()
        try:
            __import__(name)
        finally:
            self._is_full |= _traces_are_left()
            self._is_for_python |= _is_any_unknown(_libraries() - libraries)

    def freeze(self) -> None:
        gc.freeze()
        self._is_frozen = True
        self._libraries = _libraries()

    def begin(self) -> None:
        """Record the state of this process before the program starts. Call this after the fork."""
        self._last_module = next(reversed(sys.modules))
        if not self._is_frozen or self._is_full or any(map(os.environ.get, _WAITING_FOR_THE_END)):
            self._is_for_python = True
            return
        # Unregistering hundreds of torch's operators takes as long as the rest of the shutdown.
        weakref: Any = sys.modules.get("weakref")
        for finalizer, info in list(weakref.finalize._registry.items()) if weakref else ():
            if _root(getattr(info.func, "__module__", None) or "") == "torch":
                finalizer.atexit = False
        self._since_the_fork = [self]

    def run(self) -> None:
        """If possible, exit without CPython's finalisation. `atexit` calls this function last."""
        own: list[str] = []
        try:
            own = self._own_modules()
            is_short = self.is_success and not self._is_for_python and not _needs_python(self._libraries)
            if is_short and self._take_apart(own):
                ctypes.CDLL(None).fflush(None)
                posix._exit(0)  # the program may have replaced `os._exit`
        except BaseException:
            pass
        if self._is_full or _traces_are_left(frozenset(own)):  # CPython finalises the rest
            gc.unfreeze()

    def _own_modules(self) -> list[str]:
        own: list[str] = []
        for name in reversed(sys.modules):  # stops early: reading a name copies its memory page
            if name == self._last_module:
                break
            own.insert(0, name)
        return ["__main__", *own] if "__main__" in sys.modules else own

    def _take_apart(self, own: list[str]) -> bool:
        """Remove the rank's own modules and flush its streams. Return True if CPython has nothing left to finalise."""
        if not _are_flushed():
            return False
        for number in range(1, _signal.NSIG):
            if callable(_signal.getsignal(number)):
                _signal.signal(number, _signal.SIG_DFL)
        if gc.isenabled():  # finalises a buffer before its file if it has seen both before
            gc.collect()
        # These may hold objects of the program.
        atexit._clear()
        sys.excepthook = sys.__excepthook__
        sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
        try:
            _clear(own)
        finally:
            _leave_out_detached_streams()
        if not any(one is self._since_the_fork for one in gc.get_objects()):  # the program called gc.freeze
            return False
        return not _traces_are_left(frozenset(own)) and _are_flushed()


def _needs_python(libraries: set[str]) -> bool:
    distributed: Any = sys.modules.get("torch.distributed.distributed_c10d")
    return bool(
        _thread._count()  # daemon threads run until CPython stops them
        or "mpi4py.MPI" in sys.modules  # CPython finalises it last
        or (distributed is not None and distributed.is_initialized())  # a process group may have unfinished work
        or _is_any_unknown(_libraries() - libraries)
        or sys.flags.verbose
        or sys.flags.dev_mode
        or _warns_of_unclosed_files()
    )


def _libraries() -> set[str]:
    with open("/proc/self/maps", "rb") as file:
        return {"/" + os.fsdecode(line.rstrip(b"\n")).partition("/")[2] for line in file if b".so" in line}


def _is_any_unknown(libraries: set[str]) -> bool:
    """Return True if any library is not from Python, from torch or from a similar package."""
    if not libraries:
        return False
    paths = [os.path.realpath(path) for name in _PACKAGES for path in getattr(sys.modules.get(name), "__path__", ())]
    known = tuple(f"{path}{suffix}/" for path in paths for suffix in ("", ".libs"))  # wheels add `.libs` directories
    return not all(_is_of_python(library) or library.startswith(known) for library in libraries)


def _is_of_python(library: str) -> bool:
    name = os.path.basename(library).partition(".so")[0].partition("-")[0]
    return "/lib-dynload/" in library or name in _LIBRARIES or name.startswith("libnss_")


def _warns_of_unclosed_files() -> bool:
    """Return True if the warning filters allow a ResourceWarning for a file that is not closed."""
    warnings: Any = sys.modules.get("warnings") or _warnings
    for action, text, category, module, line in warnings.filters:
        if issubclass(ResourceWarning, category):
            if action != "ignore":
                return True
            if text is None and module is None and line == 0:
                return False
    return True


def _are_flushed() -> bool:
    """Flush stdout and stderr. Return False if that fails, so that CPython tries again and prints the error."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
        except Exception:
            return False
    return True


def _leave_out_detached_streams() -> None:
    """Remove detached streams from `sys`, because a failed flush would change the exit code to 120."""
    for name in ("stdin", "stdout", "stderr"):
        try:
            getattr(sys, name).closed  # noqa: B018 - raises
        except ValueError:
            setattr(sys, name, None)
        except Exception:
            continue


def _clear(names: list[str]) -> None:
    """Remove modules, then clear those that are still referenced, as CPython's `finalize_modules` does."""
    references = []
    for name in names:
        if isinstance(sys.modules[name], type(sys)):
            references.append(_weakref.ref(sys.modules[name]))
        sys.modules[name] = None  # type: ignore[assignment]
    gc.collect()
    for reference in reversed(references):
        module = reference()
        if module is not None:
            _clear_values(module.__dict__)
        del module
    gc.collect()


def _clear_values(values: dict[str, Any]) -> None:
    for is_first in (True, False):
        for name in list(values):
            begins = name.startswith("_") and not name.startswith("__")
            if begins == is_first and name != "__builtins__":
                values[name] = None


def _root(name: str) -> str:
    return name.partition(".")[0]


def _traces_are_left(modules: frozenset[str] = frozenset()) -> bool:
    """Return True if there is an object whose finalisation could have a visible effect.

    Such effects are buffers that get written, `__del__`, and the `finally` of a generator. Weak references whose
    callbacks are functions of these `modules` also count. So do objects whose methods raise when inspected.
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
            elif not any("__del__" in vars(base) or _name(base) in _WRITING for base in kind.__mro__):
                silent.add(kind)
            elif not _is_silent(one, kind):
                return True
    except BaseException:
        return True
    return False


def _is_silent(one: Any, kind: type) -> bool:
    if issubclass(kind, _io._IOBase):
        # File classes of other modules can have arbitrary methods.
        if kind.__module__ == "_io" and (kind is _io.FileIO or one.closed or not one.writable()):
            return True
        streams = [stream for stream in (sys.__stdout__, sys.__stderr__) if stream is not None]  # flushed separately
        return any(one is stream or one is getattr(stream, "buffer", None) for stream in streams)
    for frame in _RUNNING:
        if hasattr(kind, frame):
            return getattr(one, frame) is None
    return _name(kind) in _SILENT


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
