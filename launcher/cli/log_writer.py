"""Lines of logs to stdout."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Iterator
from itertools import islice

from launcher.cli.console import Outlet
from launcher.cli.log_format import Format
from launcher.core.ranges import ranges
from launcher.logs.collapse import Shown
from launcher.logs.lines import Line
from launcher.logs.raised import Folded
from launcher.logs.terminal import printable_lines

TOGETHER = 1000  # lines that are written at once


class Writer:
    """Blocks as long as stdout takes nothing.

    Raises (`write`):
        OSError: stdout takes nothing any more; BrokenPipeError: its reader has gone.
    """

    def __init__(self, shape: Format) -> None:
        self._stdout = Outlet(sys.stdout)
        self._format = shape

    def put(self, text: bytes) -> None:
        if text:
            self._stdout.put_bytes(text)
            self._stdout.push(math.inf)

    def write(self, lines: Iterable[Line | Shown | None]) -> None:
        waiting = iter(lines)
        while batch := list(islice(waiting, TOGETHER)):
            self.put(self._format.lines(batch))

    def write_blocks(self, global_rank: int, blocks: Iterable[bytes]) -> None:
        """As `write` does, for whole lines of one rank that nothing is known of; their prefix holds no time."""
        for block in blocks:
            self.put(self._format.block(global_rank, block))

    def write_errors(self, errors: Collection[Folded]) -> None:
        """What was raised, each once, with the ranks that raised it."""
        told = "\n".join("".join(f"{line}\n" for line in self._error(error)) for error in errors)
        self.put(self._format.encoded(told or "no traceback in these logs\n"))

    def _error(self, error: Folded) -> Iterator[str]:
        yield f"ranks {ranges(error.ranks)}:" if len(error.ranks) > 1 else f"rank {error.ranks[0]}:"
        yield from (f"  {self._format.safe(line)}" for line in printable_lines(error.traceback.text))
