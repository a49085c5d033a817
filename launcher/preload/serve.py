"""The fork server: imports the modules that the program needs, and forks one process per rank on request.

It exits silently when the agent closes the socket or ends, and on SIGTERM. A short-lived child forks the ranks, so that
the agent, as a subreaper, becomes their parent. Each forked rank then sets up the state that a newly started
interpreter would have.

Not imitated: ranks share the hash seed unless PYTHONHASHSEED is set, and the memory addresses of the fork server.
/proc/self/environ shows the environment of the fork server. /proc/self/cmdline shows only as much of the command as
fits the fork server's own.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # the C part of `signal`, which does not import enum
import ctypes
import gc
import os
import sys
import time
from _json import make_scanner

from . import failure
from .ending import Ending
from .fork_safety import why_unsafe
from .frames import message, without_secrets
from .run_main import Program, note_imports, prepare, process_name, rename_process, renew_main, show_command_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NAME = "tlaunch-preload"
_PR_SET_PDEATHSIG = 1
_NOT_STARTED = 126  # exit code
_LOOK_AGAIN_S = 0.0002
_MAX_THRESHOLD = 2**31 - 1  # objects: garbage collection never starts


def serve(descriptor: int, born_with: dict[str, Any]) -> tuple[Program, Ending]:
    """Serve the agent until it ends. Return only in forked ranks, with the program to run and its `Ending`."""
    began = time.perf_counter()
    ending = Ending()
    former_name = process_name()
    rename_process(_NAME)
    connection = Connection(failure.out_of_the_way(descriptor))
    # Blocked, not ignored: ranks find both signals in the state that a program expects.
    _signal.pthread_sigmask(_signal.SIG_SETMASK, {_signal.SIGINT, _signal.SIGHUP})
    note_imports()
    first = connection.receive()
    if first is None:
        os._exit(0)
    _die_with(first["agent_pid"])
    fields = first["program"]
    program = Program(fields["kind"], fields["target"], fields["arguments"])
    prepare(program, born_with)
    if refusal := _import_uncollected(first["modules"], ending):
        connection.send(refusal)
        os._exit(0)
    connection.send({"ready": True, "seconds": time.perf_counter() - began})
    request, go, middle_pid = _serve_requests(connection)
    _settle(request, go, middle_pid, connection, first["agent_pid"])
    show_command_line(fields["shown_argv"])
    rename_process(former_name)
    renew_main(program, born_with)
    ending.begin()
    return program, ending


class _Rules:
    """The settings that `json`'s C scanner expects."""

    strict = False
    object_hook = object_pairs_hook = None
    parse_float = parse_constant = float
    parse_int = int


class Connection:
    """The socket to the agent, which all forked processes share.

    A message is a JSON object on one line. Each line is one write, so lines are never mixed.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._received = b""

    def receive(self) -> Any:
        """Wait for the next message and return it, or None if the connection is closed."""
        while b"\n" not in self._received:
            try:
                chunk = os.read(self._descriptor, 1 << 20)
            except OSError:
                chunk = b""
            if not chunk:
                return None
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        scan: Any = make_scanner(_Rules())  # type: ignore[arg-type]
        return scan(os.fsdecode(line), 0)[0]

    def send(self, message: dict[str, Any]) -> bool:
        """Send a message. Return False if the agent has closed the connection."""
        try:
            os.write(self._descriptor, failure.to_json(message).encode() + b"\n")
        except OSError:
            return False
        return True

    def close(self) -> None:
        os.close(self._descriptor)


def _die_with(parent_pid: int) -> None:
    """Ask the kernel to kill this process when its parent ends. If the parent is already gone, exit at once."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(128 + _signal.SIGKILL)


def _import_uncollected(modules: list[str], ending: Ending) -> dict[str, Any] | None:
    """Import the modules without garbage collection, and freeze their objects in memory that ranks share.

    Garbage collection and a rank's shutdown do not touch these objects, unless `Ending` requires it. With torch that
    saves each rank 60 MB and one second. Imports create hardly any garbage, and collecting takes a tenth of torch's
    import time.
    """
    if not modules:
        return None
    thresholds = gc.get_threshold()
    gc.set_threshold(_MAX_THRESHOLD)
    refusal = _import(modules, ending)
    if gc.get_threshold()[0] == _MAX_THRESHOLD:  # otherwise a module set its own threshold
        gc.set_threshold(*thresholds)
    ending.freeze()
    return refusal


