"""A process that outlives launcher and agent: if both are killed at the same moment, it kills what the ranks started.

The kernel kills the ranks themselves when their agent ends, but not what they started. The watcher holds one end of
a pipe, launcher and agent the other. It sleeps until the launcher dismisses it or both are gone. Then it kills

* the members of the run's control group, where there is one;
* the sessions of the ranks that ran, whatever the environment of a process there;
* every process whose environment names the run directory, whatever its session. In a run over several servers, which
  may be on one machine, the environment has to name the heartbeat file of a rank of this server.

It has a session, a name and a command line of its own, so that neither Ctrl-C nor `pkill -9 -f tlaunch` reaches it.
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
        except OSError:
            os.close(self._writer)
            raise
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
    if run_dir.server_index is None:  # else other servers may be writing there
        for half_written in run_dir.root.glob(".*.partial"):
            with suppress(OSError):
                half_written.unlink()


class _Seen:
    """What the agent recorded of the present attempt, as far as it can be read."""

    def __init__(self, run_dir: RunDir) -> None:
        self.agent_pid: int | None = None
        # Of ranks, and MindSpore's scheduler (None), that had not ended: other sessions may be somebody else's by now.
        self.leaders: dict[int | None, int] = {}
        self.marks: set[bytes] = (
            set() if run_dir.server_index is not None else {_mark(env.TLAUNCH_RUN_DIR, run_dir.root)}
        )
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
        if not process.living or process.pid == os.getpid() or _name_of(process.pid) == NAME:
            continue  # the watcher of a run that a rank has begun ends that run
        if process.session in sessions or not marks.isdisjoint(
            _read(f"{PROC}/{process.pid}/environ", _MAX_ENVIRON_BYTES).split(b"\0")
        ):
            yield process.pid


def _name_of(pid: int) -> str:
    return _read(f"{PROC}/{pid}/comm", 64).decode(errors="replace").strip()


def _read(path: str, limit_bytes: int) -> bytes:
    """Return the beginning of a file; nothing if it cannot be read."""
    with suppress(OSError), os.fdopen(open_regular(path), "rb") as file:
        return file.read(limit_bytes)
    return b""
