"""Lines of logs to stdout."""

from __future__ import annotations

import fcntl
import math
import select
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

from launcher.cli.text.log_format import Format
from launcher.cli.text.stdout import StreamWriter
from launcher.core.errors import UnreadableError
from launcher.core.text import ranges
from launcher.logs.collapse import Shown
from launcher.logs.lines import Line
from launcher.logs.terminal import printable_lines
from launcher.logs.tracebacks import Folded

TOGETHER = 1000  # lines that are written at once
TOGETHER_BYTES = 1 << 20  # as far as one line alone has not more
HELD_BACK_S = 0.1
PIPE_BYTES = 1 << 20  # as much as the system allows everybody; with less, reader and writer wait for each other
INTERRUPTED_PATIENCE_S = 1.0


class Writer:
    """Blocks as long as stdout takes nothing.

    Raises (everything that writes):
        BrokenPipeError: stdout's reader has gone.
        UnreadableError: stdout takes nothing any more.
    """

    def __init__(self, shape: Format) -> None:
        self._stdout = StreamWriter(sys.stdout)
        self._format = shape
        with suppress(OSError, AttributeError):  # it is no pipe, or this is no Linux
            fcntl.fcntl(sys.stdout.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._batch: list[Line | Shown | None] = []
        self._batch_bytes = 0
        self._flushed_s = 0.0
        self._left = select.poll()
        self._left.register(sys.stdout.fileno(), 0)  # errors are told unasked

    def put(self, text: bytes, patience_s: float = math.inf) -> None:
        if text:
            self._stdout.put_bytes(text)
            self._push(patience_s)

    def check_reader(self) -> None:
        """Raise BrokenPipeError where stdout has lost its reader."""
        if self._left.poll(0):
            raise BrokenPipeError

    def write(self, lines: Iterable[Line | Shown | None]) -> None:
        """Write lines, many at once; those that wait are written too when the search for more is broken off.

        A write that is broken off itself (Ctrl-C while the reader takes nothing) may end anywhere.
        """
        try:
            for line in lines:
                self._batch.append(line)
                self._batch_bytes += _size_bytes(line)
                if len(self._batch) >= TOGETHER or self._batch_bytes >= TOGETHER_BYTES:
                    self._flush()
        except BaseException:
            self._flush(INTERRUPTED_PATIENCE_S)
            raise
        self._flush()
        self.put(self._format.end())

    def flush_late(self) -> None:
        """Write the lines that have been found if the last ones were written a while ago: the next may be far away."""
        if self._batch and time.monotonic() - self._flushed_s >= HELD_BACK_S:
            self._flush()

    def write_blocks(self, global_rank: int, blocks: Iterable[bytes]) -> None:
        """Write unread lines of one rank; their prefix holds no time."""
        for block in blocks:
            self.put(self._format.block(global_rank, block))
        self.put(self._format.end())

    def write_errors(self, errors: Collection[Folded]) -> None:
        """Write what was raised, each once, with the ranks that raised it."""
        if self._format.as_json:
            self.put(b"".join(map(self._format.error, errors)))
            return
        told = "\n".join("".join(f"{line}\n" for line in self._error(error)) for error in errors)
        self.put(self._format.encoded(told or "no traceback in these logs\n"))

    def _flush(self, patience_s: float = math.inf) -> None:
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        self.put(self._format.lines(batch), patience_s)
        self._flushed_s = time.monotonic()

    def _push(self, patience_s: float) -> None:
        try:
            self._stdout.push(time.monotonic() + patience_s)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise UnreadableError(f"stdout cannot be written: {error.strerror}") from error

    def _error(self, error: Folded) -> Iterator[str]:
        yield f"ranks {ranges(error.ranks)}:" if len(error.ranks) > 1 else f"rank {error.ranks[0]}:"
        yield from (f"  {self._format.safe(line)}" for line in printable_lines(error.traceback.text))


def _size_bytes(line: Line | Shown | None) -> int:
    """Return about how many bytes a line takes."""
    if line is None:
        return 0
    return len(line.text) if isinstance(line, Shown) else len(line.raw)
