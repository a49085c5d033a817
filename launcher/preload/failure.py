"""The failure hook: when a rank fails, write the reason to its failure.json.

    {"schema": 1, "time_ns": ..., "pid": ..., "kind": "exception" | "exit" | "os_exit", "type": "ValueError" | null,
     "message": ..., "where": "train.py:88 in step" | null, "traceback": ..., "status": 1, "thread": "MainThread"}

Secrets are masked. The first record is kept. Errors in this module are ignored, since the program must run as it would
without the hook.
"""

from __future__ import annotations

import _thread
import atexit
import faulthandler
import fcntl
import os
import sys
import time
from _json import encode_basestring_ascii
from _signal import SIG_IGN, SIGINT, SIGRTMAX, SIGTERM, signal  # type: ignore[import-not-found] # avoids what `signal` imports

from . import frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .headline import Headline

STACKS_SIGNAL = SIGRTMAX - 3  # writes the Python stacks of all threads to stacks.log
FILE = "failure.json"
STACKS_FILE = "stacks.log"
_SCHEMA = 1
_MAX_CHARS = 8000  # of a message, and of a traceback
_MIN_DESCRIPTOR = 100
_STATUSES_OF_WISHES = (128 + SIGINT, 128 + SIGTERM)


def to_json(value: Any) -> str:
    """Convert None, booleans, numbers, strings and dictionaries of these to JSON.

    The standard json package is not used, since the program may have its own `json.py` or `enum.py`.
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return str(encode_basestring_ascii(value))
    if isinstance(value, dict):
        return "{" + ", ".join(f"{to_json(key)}: {to_json(item)}" for key, item in value.items()) + "}"
    return repr(value)


class _Hook:
    """Writes the failure.json of this process, but not of processes that it forks."""

    def __init__(self, device_dir: str, headline: Headline | None) -> None:
        self.headline = headline
        self.path = os.path.join(device_dir, FILE)
        self.pid = os.getpid()
        self.has_written = False

    def write(self, fields: dict[str, Any]) -> None:
        if self.has_written or os.getpid() != self.pid:
            return
        self.has_written = True
        aside = f"{self.path}.{self.pid}"
        try:
            descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                rest = (to_json(fields) + "\n").encode("utf-8", "backslashreplace")
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            finally:
                os.close(descriptor)
            os.replace(aside, self.path)
        except OSError:
            try:
                os.unlink(aside)
            except OSError:  # even that is not available
                pass
        finally:
            # A user or an engine may have asked the rank to end.
            is_requested = fields["type"] == "KeyboardInterrupt" or fields["status"] in _STATUSES_OF_WISHES
            if self.headline is not None and not is_requested:
                self.headline.print_failure(fields)


_hook: _Hook | None = None
_leaving = False


def install(device_dir: str, engines_stderr: int | None = None) -> None:
    """Install the failure hook, which writes failures and requested stacks to files in `device_dir`.

    `engines_stderr` is a descriptor on which the first failure of a run is announced.
    """
    global _hook  # noqa: PLW0603 - one rank, one hook
    headline = None
    if engines_stderr is not None:
        from .headline import Headline  # supervised ranks need none

        try:
            headline = Headline(out_of_the_way(engines_stderr), device_dir)
        except OSError:  # it is closed
            pass
    _hook = _Hook(device_dir, headline)
    _wrap_os_exit()
    try:
        # Make faulthandler write the stacks of all threads: to stderr on a crash, to stacks.log on STACKS_SIGNAL.
        if sys.stderr is not None and not faulthandler.is_enabled():
            faulthandler.enable()
        path = os.path.join(device_dir, STACKS_FILE)
        file = out_of_the_way(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644))
        # At exit, faulthandler restores the previous handler. The default handler would kill a rank that is asked for
        # stacks then.
        signal(STACKS_SIGNAL, SIG_IGN)
        faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True, chain=False)
    except (OSError, ValueError, RuntimeError, AttributeError):
        pass


def note_exception(error: BaseException) -> None:
    time_ns, status = time.time_ns(), 130 if isinstance(error, KeyboardInterrupt) else 1
    try:
        try:
            found = frames.places(frames.of_program(error.__traceback__, error))
            _record(time_ns, "exception", status, error=error, found=found)
        finally:
            _leave_mpi_with(status)
    except Exception:
        pass


def exit_status(stop: SystemExit) -> int:
    """Return the exit code that CPython gives a process that ends with this SystemExit."""
    return 0 if stop.code is None else stop.code & 0xFF if isinstance(stop.code, int) else 1


def note_exit(stop: SystemExit) -> None:
    time_ns = time.time_ns()
    try:
        status = exit_status(stop)
        if not status:
            return
        try:
            # The traceback of sys.exit itself says nothing; the exception that led to it may.
            found = frames.places(frames.of_program(stop.__traceback__))
            message = "" if isinstance(stop.code, int) else frames.message(stop.code)
            _record(time_ns, "exit", status, error=stop.__context__, found=found, message=message)
        finally:
            _leave_mpi_with(status)
    except Exception:
        pass


def _record(
    time_ns: int,
    kind: str,
    status: int,
    *,
    error: BaseException | None,
    found: list[tuple[str, int, str]],
    message: str | None = None,
) -> None:
    if _hook is None:
        return
    message = message or ("" if error is None else frames.message(error))
    traceback = frames.without_secrets(frames.text(error, found))
    is_exit = kind != "exception"
    fields = {
        "schema": _SCHEMA,
        "time_ns": time_ns,
        "pid": _hook.pid,
        "kind": kind,
        "type": None if error is None else frames.kind(error),
        "message": frames.without_secrets(message[: 2 * _MAX_CHARS])[:_MAX_CHARS],
        "where": frames.where_of_exit(found) if is_exit else frames.where(found + frames.place_of_syntax_error(error)),
        "traceback": frames.shortened(traceback, found, _MAX_CHARS),
        "status": status,
        "thread": _thread_name(),
    }
    _hook.write(fields)


def _thread_name() -> str:
    threading = sys.modules.get("threading")  # without importing it
    if threading is None:
        return "MainThread"
    thread = threading._active.get(_thread.get_ident())
    return "unknown" if thread is None else str(thread.name)


def _leave_mpi_with(status: int) -> None:
    """Register an exit handler that ends a failed MPI rank with `status` after all other exit handlers.

    A failed MPI rank must not enter MPI_Finalize, which mpi4py calls last. There it would wait for the other ranks, and
    they for it; the job would hang and show no failure. (`python -m mpi4py` calls MPI_Abort instead, which gives ranks
    no grace period.)
    """
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if mpi is None or sys.modules["mpi4py"].rc.finalize is False:
        return
    if mpi.Is_initialized() and not mpi.Is_finalized() and mpi.COMM_WORLD.Get_size() > 1:
        pid = os.getpid()
        atexit.register(lambda: _leave(status, pid))


def _leave(status: int, pid: int) -> None:
    """Run all other exit handlers, then exit. This handler is registered last, so that it is called first."""
    global _leaving  # noqa: PLW0603 - running the exit handlers would call this function again
    if _leaving or os.getpid() != pid:
        return
    _leaving = True
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    os._exit(status)


def _wrap_os_exit() -> None:
    original = os._exit
    current_frame = sys._getframe  # bound locally: module globals are gone at the very end
    record, places, exception = _record, frames.places_of_stack, sys.exc_info

    def _exit(status):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - signature of os._exit
        try:
            if isinstance(status, int) and status & 0xFF:
                record(time.time_ns(), "os_exit", status & 0xFF, error=exception()[1], found=places(current_frame(1)))
        except Exception:
            pass
        original(status)

    _exit.__module__, _exit.__qualname__, _exit.__doc__ = "os", "_exit", original.__doc__
    os._exit = _exit


def out_of_the_way(descriptor: int) -> int:
    """Move an open file to a high descriptor with close-on-exec, and return the new descriptor.

    The first file that the program opens then gets the same descriptor as without tlaunch.
    """
    try:
        moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _MIN_DESCRIPTOR)
    except OSError:
        os.set_inheritable(descriptor, False)
        return descriptor
    os.close(descriptor)
    return moved
