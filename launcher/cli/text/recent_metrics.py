"""What a run measured in its last minutes, as lines for the screen of `tlaunch top`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from launcher.cli.text.columns import duration, number
from launcher.cli.text.sparkline import sparkline
from launcher.runs.metrics import MetricsReader, StepMetrics

RECENT_NS = 300 * 10**9
# Five minutes of the bundled trainer, which writes fifty lines of 250 bytes a second at most.
MAX_STEPS = 15_000
TAIL_BYTES = MAX_STEPS * 256
FIGURE = 10  # columns
MAX_LINE_COLUMNS = 120  # columns of blocks


class RecentMetrics:
    """Looks at metrics.jsonl again and again. However long it is, the first look reads its end, others what is new."""

    def __init__(self, path: Path) -> None:
        self._reader = MetricsReader(path, last_bytes=TAIL_BYTES)
        self._beginnings = 0
        self._steps: deque[StepMetrics] = deque(maxlen=MAX_STEPS)

    def look(self) -> list[StepMetrics]:
        """Return the steps of the five minutes before the last one, the last 15,000 at most, in the order of their lines.

        None of a file that is gone, nor those whose times are still to come, or later than the last one's.
        """
        records = self._reader.read()
        if not self._reader.found or self._reader.beginnings != self._beginnings:
            self._steps.clear()
        self._beginnings = self._reader.beginnings
        self._steps.extend(record for record in records if isinstance(record, StepMetrics))
        return list(_recent(self._steps, time.time_ns()))


def to_lines(steps: list[StepMetrics], width: int, *, plain: bool) -> Iterator[str]:
    """Yield loss and tokens/s: first value, course, last value, fitting `width` columns, where they were measured."""
    times_ns = [step.time_ns for step in steps]
    over = duration((max(times_ns) - min(times_ns)) / 1e9) if steps else ""
    losses, speeds = [step.loss for step in steps], [step.tokens_per_s for step in steps]
    for name, values, form in (("loss", losses, ".4f"), ("tokens/s", speeds, ",.0f")):
        known = [value for value in values if value is not None]
        if len(known) > 1:
            first, last = (number(value, form) for value in (known[0], known[-1]))  # "nan" where it is not finite
            begin, end = f"{name:8} {first:>{FIGURE}} ", f" {last:<{FIGURE}} over {over}"
            line = sparkline(values, max(0, min(MAX_LINE_COLUMNS, width - len(begin) - len(end))), plain=plain)
            yield f"{begin}{line}{end}"[:width]


def _recent(steps: deque[StepMetrics], now_ns: int) -> Iterator[StepMetrics]:
    last_ns = min(steps[-1].time_ns, now_ns) if steps else 0
    return (step for step in steps if last_ns - RECENT_NS <= step.time_ns <= last_ns)
