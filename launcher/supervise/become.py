"""Replace this process by a rank's program: no process of ours stays between an engine and its rank."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from launcher.logs.terminal import escaped
from launcher.supervise.spawn import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND

_CHANGED_BY_PYTHON = ("SIGPIPE", "SIGXFZ", "SIGXFSZ")  # it ignores them, and what is ignored outlives exec


def become(argv: tuple[str, ...], environment: Mapping[str, str], log: Path | None) -> int:
    """Run `argv` in this process, stdout and stderr appended to `log`, unless that is None. stdin stays.

    Returns only when that failed, after saying why on the stderr that this process had: an exit code as of a shell.

    Raises:
        OSError: the log cannot be opened.
    """
    stderr = os.dup(2)  # closed on exec
    if log is not None:
        _append_to(log)
    for name in _CHANGED_BY_PYTHON:
        with suppress(AttributeError):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvpe(argv[0], argv, environment)  # noqa: S606 - no shell is wanted
    except (OSError, ValueError) as error:  # ValueError: a null character
        reason = error.strerror if isinstance(error, OSError) else str(error)
        os.write(stderr, f"error: cannot start {escaped(argv[0])}: {reason}\n".encode(errors="backslashreplace"))
        return EXIT_NOT_FOUND if getattr(error, "errno", None) == errno.ENOENT else EXIT_NOT_EXECUTABLE


def _append_to(log: Path) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for standard in (1, 2):
        os.dup2(descriptor, standard, inheritable=True)
    os.close(descriptor)
