"""`tlaunch run --detach`: the launcher continues in a new session; the command returns when the run has started.

    parent ── fork ──> child: new session, no terminal, output to console.log ──> agent, attend, exit
      └── waits for one byte ("started") or the end of the pipe ("failed"), reports it, exits

Closing the terminal affects only the parent's session.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from launcher.cli.text.stdout import say, write_out
from launcher.core.errors import EXIT_FAILURE, EXIT_OK, exit_code_of
from launcher.logs.log_file import tail
from launcher.logs.terminal import printable

if TYPE_CHECKING:
    from launcher.cluster.launcher_loop import Observer
    from launcher.core.events import TimestampedEvent

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FIRST_PRIVATE = 3  # descriptors below are stdin, stdout and stderr


class _Interrupted(BaseException):
    """Raised if a signal interrupts the wait. Like KeyboardInterrupt, it does not inherit from Exception."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Detached:
    """A handle for a detached launcher. The parent and the child process each have their own handle."""

    def __init__(self, console_log: Path, child: int | None, pipe_fd: int) -> None:
        self._console_log = console_log
        self._child = child
        self._pipe_fd = pipe_fd

    @property
    def is_parent(self) -> bool:
        return self._child is not None

    def report_started(self) -> None:
        """Report to the parent process that the run has started. Later calls do nothing."""
        if self._pipe_fd >= 0:
            with suppress(OSError):  # the parent was killed
                os.write(self._pipe_fd, b".")
            os.close(self._pipe_fd)
            self._pipe_fd = -1

    def wait_started(self, name: str, reference: str | None) -> int:
        """Wait, in the parent process, until the run has started or failed, and return the exit code.

        `reference` is the run's name for other commands, quoted for a shell; None prints only the name. Ctrl-C, SIGTERM
        or SIGHUP during the wait ends the run.
        """
        try:
            started = self._wait()
        except _Interrupted as interrupted:
            say(f"{signal.Signals(interrupted.number).name}: ending {printable(name)}")
            return exit_code_of(-interrupted.number)
        if started:  # stdout gets only the name, for scripts
            write_out(f"{name}\n")
            if reference is not None:
                say("running in the background:")
                for what, command in (("output", "logs -f"), ("ranks", "top"), ("stop it", "stop")):
                    say(f"  {f'{what}:':11} tlaunch {command} {printable(reference)}")
            return EXIT_OK
        _, status = os.waitpid(self._child or 0, 0)
        with suppress(OSError):
            print(tail(self._console_log).decode(errors="replace").rstrip("\n"), file=sys.stderr)
        return exit_code_of(os.waitstatus_to_exitcode(status)) or EXIT_FAILURE

    def _wait(self) -> bool:
        """Wait until the child process reports or exits. Return True if it reported that the run has started.

        If a signal arrives, or arrived before the fork, forward it to the child and raise _Interrupted.
        """
        # `nohup` and background jobs of a shell ignore signals; keep that.
        heeded = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]

        def interrupt(number: int, _frame: FrameType | None) -> None:
            for other in ENDING:  # another signal must not interrupt the cleanup
                signal.signal(other, signal.SIG_IGN)
            os.kill(self._child or 0, number)
            raise _Interrupted(number)

        former = {number: signal.signal(number, interrupt) for number in heeded}
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, heeded)  # pending signals are delivered here
            return bool(os.read(self._pipe_fd, 1))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(self._pipe_fd)
            for number, handler in former.items():
                signal.signal(number, handler)


class Announcing:
    """An observer that forwards all calls to another observer, and reports the start of the run at the first event."""

    def __init__(self, observer: Observer, detached: Detached) -> None:
        self._observer = observer
        self._detached = detached

    def event(self, stamped: TimestampedEvent) -> None:
        self._detached.report_started()
        self._observer.event(stamped)

    def interrupted(self, number: int, *, at_once: bool) -> None:
        self._observer.interrupted(number, at_once=at_once)

    def tick(self) -> bool:
        return self._observer.tick()


def detach(console_log: Path) -> Detached:
    """Fork a child process that leads a new session, has no stdin, and writes its output to `console_log`.

    Call this after creating the run directory, and before starting any thread or agent. Afterwards the child must call
    `report_started`, and the parent `wait_started`. Raises OSError if `console_log` cannot be created, or fork fails.
    """
    log_fd = os.open(console_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        reader, writer = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child:
            os.close(writer)
            return Detached(console_log, child, reader)
        os.close(reader)
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard, target in enumerate((nowhere, log_fd, log_fd)):
            os.dup2(target, standard)
        os.close(nowhere)
        # Close descriptors from the shell, so that readers of our stdout and holders of locks do not wait for the run.
        # Descriptors that this process opened are not inheritable and stay open.
        for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():  # noqa: PTH112, PTH208
            with suppress(OSError):  # the descriptor of listdir itself
                if int(name) >= FIRST_PRIVATE and os.get_inheritable(int(name)):
                    os.close(int(name))
    finally:
        os.close(log_fd)
    return Detached(console_log, None, writer)
