"""The end of a forked rank: as CPython's, but for what was there before the fork.

At its end CPython takes every module apart, and then the C library calls what libraries have registered with it. In a rank of
torch that copies thousands of pages that ranks share, and takes most of the time that preloading has saved. Here, in the
order of CPython's `Py_FinalizeEx`:

    1. non-daemon threads are joined, and what is registered with `atexit` is called: by CPython, with `Ending` last
    2. stdout and stderr are flushed, and signal handlers removed
    3. the modules that the rank itself has loaded are removed and cleared, `__main__` among them; garbage is collected
    4. stdout and stderr are flushed again
    5. the C library flushes its streams, and the process ends without calling what libraries have registered

Nothing is assumed of what a program does with preloaded modules: the garbage collector knows all that was made since
`gc.freeze`. Where something of it outlives step 3 whose end could be seen, CPython does the rest. It does so too
where a step fails, and it does all where the program has failed, `begin` finds a reason, or `_needs_python` does: a library that
was loaded since the fork, above all, whose end is its own affair. Whenever CPython goes on while something is there whose end
could be seen, it finalises frozen objects, too, since one of them may hold it.
"""

from __future__ import annotations

import _io
import _signal  # type: ignore[import-not-found] # the part of it that is there without enum
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

# By these a library is loaded that may wait for the end of the C library, as profilers do; or CPython is to report at its end.
_WAITING_FOR_THE_END = (
    "LD_PRELOAD", "LD_AUDIT", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "GCOV_PREFIX", "PYTHONMALLOCSTATS",
    "PYTHONDUMPREFS", "PYTHONDUMPREFSFILE",
)  # fmt: skip
# Nothing shows of their end. (google is protobuf, which tensorboard imports.)
_PACKAGES = frozenset({"torch", "numpy", "google"})
_KNOWN = _PACKAGES | {"launcher"} | sys.stdlib_module_names
# What modules of the standard library are linked with. (The C library loads others, libnss_*, to look names up.)
_LIBRARIES = frozenset(
    {"libbz2", "libcrypto", "libexpat", "libffi", "liblzma", "libsqlite3", "libssl", "libuuid", "libz"}
)
# Types whose end shows though they have no `__del__`, and some with a `__del__` that does not show.
_WRITING = frozenset({"sqlite3.Connection", "_dbm.dbm", "_gdbm.gdbm"})
_SILENT = frozenset({"_socket.socket", "socket.socket", "torch.multiprocessing.reductions.StorageWeakRef"})
_RUNNING = ("gi_frame", "cr_frame", "ag_frame")  # of generators and their like; None once they have ended


class Ending:
    """The end of this process. Make it before anything is imported for the program, and fork afterwards."""

    def __init__(self) -> None:
        self.is_success = False  # the program has ended with exit code 0
        self._is_for_python = atexit._ncallbacks() > 0  # those would be called after `run`
        self._is_full = _traces_are_left()  # CPython is to finalise what is frozen, too
        self._is_frozen = False
        self._last_module = ""
        self._libraries: set[str] = set()
        self._since_the_fork: list[Any] = []
        atexit.register(self.run)

    def import_module(self, name: str) -> None:
        """Import a module, and look at what it makes and loads unless it is known."""
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
        """Leave what is there now out of garbage collection, and of the end."""
        gc.freeze()
        self._is_frozen = True
        self._libraries = _libraries()

    def begin(self) -> None:
        """Note where the rank begins. Call in the forked process, with the program's environment."""
        self._last_module = next(reversed(sys.modules))
        if not self._is_frozen or self._is_full or any(map(os.environ.get, _WAITING_FOR_THE_END)):
            self._is_for_python = True
            return
        _leave_out_finalizers()
        self._since_the_fork = [self]

    def run(self) -> None:
        """End the process if that can be done here. Called by `atexit`, after all others."""
        own: list[str] = []
        try:
            own = self._own_modules()
            is_short = self.is_success and not self._is_for_python and not _needs_python(self._libraries)
            if is_short and self._take_apart(own):
                ctypes.CDLL(None).fflush(None)
                posix._exit(0)  # `os._exit` may be the program's own
        except BaseException:
            pass
        if self._is_full or _traces_are_left(frozenset(own)):  # CPython goes on
            gc.unfreeze()

    def _own_modules(self) -> list[str]:
        """Return the names of the modules that the rank has loaded, in order."""
        own = []
        for name in reversed(sys.modules):  # not all of them: to look at a name copies its page
            if name == self._last_module:
                break
            own.append(name)
        return ["__main__", *own[::-1]] if "__main__" in sys.modules else own[::-1]

    def _take_apart(self, own: list[str]) -> bool:
        """Do steps 2 to 4; return whether nothing is left for CPython."""
        if not _are_flushed():
            return False
        for number in range(1, _signal.NSIG):
            if callable(_signal.getsignal(number)):
                _signal.signal(number, _signal.SIG_DFL)
        if gc.isenabled():  # it finalises a buffer before the file that it writes to if it has seen both before
            gc.collect()
        # These may hold what the program has made.
        atexit._clear()
        sys.excepthook = sys.__excepthook__
        sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
        try:
            _clear(own)
        finally:
            _leave_out_detached_streams()
        if not any(one is self._since_the_fork for one in gc.get_objects()):  # the program has called gc.freeze
            return False
        return not _traces_are_left(frozenset(own)) and _are_flushed()


