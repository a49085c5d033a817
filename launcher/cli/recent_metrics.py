"""What a run measured in its last minutes, as lines for the screen of `tlaunch top`."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.cli.columns import duration, number
from launcher.cli.sparkline import sparkline

if TYPE_CHECKING:
    from launcher.core.metrics import StepMetrics

RECENT_S = 300.0
TAIL_BYTES = 384 << 10  # five minutes of the bundled trainer, which writes five lines a second at most
FIGURE = 10  # columns
LONGEST_LINE = 120  # columns of blocks
Change = tuple[int, int, int]


class RecentMetrics:
    """Looks at the end of metrics.jsonl again and again, however long it is; a look at an unchanged file costs nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: Change | None = None
        self._steps: list[StepMetrics] = []

    def look(self) -> list[StepMetrics]:
        """The steps of the last five minutes that were measured, oldest first; none where there is no such file."""
        with suppress(OSError):
            found = self._path.stat()
            change = (found.st_ino, found.st_size, found.st_mtime_ns)
            if change != self._seen and stat.S_ISREG(found.st_mode):
                self._steps = list(_recent(_tail(self._path)))
                self._seen = change
        return self._steps


def to_lines(steps: list[StepMetrics], width: int, *, plain: bool) -> Iterator[str]:
    """Loss and tokens/s: first value, course, last value, fitting `width` columns; nothing for what was not measured."""
    over = duration((steps[-1].time_ns - steps[0].time_ns) / 1e9) if steps else ""
    losses, speeds = [step.loss for step in steps], [step.tokens_per_s for step in steps]
    for name, values, form in (("loss", losses, ".4f"), ("tokens/s", speeds, ",.0f")):
        known = [value for value in values if value is not None]
        if len(known) > 1:
            first, last = (number(value, form) for value in (known[0], known[-1]))
            begin, end = f"{name:8} {first:>{FIGURE}} ", f" {last:<{FIGURE}} over {over}"
            line = sparkline(values, max(0, min(LONGEST_LINE, width - len(begin) - len(end))), plain=plain)
            yield f"{begin}{line}{end}"[:width]


def _tail(path: Path) -> list[bytes]:
    """Lines; the first may be the end of one, and the last be unfinished: neither is a record then."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        return file.read(TAIL_BYTES).split(b"\n")


def _recent(lines: list[bytes]) -> Iterator[StepMetrics]:
    from launcher.core.metrics import StepMetrics, from_line

    steps: list[StepMetrics] = []
    for line in lines:
        with suppress(ValueError, RecursionError):
            record = from_line(line)
            if isinstance(record, StepMetrics):
                steps.append(record)
    since_ns = steps[-1].time_ns - RECENT_S * 1e9 if steps else 0
    return (step for step in steps if step.time_ns >= since_ns)
