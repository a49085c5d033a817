"""The failure hook: what ends a rank is told in its failure.json, at the time at which it happens.

    {"schema": 1, "time_ns": ..., "pid": ..., "kind": "exception" | "exit" | "os_exit", "type": "ValueError" | null,
     "message": ..., "where": "train.py:88 in step" | null, "traceback": ..., "status": 1, "thread": "MainThread"}

The first thing told stands. Whatever goes wrong here is kept silent: a program must run as it would without us.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from _signal import SIGRTMAX  # type: ignore[import-not-found] # without the imports of `signal`

from . import frames, mpi
from .protocol import to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STACKS_SIGNAL = SIGRTMAX - 3  # writes the Python stacks of all threads to stacks.log
FILE = "failure.json"
STACKS_FILE = "stacks.log"
_SCHEMA = 1
_LONGEST_TRACEBACK = 8000
_LONGEST_MESSAGE = 4000
_OUT_OF_THE_WAY = 100  # descriptors of ours begin here, so that a program's first file has the number it expects


class _Hook:
    """Where this process tells its failure. Processes that it forks are not the rank and tell nothing."""

    def __init__(self, device_dir: str) -> None:
        self.path = os.path.join(device_dir, FILE)
        self.pid = os.getpid()
        self.told = False

    def tell(self, fields: dict[str, Any]) -> None:
        if self.told or os.getpid() != self.pid:
            return
        self.told = True
        beside = f"{self.path}.{self.pid}"
        try:
            _write(beside, to_json(fields) + "\n")
            os.replace(beside, self.path)
        except OSError:
            os.unlink(beside)


_hook: _Hook | None = None


def install(device_dir: str) -> None:
    """Tell failures in `device_dir`, and stacks whenever STACKS_SIGNAL comes. Call in the rank's own process."""
    global _hook  # noqa: PLW0603 - one rank, one hook
    _hook = _Hook(device_dir)
    _wrap_os_exit()
    try:
        _show_stacks(device_dir)
    except (OSError, ValueError, RuntimeError, AttributeError):
        pass


def note_exception(error: BaseException) -> None:
    """The program ends with this."""
    time_ns = time.time_ns()
    try:
        found = frames.places(frames.of_program(error.__traceback__))
        _tell(time_ns, "exception", 1, error=error, found=found)
        mpi.leave_with(130 if isinstance(error, KeyboardInterrupt) else 1)
    except Exception:
        pass


def note_exit(stop: SystemExit) -> None:
    """The program ends by `sys.exit`, well or not."""
    time_ns = time.time_ns()
    try:
        status = _status(stop.code)
        if status:
            # A traceback of sys.exit tells nothing, but the exception that led to it might.
            found = frames.places(frames.of_program(stop.__traceback__))
            message = "" if isinstance(stop.code, int) else frames.message(stop.code)
            _tell(time_ns, "exit", status, error=stop.__context__, found=found, message=message)
            mpi.leave_with(status)
    except Exception:
        pass


def _status(code: object) -> int:
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def _tell(
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
    fields = {
        "schema": _SCHEMA,
        "time_ns": time_ns,
        "pid": _hook.pid,
        "kind": kind,
        "type": None if error is None else frames.kind(error),
        "message": (message or ("" if error is None else frames.message(error)))[:_LONGEST_MESSAGE],
        "where": frames.where(found),
        "traceback": frames.text(error, found)[-_LONGEST_TRACEBACK:],
        "status": status,
        "thread": _thread_name(),
    }
    _hook.tell(fields)


def _thread_name() -> str:
    threading = sys.modules.get("threading")
    if threading is None:
        return "MainThread"
    import _thread

    thread = threading._active.get(_thread.get_ident())
    return "unknown" if thread is None else str(thread.name)


def _wrap_os_exit() -> None:
    original = os._exit
    current_frame = sys._getframe  # kept here: at the very end the names of modules are gone
    tell, places, exception = _tell, frames.places_of_stack, sys.exc_info

    def _exit(status):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - signature of os._exit
        try:
            if isinstance(status, int) and status & 0xFF:
                tell(time.time_ns(), "os_exit", status & 0xFF, error=exception()[1], found=places(current_frame(1)))
        except Exception:
            pass
        original(status)

    _exit.__module__, _exit.__qualname__, _exit.__doc__ = "os", "_exit", original.__doc__
    os._exit = _exit


def _show_stacks(device_dir: str) -> None:
    """Of all threads: on standard error when the process crashes, in stacks.log on demand."""
    if sys.stderr is not None and not faulthandler.is_enabled():
        faulthandler.enable()
    path = os.path.join(device_dir, STACKS_FILE)
    file = out_of_the_way(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644))
    faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True, chain=False)


def out_of_the_way(descriptor: int) -> int:
    """The same file under a high number, where limits allow one; closed on exec."""
    import fcntl

    try:
        moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY)
    except OSError:
        os.set_inheritable(descriptor, False)
        return descriptor
    os.close(descriptor)
    return moved


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        rest = text.encode("utf-8", "backslashreplace")
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    finally:
        os.close(descriptor)
