"""Text to stdout and stderr, as fast as its reader takes it, and paths as people write them."""

from __future__ import annotations

import math
import os
import select
import stat
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from launcher.cli.text.style import screen_of
from launcher.core.text import printable, shell_word

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.core.run_dir import RunDir


def is_pipe(stream: TextIO) -> bool:
    """Return whether another process reads what is written to a stream."""
    with suppress(OSError, ValueError):
        mode = os.fstat(stream.fileno()).st_mode
        return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
    return False


class StreamWriter:
    """A stream that takes text as fast as its reader lets it: no byte is lost, and no caller waits longer than asked.

    Goes around the stream's own buffer, which would lose what a non-blocking pipe does not take.
    """

    def __init__(self, stream: TextIO) -> None:
        self._descriptor = stream.fileno()
        self._poller = select.poll()
        self._poller.register(self._descriptor, select.POLLOUT)
        self.pending = memoryview(b"")
        self.forgotten = False

    def put_bytes(self, encoded: bytes) -> None:
        """Take bytes for `push` to write, which must have finished what was put before."""
        self.pending = memoryview(encoded)

    def push(self, until_s: float) -> bool:
        """Write, and return whether all was written; block until `until_s` (monotonic, may be infinite) at most.

        Raises:
            OSError: the stream takes nothing, now or ever.
        """
        # Of so few bytes a pipe that takes some takes all; more are written at once where it may block.
        limit_bytes = None if math.isinf(until_s) else select.PIPE_BUF
        while self.pending:
            left_s = max(0.0, until_s - time.monotonic())
            if not self._poller.poll(None if math.isinf(left_s) else math.ceil(left_s * 1000)):
                return False
            try:
                self.pending = self.pending[os.write(self._descriptor, self.pending[:limit_bytes]) :]
            except BlockingIOError:
                if time.monotonic() >= until_s:
                    return False
        return True

    def forget(self) -> None:
        """Send this process's writes to the stream nowhere from now on, the interpreter's last flush included."""
        self.forgotten, self.pending = True, memoryview(b"")
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._descriptor)
        os.close(nowhere)


def write_out(text: str) -> None:
    """Write to stdout; once its reader has gone, to nowhere. Blocks until all is written.

    Raises:
        OSError: stdout takes nothing.
    """
    stdout = StreamWriter(sys.stdout)
    stdout.put_bytes(text.encode(sys.stdout.encoding or "utf-8", errors="replace"))
    try:
        stdout.push(math.inf)
    except BrokenPipeError:
        stdout.forget()


def say(text: str) -> None:
    """Print on stderr, where nothing of it moves a terminal's cursor; a stderr that takes nothing is no error."""
    with suppress(OSError):
        print(screen_of(sys.stderr).message("\n".join(map(printable, text.split("\n")))), file=sys.stderr, flush=True)


def as_people_call_it(path: Path) -> Path:
    """Return the path relative to the working directory where that is below it, on one line. To be shown only."""
    from pathlib import Path  # every command imports this module, and `--help` needs no path

    here = os.getcwd()  # noqa: PTH109 - as `relpath` takes it
    relative = Path(os.path.relpath(path, here))
    is_below = relative.parts[:1] != ("..",) and here != "/"  # below the root is everything
    return Path(printable(str(relative if is_below else path)))


def as_argument(run_dir: RunDir) -> str:
    """Return RUN as one types it into a shell to name this run again from the same directory."""
    from launcher.core.resources import usual_runs_dir

    own, root = usual_runs_dir().resolve(), run_dir.root
    is_short = root.parent.resolve() == own and not root.name.startswith("-")  # which looks like an option
    return shell_word(root.name if is_short else str(as_people_call_it(root)))
