"""The process that keeps logs small while ranks write them (`--log-max-size`): launcher/logs/rotation.py does the work.

It is a process of its own, since compressing takes time that an agent does not have. It ends when the agent does, and
at any moment without harm: what it was about to move stays where it is.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from launcher.core.events import Trouble
from launcher.supervise.event_log import EventLog

NICENESS = 5  # ranks come first
FINISH = b"f"
PATIENCE_S = 5.0  # a disk that does not answer must not keep a run from ending
_TICK_S = 0.01
_MAX_WARNING_BYTES = 4096  # PIPE_BUF on Linux: written as a whole or not at all


class LogKeeper:
    """Keeps each of `logs` (by global rank) below `max_bytes`, or nothing at all where that is None.

    Call `start` before any thread exists, then `take` whenever `fileno` is readable, and `close` at the end.
    All that is told goes to `event_log`.
    """

    def __init__(self, logs: Mapping[int, Path], max_bytes: int | None, event_log: EventLog) -> None:
        self._logs, self._max_bytes, self._event_log = logs, max_bytes, event_log
        self._pid: int | None = None
        self._warnings = -1
        self._silent = False  # it will never tell anything any more
        self._life = -1  # its end tells the process that the agent has gone

    @property
    def processes(self) -> Collection[int]:
        """What must live on while ranks are ended."""
        return () if self._pid is None else (self._pid,)

    def fileno(self) -> int:
        """Readable when there is something to tell; -1 where there is no such process, or no longer one."""
        return -1 if self._silent else self._warnings

    def start(self) -> None:
        """Fork the process, if there is anything to keep small."""
        if self._max_bytes is None:
            return
        warnings, their_warnings = os.pipe()
        their_life, life = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            for descriptor in (warnings, their_warnings, their_life, life):
                os.close(descriptor)
            self._event_log.record(Trouble(f"logs grow without limit, as no process could be made: {error.strerror}"))
            return
        if pid == 0:
            _keep_small(self._logs, self._max_bytes, their_life, their_warnings)
        os.close(their_warnings)
        os.close(their_life)
        os.set_blocking(warnings, False)
        self._pid, self._warnings, self._life = pid, warnings, life

    def take(self) -> None:
        """Tell of what went wrong. Does not block."""
        if self.fileno() < 0:
            return
        with suppress(BlockingIOError):
            while told := os.read(self._warnings, 1 << 16):
                for warning in told.decode(errors="replace").splitlines():
                    self._event_log.record(Trouble(warning))
            self._silent = True  # it has ended: `note_ends` tells how

    def note_ends(self, statuses: Mapping[int, int]) -> None:
        """These children have been reaped: status by pid."""
        if self._pid in statuses:
            self._event_log.record(
                Trouble(f"logs grow without limit from now on: their keeper ended ({self._how(statuses)})")
            )
            self._pid = None

    def close(self, *, finish: bool) -> None:
        """End the process; with `finish` it may first compress what is left to be.

        Blocks until it is gone: for some seconds at most, a quarter of a minute where a disk does not answer.
        """
        if self._pid is not None:
            os.kill(self._pid, signal.SIGCONT)  # a stopped one could do neither
            ended = finish and self._finished()
            for number in (signal.SIGTERM, signal.SIGKILL):
                ended = ended or self._ended_by(number)
            self._pid = None
        self.take()
        self._forget_pipes()

    def _finished(self) -> bool:
        with suppress(OSError):
            os.write(self._life, FINISH)
        return self._reaped_within(PATIENCE_S)

    def _ended_by(self, number: int) -> bool:
        assert self._pid is not None, "there is one"
        os.kill(self._pid, number)
        return self._reaped_within(PATIENCE_S)

    def _reaped_within(self, seconds: float) -> bool:
        assert self._pid is not None, "there is one"
        deadline = time.monotonic() + seconds
        while os.waitpid(self._pid, os.WNOHANG) == (0, 0):
            if time.monotonic() >= deadline:
                return False
            time.sleep(_TICK_S)
        return True

    def _how(self, statuses: Mapping[int, int]) -> str:
        status = statuses[self._pid or 0]
        return f"exit code {status}" if status >= 0 else f"signal {-status}"

    def _forget_pipes(self) -> None:
        for descriptor in (self._warnings, self._life):
            if descriptor >= 0:
                os.close(descriptor)
        self._warnings = self._life = -1


class _AskedToEnd(BaseException):
    """Unwinds whatever is under way, so that no unfinished file is left."""


def _keep_small(logs: Mapping[int, Path], max_bytes: int, life: int, warnings: int) -> NoReturn:
    """In the child: never returns into the agent's code, whatever happens."""
    code = 1
    try:
        os.setsid()
        _close_all_but(life, warnings)
        _hear_nothing_but_sigterm()
        os.nice(NICENESS)
        from launcher.logs.rotation import Rotator, run  # noqa: PLC0415 - the agent needs none of it

        rotator = Rotator(logs, max_bytes)
        run(rotator, life, lambda warning: _tell(warnings, warning))
        if os.read(life, 1) == FINISH:
            rotator.finish()
            for warning in rotator.warnings():
                _tell(warnings, warning)
        code = 0
    except _AskedToEnd:
        code = 0
    except Exception as error:  # noqa: BLE001 - told, and then the agent sees that nobody keeps logs small
        _tell(warnings, f"logs cannot be kept small: {error!r}")
    finally:
        os._exit(code)


def _tell(warnings: int, warning: str) -> None:
    line = " ".join(warning.split()).encode(errors="replace")[: _MAX_WARNING_BYTES - 1] + b"\n"
    with suppress(OSError):  # the agent has gone
        os.write(warnings, line)


def _hear_nothing_but_sigterm() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, _end)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _end(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # another one must not interrupt the cleaning up
    raise _AskedToEnd


def _close_all_but(*kept: int) -> None:
    """The pipes between agent and head would stay open as long as this process has them."""
    for name in os.listdir("/dev/fd"):  # noqa: PTH208 - names are numbers here, not paths
        if int(name) > 2 and int(name) not in kept:
            with suppress(OSError):  # that of the listing itself
                os.close(int(name))
