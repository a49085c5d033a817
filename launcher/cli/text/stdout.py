"""Write to stdout and stderr, and shorten paths for display."""

from __future__ import annotations

import math
import os
import select
import stat
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from launcher.cli.text.style import screen_of
from launcher.core.text import printable, shell_word

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.core.run_dir import RunDir


def is_pipe(stream: TextIO) -> bool:
    with suppress(OSError, ValueError):
        mode = os.fstat(stream.fileno()).st_mode
        return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
    return False


class StreamWriter:
    """A writer with a time limit that never loses bytes.

    It bypasses the stream's buffer, because that loses bytes when a non-blocking pipe is full.
    """

    def __init__(self, stream: TextIO) -> None:
        self._descriptor = stream.fileno()
        self._poller = select.poll()
        self._poller.register(self._descriptor, select.POLLOUT)
        self.pending = memoryview(b"")
        self.forgotten = False

    def put_bytes(self, encoded: bytes) -> None:
        """Set the bytes that `push` writes. All earlier bytes must have been written."""
        self.pending = memoryview(encoded)

    def push(self, until_s: float) -> bool:
        """Write pending bytes; return True if all were written. Raises OSError if the stream cannot be written.

        Blocks at most until `until_s` on the monotonic clock, which may be infinite.
        """
        # A ready pipe accepts PIPE_BUF bytes without blocking; without a time limit, blocking is allowed.
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
        """Discard everything that this process writes to the stream from now on."""
        self.forgotten, self.pending = True, memoryview(b"")
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._descriptor)
        os.close(nowhere)


def write_out(text: str) -> None:
    """Write the whole text to stdout, or discard the rest if the reader has exited."""
    stdout = StreamWriter(sys.stdout)
    stdout.put_bytes(text.encode(sys.stdout.encoding or "utf-8", errors="replace"))
    try:
        stdout.push(math.inf)
    except BrokenPipeError:
        stdout.forget()


def write_lines(lines: Iterable[str]) -> None:
    write_out("".join(f"{line}\n" for line in lines))


def say(text: str) -> None:
    """Print a message on stderr, with control characters escaped. Write errors are ignored."""
    with suppress(OSError):
        print(screen_of(sys.stderr).message("\n".join(map(printable, text.split("\n")))), file=sys.stderr, flush=True)


def as_people_call_it(path: Path) -> Path:
    """Format a path for display on one line. A path below the working directory is shown relative to it."""
    from pathlib import Path  # not needed for `--help`, which imports this module

    here = os.getcwd()  # noqa: PTH109 - as `relpath` takes it
    relative = Path(os.path.relpath(path, here))
    is_below = relative.parts[:1] != ("..",) and here != "/"  # everything is below /
    return Path(printable(str(relative if is_below else path)))


def as_argument(run_dir: RunDir) -> str:
    """Return the RUN argument that names this run in other commands, quoted for a shell."""
    from launcher.core.resources import usual_runs_dir

    own, root = usual_runs_dir().resolve(), run_dir.root
    is_short = root.parent.resolve() == own and not root.name.startswith("-")  # a leading dash looks like an option
    return shell_word(root.name if is_short else str(as_people_call_it(root)))
