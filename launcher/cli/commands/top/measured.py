"""Recent metrics of a run, and the lines of `tlaunch top` that show them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from launcher.cli.text.columns import duration, number, sparkline, step_time
from launcher.core.metrics import Record, StepMetrics
from launcher.core.run_dir import RunDir
from launcher.runs.metrics_reader import MetricsReader, median_of, part_shares
from launcher.runs.training_history import runs_before, standing

RECENT_NS = 300 * 10**9
# Five minutes of the bundled trainer, which writes at most 50 lines of 700 bytes per second.
MAX_STEPS = 15_000
TAIL_BYTES = MAX_STEPS * 700
FIGURE = 10  # columns
MAX_LINE_COLUMNS = 120  # of a sparkline


class RecentMetrics:
    """Reads metrics.jsonl incrementally. The first read covers only the end of the file, later ones the new lines."""

    def __init__(self, run_dir: RunDir) -> None:
        self._reader = MetricsReader(run_dir.metrics, last_bytes=TAIL_BYTES)
        self._beginnings = 0
        self._before: list[StepMetrics] = []
        # One earlier run is enough: five minutes rarely span more.
        for earlier, continued in islice(runs_before(run_dir), 1):
            steps = _steps_in(MetricsReader(earlier.metrics, last_bytes=TAIL_BYTES).read())
            self._before = standing(steps, steps, continued.step + 1)
        self._steps: deque[StepMetrics] = deque(maxlen=MAX_STEPS)

    def look(self) -> list[StepMetrics]:
        """Return the steps of the last five minutes, at most 15,000, in file order.

        Includes steps of the run that this one was resumed from. Excludes steps that a restart computed again, steps
        of a removed file, and steps with a time in the future or after the last step's.
        """
        records = self._reader.read()
        if not self._reader.found or self._reader.beginnings != self._beginnings:
            self._steps.clear()
        self._beginnings = self._reader.beginnings
        self._steps.extend(_steps_in(records))
        last_ns = min(self._steps[-1].time_ns, time.time_ns()) if self._steps else 0
        own = standing(self._steps, self._steps)
        before = [step for step in self._before if own and step.step < own[0].step]
        return [step for step in (*before, *own) if last_ns - RECENT_NS <= step.time_ns <= last_ns]


def _steps_in(records: Iterable[Record]) -> list[StepMetrics]:
    return [record for record in records if isinstance(record, StepMetrics)]


def to_lines(steps: list[StepMetrics], width: int, *, plain: bool) -> Iterator[str]:
    """Yield a line each for loss and tokens/s: first value, sparkline, last value. Lines fit `width` columns.

    The last line has the median step time and its parts. Unknown quantities have no line.
    """
    times_ns = [step.time_ns for step in steps]
    over = duration((max(times_ns) - min(times_ns)) / 1e9) if steps else ""
    losses, speeds = [step.loss for step in steps], [step.tokens_per_s for step in steps]
    for name, values, form in (("loss", losses, ".4f"), ("tokens/s", speeds, ",.0f")):
        known = [value for value in values if value is not None]
        if len(known) > 1:
            first, last = (number(value, form) for value in (known[0], known[-1]))  # "nan" if not finite
            begin, end = f"{name:8} {first:>{FIGURE}} ", f" {last:<{FIGURE}} over {over}"
            line = sparkline(values, max(0, min(MAX_LINE_COLUMNS, width - len(begin) - len(end))), plain=plain)
            yield f"{begin}{line}{end}"[:width]
    if spent := time_spent(steps):
        yield f"step     {spent}"[:width]


def time_spent(steps: list[StepMetrics]) -> str:
    """Return the median step time and its parts on the rank that writes metrics; empty if unknown."""
    shares = part_shares(steps)
    if not shares:
        return ""
    texts = [step_time(median_of(steps, "step_s"), shares)]
    for name, field in (("padding", "padding_share"), ("utilisation", "utilisation")):
        if (share := median_of(steps, field)) is not None:
            texts.append(f"{name} {number(share, '.0%')}")
    return "; ".join(texts)
