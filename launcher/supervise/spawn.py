"""Start the process of a rank with its own environment, session and log, or turn this process into a rank."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from launcher.core.frozen import frozen
from launcher.core.run_dir import mark_of
from launcher.core.text import ranges
from launcher.logs.terminal import escaped
from launcher.preload.masking import masked

EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127
_MAX_COMPLAINT = 4096  # PIPE_BUF on Linux: writes up to this size are atomic
_CHANGED_BY_PYTHON = ("SIGPIPE", "SIGXFZ", "SIGXFSZ")  # Python ignores them, and exec keeps that
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# Loaded before any fork, because a child should do as little as possible between fork and exec.
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
# Variables that Python reads at its start, and torch, numpy and their libraries when they are loaded. Found by tracing
# getenv during the imports of torch, torch.distributed and torch._dynamo.
_READ_ONCE = (
    r"(PYTHON(?!BREAKPOINT$)|_PYTHON|LD_|MALLOC_|GLIBC_|LC_|OMP_|MKL_|KMP_|GOMP_|OPENBLAS_|GOTO_|NUMEXPR_|BLIS_|VECLIB_|I_MPI_|MPI_"
    r"|DNNL_|ONEDNN_|MKLDNN_|NPY_|NUMPY_|GFORTRAN_|ACC_|OPENSSL_|SYMPY_|MPMATH_|KINETO_|TORCH(?!ELASTIC_)|PYTORCH_"
    r"|AOT_|AOTINDUCTOR_|INDUCTOR_|TRITON_|CUTLASS_|CUTEDSL_).*|LANG|LANGUAGE|HOME|PATH|TMPDIR|TEMP|TMP"
)


def become_subreaper() -> None:
    """Make this process the parent of orphaned descendants, so that they stay in its process tree (Linux only)."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def signal_of_parents_end(number: int) -> None:
    """Ask the kernel to send a signal to this process when its parent ends.

    Check afterwards that the parent still exists. It is the thread that forked, so agents fork in their main thread.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


@frozen
class Program:
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    cwd: Path
    log: Path  # stdout and stderr both append to it
    cpus: tuple[int, ...] | None = None  # the cores that it may use; None: no restriction
    descriptors: tuple[int, ...] = ()  # descriptors of this process that it inherits under the same numbers
    stdin: bool = False  # it inherits this process's stdin; otherwise it reads /dev/null


def begin_log(log: Path, attempt: int) -> int:
    """Append a line to a log, to mark the start of an attempt. Return the offset at which the attempt's output begins.

    Never raises. Even if the disk is full, earlier output counts for the earlier attempt.
    """
    if attempt == 0:
        return 0
    with suppress(OSError), log.open("ab+", buffering=0) as file:
        last = b""
        while not last and (end := file.seek(0, os.SEEK_END)):
            file.seek(end - 1)
            last = file.read(1)  # empty if the log was truncated at this moment
        file.write(b"\n" * (last not in {b"", b"\n"}) + mark_of(attempt))
    with suppress(OSError):
        return log.stat().st_size
    return 0


class Complaints:
    """A pipe for the error messages of child processes that could not execute their programs.

    All children share it, so the number of ranks is not limited by descriptors. A child writes before it exits, so its
    message is available once it has been reaped.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()  # close-on-exec by default
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._reasons: dict[int, str] = {}

    def write(self, reason: str) -> None:
        """Send the agent the reason why the program could not be executed. Child processes call this."""
        # JSON needs at most twelve bytes per character, so no line exceeds the limit.
        line = json.dumps([os.getpid(), reason[: _MAX_COMPLAINT // 16]]).encode() + b"\n"
        os.write(self._writer, line)

    def reason_of(self, pid: int) -> str | None:
        """Return the reason why the ended child process `pid` could not execute its program, or None if it did."""
        with suppress(BlockingIOError):
            while chunk := os.read(self._reader, 1 << 16):
                self._reasons.update(json.loads(line) for line in chunk.splitlines())
        return self._reasons.pop(pid, None)

    def close(self) -> None:
        os.close(self._reader)
        os.close(self._writer)


def overlaid(inherited: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Apply `changes` to the environment `inherited`. The value None removes a variable."""
    merged = {name: value for name, value in inherited.items() if name not in changes}
    return merged | {name: value for name, value in changes.items() if value is not None}


def common(environments: Sequence[Mapping[str, str]]) -> dict[str, str]:
    first = environments[0] if environments else {}
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in environments)}


def read_at_import(environments: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the variables that libraries read only at import and that differ between the environments."""
    shared = common(environments)
    names = {name for environment in environments for name in environment if name not in shared}
    return sorted(name for name in names if re.fullmatch(_READ_ONCE, name))


def render_environment(environment: Mapping[str, str]) -> str:
    r"""Format an environment as sorted lines of NAME=VALUE, with secrets masked and newlines escaped."""
    text = ""
    for name in sorted(environment):
        value = masked(name, environment[name]).replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        text += f"{name}={value}\n"
    return text


def write_environment(path: Path, environment: Mapping[str, str]) -> None:
    """Write the environment to env.log, which only its owner can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123 - a descriptor
        file.write(render_environment(environment))


def keep_descriptors_private() -> None:
    """Set close-on-exec on all descriptors except the standard streams, so that ranks do not inherit them."""
    for name in os.listdir("/dev/fd"):  # noqa: PTH208 - names are numbers here, not paths
        with suppress(OSError):  # the listing includes its own descriptor, which is already closed
            if int(name) > 2:
                os.set_inheritable(int(name), False)


def spawn(program: Program, complaints: Complaints) -> int:
    """Fork a process that executes `program` in a new session, and return its pid.

    The program is killed without a grace period if this process ends first (see `signal_of_parents_end`).

    Raises:
        OSError: the process cannot be created (limits on processes or memory).
    """
    agent_pid = os.getpid()
    # A signal that arrives in the child before its handlers are reset would be handled as a signal to the agent.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _become(program, complaints, agent_pid)
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _become(program: Program, complaints: Complaints, agent_pid: int) -> None:
    """Execute the program in the child process, or report the error and exit. Never returns."""
    code = EXIT_NOT_EXECUTABLE
    try:
        with _using("a new session"):
            os.setsid()
        signal_of_parents_end(signal.SIGKILL)
        if os.getppid() != agent_pid:
            os._exit(128 + signal.SIGKILL)
        _prepare(program)
        try:
            os.execvpe(program.argv[0], program.argv, program.environment)  # noqa: S606 - no shell is wanted
        except OSError as error:
            complaints.write(f"cannot start {program.argv[0]}: {error.strerror}")
            code = EXIT_NOT_FOUND if error.errno == errno.ENOENT else EXIT_NOT_EXECUTABLE
    except OSError as error:
        complaints.write(f"cannot use {error.filename}: {error.strerror}")
    except BaseException as error:  # noqa: BLE001 - a child must never return into the agent's code
        complaints.write(repr(error))
    finally:
        os._exit(code)


def _prepare(program: Program) -> None:
    nowhere = os.open(os.devnull, os.O_RDONLY)
    output = os.open(program.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    with _using(str(program.log)):
        for descriptor, standard in ((0 if program.stdin else nowhere, 0), (output, 1), (output, 2)):
            os.dup2(descriptor, standard, inheritable=True)
    os.chdir(program.cwd)
    if program.cpus is not None and hasattr(os, "sched_setaffinity"):
        with _using(f"cores {ranges(program.cpus)}"):
            os.sched_setaffinity(0, program.cpus)
    for number in program.descriptors:
        os.set_inheritable(number, True)
    # Reset dispositions (Python ignores SIGPIPE and SIGXFSZ) and the mask, because exec keeps both.
    for signal_number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with suppress(OSError, ValueError):
            signal.signal(signal_number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


@contextmanager
def _using(what: str) -> Iterator[None]:
    """Set the file name of an OSError that the `with` block raises to `what`."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, what) from error


def become(argv: tuple[str, ...], environment: Mapping[str, str], log: Path | None) -> int:
    """Replace this process with the command `argv`. If a log is given, stdout and stderr are appended to it.

    Returns only on failure, with an exit code as from a shell, after writing the reason to the original stderr.

    Raises:
        OSError: the log cannot be opened.
    """
    stderr = os.dup(2)  # closed on exec
    if log is not None:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for standard in (1, 2):
            os.dup2(descriptor, standard, inheritable=True)
        os.close(descriptor)
    for name in _CHANGED_BY_PYTHON:
        with suppress(AttributeError):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvpe(argv[0], argv, environment)  # noqa: S606 - no shell is wanted
    except (OSError, ValueError) as error:  # ValueError: a null character
        reason = error.strerror if isinstance(error, OSError) else str(error)
        os.write(stderr, f"error: cannot start {escaped(argv[0])}: {reason}\n".encode(errors="backslashreplace"))
        return EXIT_NOT_FOUND if getattr(error, "errno", None) == errno.ENOENT else EXIT_NOT_EXECUTABLE
