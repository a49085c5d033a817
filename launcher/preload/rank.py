"""The first steps of a forked rank: they make it what an interpreter started for this rank alone would be.

Not imitated: ranks share the seed of `hash` if PYTHONHASHSEED does not set it, and have the preload process's addresses
in memory. /proc/self/environ shows the environment that the preload process was started with, and /proc/self/cmdline no
more of the command than fits where that process's own was.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # the part of it that is there without enum
import os
import sys
import time

from . import failure, names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .protocol import Connection
    from .serve import Shown

_NOT_STARTED = 126  # exit code
_LOOK_AGAIN_S = 0.0002


class Rank:
    """The agent's request for a rank, and what the process between has left to it."""

    def __init__(self, request: dict[str, Any], go: int, middle_pid: int) -> None:
        self.request = request
        self.go = go  # descriptor: gives a byte once the agent knows of all ranks, or the end of file
        self.middle_pid = middle_pid


def settle(rank: Rank, connection: Connection, agent_pid: int, shown: Shown) -> None:
    """Return when the program may begin; report a failure before that to the agent, and end with 126."""
    request = rank.request
    try:
        _wait_for_adoption(rank, agent_pid)
        os.setsid()
        if request["cpus"] is not None:
            os.sched_setaffinity(0, request["cpus"])
        _redirect(request["log"])
        for name in set(os.environ) - set(request["env"]):
            del os.environ[name]
        os.environ.update(request["env"])
        time.tzset()
        _draw_again()
        _refresh_notes()
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        names.show(shown.argv)
        names.rename(shown.name)
    except OSError as error:
        about = "" if error.filename is None else f"cannot use {os.fsdecode(error.filename)}: "
        _give_up(connection, request["key"], about + str(error.strerror))
    except BaseException as error:
        _give_up(connection, request["key"], repr(error))
    connection.close()
    failure.install(os.path.abspath(request["device_dir"]))


def _give_up(connection: Connection, key: int, reason: str) -> None:
    connection.send({"key": key, "error": reason[:1000]})
    os._exit(_NOT_STARTED)


def _wait_for_adoption(rank: Rank, agent_pid: int) -> None:
    """Wait until the process between has ended, and the agent is the parent and knows of this rank."""
    from .serve import die_with

    is_known = os.read(rank.go, 1)
    os.close(rank.go)
    if not is_known:  # the agent may have another process started for this rank
        raise RuntimeError("the process that forks ranks was ended")
    while os.getppid() == rank.middle_pid:  # its descriptors close a moment before its children get another parent
        time.sleep(_LOOK_AGAIN_S)
    die_with(agent_pid)


def _redirect(log: str) -> None:
    nowhere = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for descriptor, standard in ((nowhere, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, standard)
    os.close(nowhere)
    os.close(output)


def _draw_again() -> None:
    """Draw again what an interpreter draws by lot at its start: no two ranks may have the same."""
    numpy_random = sys.modules.get("numpy.random.mtrand")
    if numpy_random is not None:
        numpy_random.seed()  # `random` does so itself after a fork
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "default_generator"):
        torch.default_generator.seed()  # those of accelerators are made when a rank first uses one
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)
        process._children.clear()


def _refresh_notes() -> None:
    """Correct what modules note of the process and of the time when they are imported."""
    threading = sys.modules.get("threading")
    if threading is not None:
        note = getattr(threading.current_thread(), "_set_native_id", None)  # stale before Python 3.13
        if note is not None:
            note()
    logging: Any = sys.modules.get("logging")
    if logging is not None:  # the zero of `relativeCreated`
        logging._startTime = time.time_ns() if isinstance(logging._startTime, int) else time.time()
