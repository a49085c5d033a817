"""The launcher process of a run that `tlaunch.launch` started, and the handle of a run in the background.

The launcher is a separate process, because it forks and handles signals, which is unsafe with a notebook's threads or an
event loop. This process sends it the options, shows its output, and reads its answer.
"""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any, Generic, TextIO, TypeVar

from launcher.cli.launch.launch_result import LaunchResult
from launcher.cli.run_options import RunOptions
from launcher.core import errors
from launcher.core.codec import encode
from launcher.core.resources import module_argv
from launcher.core.run_dir import RunDir
from launcher.runs.record import read_recorded
from launcher.runs.status import look

CHILD = "launcher.cli.launch_process"
CHUNK_BYTES = 1 << 16
Result = TypeVar("Result", bound=LaunchResult)


class LauncherProcess:
    """The launcher of a run. It ends, with the run, if the thread that called `run` ends."""

    def __init__(self, options: RunOptions) -> None:
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, begin_fd: int | None = None) -> dict[str, Any]:
        """Run the launcher, and return the outcome or the error that it reports.

        When the run begins, the path of the run directory is written to `begin_fd`, which children can inherit.
        """
        begin_fds = () if begin_fd is None else (begin_fd,)
        with tempfile.TemporaryFile() as file, os.fdopen(_inheritable(file.fileno()), "rb") as answer:
            self._process = subprocess.Popen(
                module_argv(CHILD, *map(str, (os.getpid(), answer.fileno(), *begin_fds))),
                stdin=subprocess.PIPE,
                # In the background, no status line is drawn over what the user types.
                stdout=_output(sys.stdout, sys.__stdout__ if begin_fd is None else None),
                stderr=_output(sys.stderr, sys.__stderr__ if begin_fd is None else None),
                pass_fds=(answer.fileno(), *begin_fds),
                start_new_session=True,  # only this process gets the terminal's Ctrl-C, and forwards it once
            )
            with self._process as process:
                try:
                    assert process.stdin is not None
                    with suppress(BrokenPipeError), process.stdin as stdin:
                        stdin.write(json.dumps(encode(self._options)).encode())
                    interrupted = _attend(process)
                except BaseException:
                    process.terminate()
                    process.wait()
                    raise
            if interrupted:
                raise KeyboardInterrupt
            answer.seek(0)
            if content := answer.read():
                answered: dict[str, Any] = json.loads(content)
                return answered
        code = errors.exit_code_of(process.returncode)
        raise errors.TlaunchError(f"the launcher process ended with exit code {code} and reported no error")

    def terminate(self) -> None:
        """Ask the launcher to end the run, as `tlaunch stop` does."""
        if self._process is not None:
            self._process.terminate()


class Run(Generic[Result]):
    """A run in the background, from `tlaunch.launch(..., wait=False)`. It ends if this process ends."""

    run_dir: Path  # contains a log for each rank

    def __init__(self, launcher: LauncherProcess, work: Callable[[int], Result]) -> None:
        """Call `work` in a new thread, and wait until the run begins. Raises the error of `work` if it does not begin.

        `work` runs the launcher with the given `begin_fd`.
        """
        self._launcher = launcher
        self._error: BaseException | None = None
        reader, writer = os.pipe()
        begin_fd = _inheritable(writer)
        os.close(writer)

        def attend() -> None:
            try:
                self._result = work(begin_fd)
            except BaseException as error:  # noqa: BLE001 - `wait` raises it
                self._error = error
            finally:
                os.close(begin_fd)

        # Not joined at exit: the run ends then, because the kernel notifies the launcher of the end of this thread.
        self._thread = Thread(target=attend, name="tlaunch", daemon=True)
        self._thread.start()
        try:
            with os.fdopen(reader, "rb", buffering=0) as begun:
                run_dir = begun.read(CHUNK_BYTES)
        except BaseException:
            self.stop()
            raise
        if not run_dir:
            self.wait()
        self.run_dir = Path(os.fsdecode(run_dir))

    def __repr__(self) -> str:
        return f"Run({str(self.run_dir)!r})"

    def status(self) -> str:
        """Return the state that `tlaunch status` shows, such as "running", "finished" or "failed"."""
        return look(RunDir(self.run_dir)).state.value

    def logs(self, rank: int = 0) -> str:
        """Return the output of a rank up to now. Raises UsageError if the run does not have this rank."""
        count = len(read_recorded(RunDir(self.run_dir)).places)
        if rank not in range(count):
            raise errors.UsageError(f"rank {rank}: the run has {count} ranks", hint=f"use a rank from 0 to {count - 1}")
        try:
            return RunDir(self.run_dir).train_log(rank).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:  # it has not started
            return ""

    def stop(self) -> None:
        """End the run within `grace` seconds. Return after all processes of the run have ended."""
        self._launcher.terminate()
        self._thread.join()

    def wait(self, timeout: float | None = None) -> Result:
        """Wait until the run ends, and return or raise the same as `launch` without `wait=False`.

        Ctrl-C interrupts only the wait, not the run. Raises TimeoutError if the run does not end within `timeout`
        seconds.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"the run has not ended within {timeout:g} s")
        if self._error is not None:
            raise self._error
        return self._result


def _inheritable(descriptor: int) -> int:
    """Duplicate a descriptor to one that a child can inherit.

    If stdin, stdout or stderr is closed, the original may have its number.
    """
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)


def _output(stream: TextIO | None, original: TextIO | None) -> int | None:
    """Return the `stdout` or `stderr` argument of Popen for a stream of this process."""
    if stream is None:  # a program without a console
        return subprocess.DEVNULL
    with suppress(OSError, ValueError):  # the reader has closed
        stream.flush()
    # On a real stdout or stderr, the launcher draws its status line itself; a notebook gets text through a pipe.
    return None if stream is original else subprocess.PIPE


def _attend(process: subprocess.Popen[bytes]) -> bool:
    """Show the output of the launcher process until it ends, and return whether Ctrl-C was pressed."""
    interrupted = False
    with selectors.DefaultSelector() as selector:
        for name in ("stdout", "stderr"):
            if (pipe := getattr(process, name)) is not None:
                decoder = codecs.getincrementaldecoder("utf-8")("replace")
                selector.register(pipe, selectors.EVENT_READ, (name, decoder))
        while True:
            try:
                while selector.get_map():
                    for key, _ in selector.select():
                        name, decoder = key.data
                        chunk = os.read(key.fd, CHUNK_BYTES)
                        stream = getattr(sys, name)  # a notebook or `redirect_stdout` may replace it at any time
                        text = decoder.decode(chunk, final=not chunk)
                        with suppress(OSError, ValueError):  # the run continues without a reader
                            if stream is not None:
                                print(text, end="", file=stream, flush=True)
                        if not chunk:
                            selector.unregister(key.fd)
                process.wait()
            except KeyboardInterrupt:  # noqa: PERF203 - keep waiting
                interrupted = True
                process.send_signal(signal.SIGINT)
            else:
                return interrupted
