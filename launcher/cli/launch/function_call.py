"""Send a function to ranks that call it, and load what they return or raise.

Function and results are pickles in a temporary directory that only the user can access (launcher/preload/call_function.py).
cloudpickle pickles functions of a notebook, a REPL or `__main__` with their code, which ranks cannot import.
"""

from __future__ import annotations

import inspect
import io
import linecache
import marshal
import os
import pickle
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from launcher.cli.run_options import RunOptions
from launcher.core.errors import TlaunchError, UnreadableError, UsageError
from launcher.core.resources import CALL_FUNCTION
from launcher.core.run_report import Attempt
from launcher.preload.call_function import FUNCTION, RAISED, RETURNED, open_own
from launcher.program.preload_scan import DYNAMO, ROOTS
from launcher.program.program_command import is_python


class FunctionCall:
    """A call of a function in every rank. `close` removes its files."""

    def __init__(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Pickle the function and its arguments.

        Raises UsageError if that fails, or if they do not fit together, and UnreadableError if the file cannot be written.
        """
        self._name = getattr(function, "__qualname__", type(function).__qualname__).rpartition("<locals>.")[2]
        _check_arguments(self._name, function, args, kwargs)
        pickled = _pickled(self._name, function, args, kwargs)
        caller = pickle.dumps((sys.path, sys.argv, _interactive_sources()))
        try:
            self._directory = tempfile.mkdtemp(prefix="tlaunch-")
            self.close = weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
            Path(self._directory, FUNCTION).write_bytes(caller + pickled)
        except OSError as error:
            hint = "set TMPDIR to a directory with more space, or load large values in the function"
            raise UnreadableError(f"{self._name} and its arguments cannot be saved: {error}", hint=hint) from error

    def options(self, options: RunOptions) -> RunOptions:
        """Add the command of the ranks to the options. Modules that are slow to import are preloaded if loaded here."""
        loaded = [name for name in (*ROOTS, DYNAMO) if name in sys.modules]
        if options.preload is None and not options.no_preload and loaded and is_python(sys.executable):
            options = replace(options, preload=",".join(loaded))
        return replace(options, command=(sys.executable, CALL_FUNCTION, self._name, self._directory))

    def returned(self, attempt: Attempt) -> tuple[Any, ...]:
        """Return the value that each rank returned. Raises TlaunchError if a value is missing or cannot be loaded."""
        return tuple(self._returned(attempt.number, rank) for rank in range(len(attempt.exits)))

    def _returned(self, attempt: int, rank: int) -> Any:
        try:
            return self._load(RETURNED, attempt, rank)
        except FileNotFoundError:
            raise TlaunchError(f"rank {rank} exited with code 0 before {self._name}() returned") from None
        except Exception as error:
            raise TlaunchError(f"the value that rank {rank} returned cannot be unpickled: {error}") from error

    def raised(self, attempt: Attempt, rank: int) -> BaseException | None:
        """Return the exception that a rank raised, or None if there is none, or if it cannot be pickled or unpickled."""
        with suppress(Exception):
            error = self._load(RAISED, attempt.number, rank)
            return error if isinstance(error, BaseException) else None
        return None

    def _load(self, kind: str, attempt: int, rank: int) -> Any:
        with open_own(f"{self._directory}/{kind}-{attempt}-{rank}") as file:
            return pickle.load(file)  # noqa: S301 - only the user can write this file


def _check_arguments(name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some functions in C
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        hint = "pass arguments as launch(function, args=(1, 2), kwargs={'name': 3})"
        raise UsageError(f"args and kwargs do not fit {name}{signature}: {error}", hint=hint) from None


def _pickled(name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    try:
        import cloudpickle  # only for functions
    except ImportError:
        missing = "launching a function needs the package cloudpickle, which is not installed"
        raise UsageError(missing, hint="pip install cloudpickle") from None

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc] # it has no annotations
        def reducer_override(self, value: object) -> Any:
            if isinstance(value, CodeType):  # cloudpickle drops the file name, which tracebacks need
                return marshal.loads, (marshal.dumps(value),)
            return super().reducer_override(value)

    file = io.BytesIO()
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    is_own = module is None or module.__name__ == "__main__" or _is_importable(module)
    try:
        if module is not None and not is_own:
            cloudpickle.register_pickle_by_value(module)
        Pickler(file).dump((function, tuple(args), dict(kwargs)))
    except Exception as error:
        hint = "open files, connections and locks inside the function, and pass plain values, arrays or tensors"
        raise UsageError(f"{name} or its arguments cannot be pickled: {error}", hint=hint) from error
    finally:
        if module is not None and not is_own:
            cloudpickle.unregister_pickle_by_value(module)
    return file.getvalue()


def _is_importable(module: ModuleType) -> bool:
    """Return True if a new process finds the module. pytest, for example, can import tests from any directory."""
    spec, path = None, None
    for name in accumulate(module.__name__.split("."), "{}.{}".format):
        found = (finder.find_spec(name, path) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next(filter(None, found), None)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return spec is not None and spec.origin == getattr(module, "__file__", None)


def _interactive_sources() -> dict[str, Any]:
    """Return the entries of `linecache` for code that was typed, not read from a file."""
    return {
        name: (entry[0], None, entry[2], entry[3])  # without a time, `linecache` keeps the entry
        for name, entry in list(linecache.cache.items())
        if len(entry) == 4 and not os.path.exists(name)  # noqa: PTH110 - any name
    }
