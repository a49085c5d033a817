"""A process that survives launcher and agent. If both are killed at once, it kills the processes that ranks started.

When an agent ends, the kernel kills its ranks but not their child processes. The watcher holds one end of a pipe, and
launcher and agent hold the other. It sleeps until the launcher dismisses it or both are gone. Then it kills

* the members of the run's control group, if there is one;
* all processes in the sessions of ranks that were running;
* all processes with the run directory in their environment. In a run on several servers, which may share a machine, the
  environment must contain the heartbeat file of a rank of this server instead.

It has its own session, name and command line, so Ctrl-C and `pkill -9 -f tlaunch` do not reach it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from launcher.core import env
from launcher.core.events import (
    AgentStarted,
    AttemptStarted,
    Event,
    RankEnded,
    RankStarted,
    SchedulerEnded,
    SchedulerStarted,
    from_line,
)
from launcher.core.machine.proc import PROC, every_process, is_readable
from launcher.core.regular_files import open_regular
from launcher.core.run_dir import RunDir
from launcher.supervise.tree import FIRST_KILL_AGAIN_S, KILL_PATIENCE_S, LAST_KILL_AGAIN_S, RunGroup

NAME = "watch-ranks"  # as shown by `ps` and `top`
NAMED_AFTER_S = 0.5  # setting the name earlier would delay the start of ranks
_DISMISSED = b"."
_MAX_EVENTS_BYTES = 64 << 20
_MAX_ENVIRON_BYTES = 8 << 20


class Watcher:
    """The launcher's handle for the watcher process. Create it before the agent, which inherits the watcher's pipe."""

    def __init__(self, run_dir: RunDir) -> None:
        """Fork the watcher process. Call this while signals are blocked, so that the watcher never receives them."""
        reader, self._writer = os.pipe()
        try:
            self._pid = os.fork()
            if self._pid == 0:
                _watch(reader, run_dir)
        except OSError:
            os.close(self._writer)
            raise
        finally:
            os.close(reader)

    def dismiss(self) -> None:
        """End the watcher and wait for its exit. Call it when no process of the run is left."""
        with suppress(OSError):  # it was killed
            os.write(self._writer, _DISMISSED)
        os.close(self._writer)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _watch(reader: int, run_dir: RunDir) -> NoReturn:
    try:
        os.setsid()
        _let_go(reader)
        os.chdir("/")
        if not is_readable(reader, NAMED_AFTER_S):
            from launcher.preload.run_main import rename_process, show_command_line  # noqa: PLC0415 - only needed here

            rename_process(NAME)
            show_command_line([NAME, str(run_dir.root)])
        if os.read(reader, 1) != _DISMISSED:
            end_what_is_left(run_dir)
    finally:
        os._exit(0)


def _let_go(kept: int) -> None:
    """Close all descriptors except `kept`, so that the launcher's output pipes close when the launcher exits."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    for name in os.listdir("/dev/fd"):  # noqa: PTH208 - names are numbers here, not paths
        number = int(name)
        if number > 2 and number != kept:
            with suppress(OSError):
                os.close(number)


def end_what_is_left(run_dir: RunDir) -> None:
    """Kill the remaining processes of ranks until none is found or a time limit is reached."""
    seen = _Seen(run_dir)
    group = None if seen.agent_pid is None else RunGroup(seen.agent_pid)
    deadline, again_s = time.monotonic() + KILL_PATIENCE_S, FIRST_KILL_AGAIN_S
    while time.monotonic() < deadline:
        if group is not None:
            group.kill()
        found = list(_left(set(seen.leaders.values()), seen.marks))
        if not found:
            break
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(again_s)
        again_s = min(2 * again_s, LAST_KILL_AGAIN_S)
    if group is not None:
        group.remove()
    if run_dir.server_index is None:  # otherwise other servers may still write there
        for half_written in run_dir.root.glob(".*.partial"):
            with suppress(OSError):
                half_written.unlink()


class _Seen:
    def __init__(self, run_dir: RunDir) -> None:
        self.agent_pid: int | None = None
        # Of running ranks, and of MindSpore's scheduler (None). Sessions of ended ranks may belong to others now.
        self.leaders: dict[int | None, int] = {}
        self.marks = {_mark(env.TLAUNCH_RUN_DIR, run_dir.root)} if run_dir.server_index is None else set[bytes]()
        for line in _read(str(run_dir.events), _MAX_EVENTS_BYTES).splitlines():
            with suppress(ValueError):
                if (stamped := from_line(line)) is not None:
                    self._take(stamped.event, run_dir)

    def _take(self, event: Event, run_dir: RunDir) -> None:
        match event:
            case AgentStarted(agent=agent):
                self.agent_pid = agent.pid
            case AttemptStarted() if run_dir.server_index is not None:
                self.marks.clear()
            case RankStarted(global_rank=rank, pid=pid):
                self.leaders[rank] = pid
                if run_dir.server_index is not None:
                    self.marks.add(_mark(env.TLAUNCH_HEARTBEAT_FILE, run_dir.heartbeat(rank)))
            case RankEnded(global_rank=rank):
                self.leaders.pop(rank, None)
            case SchedulerStarted(pid=pid):
                self.leaders[None] = pid
            case SchedulerEnded():
                self.leaders.pop(None, None)
            case _:
                pass


def _mark(name: str, path: Path) -> bytes:
    return f"{name}={path}".encode(errors="surrogateescape")


def _left(sessions: set[int], marks: set[bytes]) -> Iterator[int]:
    for process in every_process():
        place = f"{PROC}/{process.pid}"
        if not process.living or process.pid == os.getpid() or _read(f"{place}/comm", 64).strip() == NAME.encode():
            continue  # a run that a rank started has its own watcher
        variables = _read(f"{place}/environ", _MAX_ENVIRON_BYTES).split(b"\0")
        if process.session in sessions or not marks.isdisjoint(variables):
            yield process.pid


def _read(path: str, limit_bytes: int) -> bytes:
    """Return the first `limit_bytes` bytes of a file, or empty bytes if the file cannot be read."""
    with suppress(OSError), os.fdopen(open_regular(path), "rb") as file:
        return file.read(limit_bytes)
    return b""
