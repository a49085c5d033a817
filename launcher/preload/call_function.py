"""The program of ranks that call a function for `tlaunch.launch`.

python .../preload/call_function.py NAME DIRECTORY

Only the user can access DIRECTORY. Its file `function` holds two pickles: the caller's `sys.path`, `sys.argv` and
interactive source code, then the function and its arguments. Each rank writes a pickle of the returned value or of the
exception to `returned-ATTEMPT-RANK` or `raised-ATTEMPT-RANK`. NAME is for `ps` and the run's name.
"""

from __future__ import annotations

import linecache
import os
import pickle
import stat
import sys
import traceback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

FUNCTION, RETURNED, RAISED = "function", "returned", "raised"
tlaunch_is_loading = False  # if true in `__main__`, `tlaunch.launch` refuses to start more ranks


def main() -> None:
    name, directory = sys.argv[1:]
    end = f"{os.environ['TLAUNCH_ATTEMPT']}-{os.environ['RANK']}"
    try:
        function, args, kwargs = _load(f"{directory}/{FUNCTION}")
        _write(f"{directory}/{RETURNED}-{end}", name, function(*args, **kwargs))
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        try:
            _write(f"{directory}/{RAISED}-{end}", name, error)
        except Exception:  # the caller gets the traceback as text
            pass
        raise


def open_own(path: str) -> BinaryIO:
    """Open a regular file of this user. Raises PermissionError if the file belongs to another user."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise PermissionError(f"{path} is not a regular file of this user")
    return os.fdopen(descriptor, "rb")


def _load(path: str) -> Any:
    global tlaunch_is_loading  # noqa: PLW0603 - read from outside
    tlaunch_is_loading = True
    with open_own(path) as file:
        sys.path[:], sys.argv[:], sources = pickle.load(file)  # noqa: S301 - only the user can write this file
        if sources:  # show them in tracebacks; Python's own hook reads only files
            linecache.cache.update(sources)
            sys.excepthook = traceback.print_exception
        call = pickle.load(file)  # noqa: S301 - the same
    tlaunch_is_loading = False
    return call


def _write(path: str, name: str, value: object) -> None:
    import cloudpickle  # found in the caller's `sys.path`

    aside = f"{path}.partial"
    try:
        with open(aside, "wb") as file:
            cloudpickle.dump(value, file)
    except MemoryError:
        raise
    except OSError as error:
        hint = "write large values to files, or set TMPDIR to a larger directory"
        raise OSError(f"the value that {name}() returned does not fit in {path}: {error.strerror}; {hint}") from None
    except Exception as error:
        hint = "return plain values, arrays or tensors"
        raise TypeError(f"the value that {name}() returned cannot be pickled: {error}; {hint}") from None
    os.replace(aside, path)


if __name__ == "__main__":
    main()
