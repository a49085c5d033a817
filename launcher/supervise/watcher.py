"""A process that outlives launcher and agent: if both are killed at one moment, it ends what the ranks have started.

The kernel kills the ranks themselves when their agent ends, but not what they have started. The watcher holds one end of
a pipe, launcher and agent the other. It sleeps until the launcher dismisses it, or until both have gone. Then it kills

* the members of the run's control group, where there is one;
* the sessions of the ranks that ran, also if a process there has another environment;
* every process of the same user whose environment names the run directory, in whichever session it is.

It has a session, a name and a command line of its own, so that neither Ctrl-C nor `pkill -9 -f tlaunch` reaches it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NoReturn

from launcher.core import env
from launcher.core.events import AgentStarted, RankEnded, RankStarted, SchedulerEnded, SchedulerStarted, from_line
from launcher.core.proc import PROC, every_process, is_readable
from launcher.core.run_dir import RunDir
from launcher.supervise.tree import FIRST_KILL_AGAIN_S, KILL_PATIENCE_S, LAST_KILL_AGAIN_S, RunGroup

NAME = "watch-ranks"  # as `ps` and `top` show it
NAMED_AFTER_S = 0.5  # what that takes would delay the start of ranks
_DISMISSED = b"."
_MAX_EVENTS_BYTES = 64 << 20
_MAX_ENVIRON_BYTES = 8 << 20


class Watcher:
    """The launcher's end. Start it before the agent is forked, which then holds the pipe open too."""

    def __init__(self, run_dir: RunDir) -> None:
        """Fork the watcher. Call while signals are held back: it never lets them act.

        Raises:
            OSError: no process or pipe could be made.
        """
        reader, self._writer = os.pipe()
        try:
            self._pid = os.fork()
            if self._pid == 0:
                _watch(reader, run_dir)
        finally:
            os.close(reader)

    def dismiss(self) -> None:
        """End the watcher, since nothing of the run is left, and wait for that."""
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
            _show_name(run_dir)
        if os.read(reader, 1) != _DISMISSED:
            end_what_is_left(run_dir)
    finally:
        os._exit(0)


def _let_go(kept: int) -> None:
    """Close all that the launcher had open: whoever reads from it must not wait for this process."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    for name in os.listdir("/dev/fd"):  # noqa: PTH208 - names are numbers here, not paths
        number = int(name)
        if number > 2 and number != kept:
            with suppress(OSError):
                os.close(number)


def _show_name(run_dir: RunDir) -> None:
    from launcher.preload.run_main import rename_process, show_command_line  # noqa: PLC0415 - the launcher needs none of it

    rename_process(NAME)
    show_command_line([NAME, str(run_dir.root)])


def end_what_is_left(run_dir: RunDir) -> None:
    """Kill what ranks have left, again and again until nothing is found, or what is found cannot be killed."""
    sessions, agent_pid = _sessions(run_dir)
    group = None if agent_pid is None else RunGroup(agent_pid)
    deadline, again_s = time.monotonic() + KILL_PATIENCE_S, FIRST_KILL_AGAIN_S
    while time.monotonic() < deadline:
        if group is not None:
            group.kill()
        found = list(_left(run_dir, sessions))
        if not found:
            break
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(again_s)
        again_s = min(2 * again_s, LAST_KILL_AGAIN_S)
    if group is not None:
        group.remove()


def _sessions(run_dir: RunDir) -> tuple[set[int], int | None]:
    """Return the sessions of ranks, and of MindSpore's scheduler, that had not ended, and the agent's pid.

    Those of ranks that had ended before may be somebody else's by now.
    """
    leaders: dict[int | None, int] = {}  # by global rank; None stands for the scheduler
    agent_pid = None
    for line in _read(str(run_dir.events), _MAX_EVENTS_BYTES).splitlines():
        with suppress(ValueError, RecursionError):
            match (stamped := from_line(line)) and stamped.event:
                case AgentStarted(agent=agent):
                    agent_pid = agent.pid
                case RankStarted(global_rank=rank, pid=pid):
                    leaders[rank] = pid
                case RankEnded(global_rank=rank):
                    leaders.pop(rank, None)
                case SchedulerStarted(pid=pid):
                    leaders[None] = pid
                case SchedulerEnded():
                    leaders.pop(None, None)
    return set(leaders.values()), agent_pid


def _left(run_dir: RunDir, sessions: set[int]) -> Iterator[int]:
    mark = f"{env.TLAUNCH_RUN_DIR}={run_dir.root}".encode(errors="surrogateescape")
    for process in every_process():
        if not process.living or process.pid == os.getpid() or _name_of(process.pid) == NAME:
            continue  # the watcher of a run that a rank has begun ends that run
        if process.session in sessions or mark in _read(f"{PROC}/{process.pid}/environ", _MAX_ENVIRON_BYTES).split(
            b"\0"
        ):
            yield process.pid


def _name_of(pid: int) -> str:
    return _read(f"{PROC}/{pid}/comm", 64).decode(errors="replace").strip()


def _read(path: str, limit_bytes: int) -> bytes:
    """Return the beginning of a file; nothing where it cannot be read. Never waits for a pipe."""
    data = b""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            while len(data) < limit_bytes and (block := os.read(descriptor, 1 << 20)):
                data += block
        finally:
            os.close(descriptor)
    except OSError:
        pass
    return data