def _import(modules: list[str], ending: Ending) -> dict[str, Any] | None:
    """Import the modules in order. If this process cannot be forked afterwards, return a report for the agent.

    A submodule that fails to import is skipped if its package was imported: the program may not need it.
    """
    for name in modules:
        try:
            ending.import_module(name)
        except BaseException as error:
            reason = f"importing {name}: {type(error).__name__}: {without_secrets(message(error))}"[:1000]
            if not isinstance(error, Exception) or name.partition(".")[0] not in modules[: modules.index(name)]:
                return {"failed": reason}
            sys.stderr.write(f"left out: {reason}\n")
        if unsafe := why_unsafe():
            return {"unsafe": f"importing {name} {unsafe}"}
    return None


def _serve_requests(connection: Connection) -> tuple[dict[str, Any], int, int]:
    """Fork ranks when the agent requests them. Return only in the ranks, with the result of `_fork_ranks`."""
    while True:
        message = connection.receive()
        if message is None:
            os._exit(0)
        for stream in (sys.stdout, sys.stderr):  # output of imports belongs in this process's log, once
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                pass
        requests = message["fork"]
        try:
            middle = os.fork()
        except OSError as error:
            for request in requests:
                connection.send({"key": request["key"], "error": f"cannot fork a process: {error.strerror}"})
            continue
        if middle == 0:
            return _fork_ranks(connection, requests)
        _, status = os.waitpid(middle, 0)
        if status:
            connection.send({"failed": f"the process that forks ranks ended with wait status {status}"})
            os._exit(0)


def _fork_ranks(connection: Connection, requests: list[dict[str, Any]]) -> tuple[dict[str, Any], int, int]:
    """Fork the requested ranks from an intermediate process, which then exits. Return only in the ranks.

    The values are the agent's request for the rank; a descriptor that yields a byte once the agent knows about all
    ranks, or end of file if it may not; and the pid of the intermediate process.
    """
    middle = os.getpid()
    reader, writer = os.pipe()
    for request in requests:
        try:
            pid = os.fork()
        except OSError as error:
            connection.send({"key": request["key"], "error": f"cannot fork a process: {error.strerror}"})
            continue
        if pid == 0:
            os.close(writer)
            return request, reader, middle
        if not connection.send({"key": request["key"], "pid": pid}):
            os.kill(pid, _signal.SIGKILL)  # the agent would not know about it
    os.write(writer, b"." * len(requests))  # without a byte, a rank knows that the agent may not know about all ranks
    os._exit(0)


def _settle(request: dict[str, Any], go: int, middle_pid: int, connection: Connection, agent_pid: int) -> None:
    """Set up the process of a rank. If that fails, report the error to the agent and exit with status 126."""
    try:
        # Wait until the intermediate process has ended and the agent, as the parent, knows about this rank.
        is_known = os.read(go, 1)
        os.close(go)
        if not is_known:  # the agent may have started another process for this rank
            raise RuntimeError("the process that forks the ranks exited unexpectedly")  # noqa: TRY301 - reported below
        while os.getppid() == middle_pid:  # the pipe closes shortly before the children get their new parent
            time.sleep(_LOOK_AGAIN_S)
        _die_with(agent_pid)
        os.setsid()
        if request["cpus"] is not None:
            os.sched_setaffinity(0, request["cpus"])
        nowhere = os.open(os.devnull, os.O_RDONLY)
        output = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for descriptor, standard in ((0 if request["stdin"] else nowhere, 0), (output, 1), (output, 2)):
            os.dup2(descriptor, standard)
        os.close(nowhere)
        os.close(output)
        for name in set(os.environ) - set(request["env"]):
            del os.environ[name]
        os.environ.update(request["env"])
        time.tzset()
        _draw_again()
        _refresh_notes()
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    except BaseException as error:
        reason = repr(error)
        if isinstance(error, OSError):
            about = "" if error.filename is None else f"cannot use {os.fsdecode(error.filename)}: "
            reason = about + str(error.strerror)
        connection.send({"key": request["key"], "error": reason[:1000]})
        os._exit(_NOT_STARTED)
    connection.close()
    failure.install(os.path.abspath(request["device_dir"]))


def _draw_again() -> None:
    """Reseed random number generators and renew the authentication key, so that they differ between ranks."""
    numpy_random = sys.modules.get("numpy.random.mtrand")
    if numpy_random is not None:
        numpy_random.seed()  # `random` reseeds itself after a fork
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "default_generator"):
        torch.default_generator.seed()  # generators of accelerators are created when a rank first uses one
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)
        process._children.clear()


def _refresh_notes() -> None:
    """Update the thread ID and the start time that modules recorded when they were imported."""
    threading = sys.modules.get("threading")
    if threading is not None and hasattr(threading.current_thread(), "_set_native_id"):
        threading.current_thread()._set_native_id()  # stale before Python 3.13
    logging: Any = sys.modules.get("logging")
    if logging is not None:  # the origin of `relativeCreated`
        logging._startTime = time.time_ns() if isinstance(logging._startTime, int) else time.time()
