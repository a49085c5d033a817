"""The preload process: imports what the program will need, and forks a process for every rank that is asked for.

It ends without a word when the agent's end of the socket closes, by SIGTERM, and with the agent. Ranks are forked by a child
that ends at once, so that the agent, a subreaper, becomes their parent.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # the part of it that is there without enum
import ctypes
import gc
import os
import sys
import time

from . import names
from .failure import out_of_the_way
from .fork_safety import why_unsafe
from .frames import message
from .protocol import Connection
from .rank import Rank, settle
from .run_main import Program, prepare, renew_main
from .start import note_imports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NAME = "tlaunch-preload"
_PR_SET_PDEATHSIG = 1
_MAX_THRESHOLD = 2**31 - 1  # objects: the garbage collector never starts


def serve(descriptor: int, born_with: dict[str, Any]) -> Program:
    """Serve the agent to the end; return in forked ranks only, with the program that they are to run."""
    began = time.perf_counter()
    former_name = names.name()
    names.rename(_NAME)
    connection = Connection(out_of_the_way(descriptor))
    # Not ignored, only kept waiting: ranks find both as a program expects them.
    _signal.pthread_sigmask(_signal.SIG_SETMASK, {_signal.SIGINT, _signal.SIGHUP})
    note_imports()
    first = connection.receive()
    if first is None:
        os._exit(0)
    die_with(first["agent_pid"])
    fields = first["program"]
    program = Program(fields["kind"], fields["target"], fields["arguments"])
    prepare(program, born_with)
    refusal = _import_uncollected(first["modules"])
    if refusal:
        connection.send(refusal)
        os._exit(0)
    connection.send({"ready": True, "seconds": time.perf_counter() - began})
    _serve_requests(connection, Shown(former_name, fields["shown_argv"]), first["agent_pid"])
    renew_main(program, born_with)
    return program


class Shown:
    """The name and the command of a rank in `ps`."""

    def __init__(self, name: str, argv: list[str]) -> None:
        self.name = name
        self.argv = argv


def die_with(parent_pid: int) -> None:
    """Be killed when the parent ends; end at once if it has ended already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(128 + _signal.SIGKILL)


def _import_uncollected(modules: list[str]) -> dict[str, Any] | None:
    """Do `_import` without garbage collection, and keep all that it made in memory that the ranks share.

    No collection, and no exit, goes through it. Ranks do not undo this: with torch it would cost each of them 60 MB, and a second at its end. Hardly anything that
    modules make is garbage, and looking for it is a tenth of the time that torch takes.
    """
    if not modules:
        return None
    thresholds = gc.get_threshold()
    gc.set_threshold(_MAX_THRESHOLD)
    refusal = _import(modules)
    if gc.get_threshold()[0] == _MAX_THRESHOLD:  # else a module has its own idea
        gc.set_threshold(*thresholds)
    gc.freeze()
    return refusal


def _import(modules: list[str]) -> dict[str, Any] | None:
    """Import one after the other; return what to report to the agent where this process may not be forked after that.

    A submodule that cannot be imported, of a package that can, is left out: the program may do without it.
    """
    for name in modules:
        try:
            __import__(name)
        except BaseException as error:
            reason = f"importing {name}: {type(error).__name__}: {message(error)}"[:1000]
            if not isinstance(error, Exception) or name.partition(".")[0] not in modules[: modules.index(name)]:
                return {"failed": reason}
            sys.stderr.write(f"left out: {reason}\n")
        unsafe = why_unsafe()
        if unsafe:
            return {"unsafe": f"importing {name} {unsafe}"}
    return None


def _serve_requests(connection: Connection, shown: Shown, agent_pid: int) -> None:
    """Fork ranks whenever the agent asks for some; return in a rank, once it is ready to become its program."""
    while True:
        message = connection.receive()
        if message is None:
            os._exit(0)
        for stream in (sys.stdout, sys.stderr):  # what imports have printed belongs to this process's log, once
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                pass
        requests = message["fork"]
        try:
            middle = os.fork()
        except OSError as error:
            for request in requests:
                connection.send({"key": request["key"], "error": f"no process could be made: {error.strerror}"})
            continue
        if middle == 0:
            settle(_fork_ranks(connection, requests), connection, agent_pid, shown)
            return
        _, status = os.waitpid(middle, 0)
        if status:
            connection.send({"failed": f"the process that forks ranks ended with wait status {status}"})
            os._exit(0)


def _fork_ranks(connection: Connection, requests: list[dict[str, Any]]) -> Rank:
    """Fork each rank from the process between, and end that; return in the ranks."""
    middle = os.getpid()
    reader, writer = os.pipe()
    for request in requests:
        try:
            pid = os.fork()
        except OSError as error:
            connection.send({"key": request["key"], "error": f"no process could be made: {error.strerror}"})
            continue
        if pid == 0:
            os.close(writer)
            return Rank(request, reader, middle)
        if not connection.send({"key": request["key"], "pid": pid}):
            os.kill(pid, _signal.SIGKILL)  # the agent would not know of it
    os.write(writer, b"." * len(requests))  # ranks that get no byte are not known to the agent, or not all of them
    os._exit(0)
