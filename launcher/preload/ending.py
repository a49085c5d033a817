"""The end of a forked rank whose program has ended well: as CPython's, but for what was preloaded.

CPython takes all modules apart when it ends, and those that were preloaded, page by page, in each of the ranks that share them:
with torch that takes half as long as its import. Here, in the order of CPython's `Py_FinalizeEx`:

    1. non-daemon threads are joined, and what is registered with `atexit` is called
    2. the modules that the program itself has loaded, `__main__` among them, are cleared, so that their files are flushed and
       objects finalised; preloaded ones are left as they are
    3. stdout, stderr and the C library's streams are flushed

Nothing of it is done, and CPython ends the rank, where the difference could be seen: the program has failed, daemon threads still run, an MPI
library is open, which is finalised last of all, a profiler of the C library or of an accelerator is loaded by a variable, or the variable
TLAUNCH_TEARDOWN is "whole".
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from types import ModuleType
    from typing import Any

TEARDOWN, WHOLE = "TLAUNCH_TEARDOWN", "whole"
# By these a library is loaded that may have to be told of the end: by a function that the C library's `exit` calls.
_LOADS = ("LD_PRELOAD", "LD_AUDIT", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "GCOV_PREFIX")
_FLUSH_FAILED = 120  # CPython's exit code where stdout or stderr cannot be flushed


def end(preloaded: Collection[str]) -> None:
    """End this process with 0; return where CPython has to. `preloaded`: the names of modules that the program did not load itself.

    Raises what CPython's own end would raise here, KeyboardInterrupt while threads are joined.
    """
    ctypes: Any = sys.modules.get("ctypes") if "ctypes" in preloaded else None
    if ctypes is None or os.environ.get(TEARDOWN) == WHOLE or _has_mpi() or any(map(os.environ.get, _LOADS)):
        return  # few modules are preloaded, or none may be left as they are
    threading: Any = sys.modules.get("threading")
    if threading is not None:
        join = getattr(threading, "_shutdown", None)  # not there in a stand-in, such as coverage has for a time
        if join is None or any(thread.daemon for thread in threading.enumerate()):
            return
        join()
    import atexit
    import posix  # `os._exit` reports failures

    atexit._run_exitfuncs()
    if not _is_flushed():
        return  # CPython will tell of it
    leave, flush_all, status = posix._exit, ctypes.CDLL(None).fflush, _FLUSH_FAILED
    _clear(preloaded)
    if _is_flushed():
        status = 0
    flush_all(None)
    leave(status)


def _has_mpi() -> bool:
    """Return whether mpi4py has MPI open: it closes it when CPython has ended all else."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    return mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized()


def _is_flushed() -> bool:
    """Flush stdout and stderr; return whether that was possible."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception:
            return False
    return True


def _clear(preloaded: Collection[str]) -> None:
    """Clear the modules that are not `preloaded`: those that nothing holds at once, the others from the last to the first."""
    import gc
    import weakref

    names = [name for name in sys.modules if name not in preloaded or name == "__main__"]
    modules: list[Any] = []
    for name in names:
        try:
            modules.append(weakref.ref(sys.modules[name]))
        except TypeError:  # a program may put anything there
            pass
        sys.modules[name] = None  # type: ignore[assignment]
    gc.collect()
    for reference in reversed(modules):
        module = reference()
        if isinstance(module, type(sys)):
            _clear_one(module)
        del module
    gc.collect()


def _clear_one(module: ModuleType) -> None:
    """Take the values of a module away that something holds still, names with one underscore first, as CPython does."""
    values = module.__dict__
    for is_first in (True, False):
        for name in list(values):
            begins = name.startswith("_") and not name.startswith("__")
            if begins == is_first and name != "__builtins__" and values.get(name) is not None:
                values[name] = None