def _leave_out_finalizers() -> None:
    """Let torch's registered operators be: to take hundreds of them back takes as long as all the rest of the end."""
    weakref: Any = sys.modules.get("weakref")
    for finalizer, info in list(weakref.finalize._registry.items()) if weakref else ():
        if _root(getattr(info.func, "__module__", None) or "") == "torch":
            finalizer.atexit = False


def _needs_python(libraries: set[str]) -> bool:
    """Return whether CPython has to end the process, for what can be known before."""
    distributed: Any = sys.modules.get("torch.distributed.distributed_c10d")
    return bool(
        _thread._count()  # daemon threads run until CPython stops them
        or "mpi4py.MPI" in sys.modules  # finalised by CPython last of all
        or (distributed is not None and distributed.is_initialized())  # a process group may have work to finish
        or _is_any_unknown(_libraries() - libraries)
        or sys.flags.verbose
        or sys.flags.dev_mode
        or _warns_of_unclosed_files()
    )


def _libraries() -> set[str]:
    """Return the paths of the libraries in this process, compiled modules among them."""
    with open("/proc/self/maps", "rb") as file:
        return {"/" + os.fsdecode(line.rstrip(b"\n")).partition("/")[2] for line in file if b".so" in line}


def _is_any_unknown(libraries: set[str]) -> bool:
    """Return whether one belongs neither to Python nor to torch and the like, which leave nothing to do at the end."""
    known = _directories_of_packages() if libraries else ()
    return not all(_is_of_python(library) or library.startswith(known) for library in libraries)


def _is_of_python(library: str) -> bool:
    *directories, name = library.split("/")
    own_name = name.partition(".so")[0].partition("-")[0]
    return "lib-dynload" in directories or own_name in _LIBRARIES or own_name.startswith("libnss_")


def _directories_of_packages() -> tuple[str, ...]:
    """Return where torch and the like have been imported from, and what wheels have beside that."""
    paths = [os.path.realpath(path) for name in _PACKAGES for path in getattr(sys.modules.get(name), "__path__", ())]
    return tuple(f"{path}{suffix}/" for path in paths for suffix in ("", ".libs"))


def _warns_of_unclosed_files() -> bool:
    """Return whether a ResourceWarning may be shown: it would name a line of this file."""
    warnings: Any = sys.modules.get("warnings") or _warnings
    for action, text, category, module, line in warnings.filters:
        if issubclass(ResourceWarning, category):
            if action != "ignore":
                return True
            if text is None and module is None and line == 0:
                return False
    return True


def _are_flushed() -> bool:
    """Flush stdout and stderr; return whether that was possible. If not, CPython fails too, and says so."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
        except Exception:
            return False
    return True


def _leave_out_detached_streams() -> None:
    """Leave no stream in sys that the program has detached: to flush one fails, and the exit code would be 120."""
    for name in ("stdin", "stdout", "stderr"):
        try:
            getattr(sys, name).closed  # noqa: B018 - raises
        except ValueError:
            setattr(sys, name, None)
        except Exception:
            continue


def _clear(names: list[str]) -> None:
    """Remove modules, and clear those that something holds, from the last to the first: CPython's `finalize_modules`."""
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
    """Take the values of a module's names away, those with one underscore first."""
    for is_first in (True, False):
        for name in list(values):
            begins = name.startswith("_") and not name.startswith("__")
            if begins == is_first and name != "__builtins__":
                values[name] = None


def _root(name: str) -> str:
    return name.partition(".")[0]


def _traces_are_left(modules: frozenset[str] = frozenset()) -> bool:
    """Return whether the end of something that the garbage collector has in view could be seen.

    A user sees buffers that are written, `__del__`, and the `finally` of a generator. `modules`: a weak reference whose callback is a function of one of them counts, too. So does an object whose own methods
    fail when they are asked.
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
    """Return whether something happens when an object of this type is no longer held."""
    return any("__del__" in vars(base) or _name(base) in _WRITING for base in kind.__mro__)


def _is_silent(one: Any, kind: type) -> bool:
    if issubclass(kind, _io._IOBase):
        # Other modules' classes of files have methods of any kind.
        is_plain = kind.__module__ == "_io" and (kind is _io.FileIO or one.closed or not one.writable())
        return is_plain or _is_standard(one)
    for frame in _RUNNING:
        if hasattr(kind, frame):
            return getattr(one, frame) is None
    return _name(kind) in _SILENT


def _is_standard(file: Any) -> bool:
    """Return whether it is, or belongs to, a stream that is flushed by itself."""
    streams = sys.__stdout__, sys.__stderr__
    return any(file is stream or file is getattr(stream, "buffer", None) for stream in streams if stream is not None)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
