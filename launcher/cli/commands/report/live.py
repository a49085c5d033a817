"""The content of the live page in parts. A client gets only the parts that changed since its last request."""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from itertools import chain
from typing import Any

from launcher.cli.commands.report.charts import Chart, Series, axis_number, charts_of, safe
from launcher.cli.commands.report.facts import Measured, Point, sentence_of, with_printed
from launcher.cli.commands.report.report_text import notes
from launcher.cli.commands.status import GROUPED_FROM
from launcher.cli.commands.top.sampler import Row, Sampler, time_spent
from launcher.cli.commands.top.top_command import columns_at, how_many_run, row_group_key
from launcher.cli.text.rank_rows import cells, grouped
from launcher.cli.text.run_text import printed_figures, shown_name
from launcher.cli.text.stdout import as_argument
from launcher.cli.text.verdict_text import headline
from launcher.core.errors import UsageError
from launcher.core.metrics import Record
from launcher.core.run_dir import RunDir
from launcher.logs.log_file import LogCursor, Place, piece_after
from launcher.logs.terminal import shortened, without_colours
from launcher.runs.logged_metrics import LoggedSteps
from launcher.runs.metrics_reader import MetricsReader, metrics_of, read_metrics
from launcher.runs.rank_figures import pattern_for
from launcher.runs.record import continued_by
from launcher.runs.status import RankState, RunState
from launcher.runs.training_history import full_history, own_course

SHARE = 0.1  # maximum share of time spent on reading the training history
MAX_ATTEMPTS = 5  # shown before the current one; the last ones
EACH, GROUP = "rank", "group"  # kinds of rows: prefixes of their names


class HistoryReader:
    """Reads a run's training history repeatedly. Each read parses only the new lines of metrics.jsonl."""

    def __init__(self, run_dir: RunDir, progress_regex: str | None = None) -> None:
        """Create the reader. `progress_regex` replaces the run's own --progress-regex."""
        self._run_dir = run_dir
        self._pattern = pattern_for(run_dir, progress_regex)
        self._gave_up = False  # the pattern takes too long; the view of ranks reports it
        self._reader = MetricsReader(run_dir.metrics)
        self._beginnings = 0
        self._records: list[Record] = []
        self._read_earlier = functools.cache(read_metrics)  # earlier runs do not change
        self._next_s = 0.0

    def look(self, state: RunState) -> Measured | None:
        """Return the training history, or None if the last read is too recent. Slow reads are repeated less often."""
        begun_s = time.monotonic()
        if begun_s < self._next_s and state.lives:
            return None
        new = self._reader.read()
        if not self._reader.found or self._reader.beginnings != self._beginnings:
            self._records.clear()
        self._beginnings = self._reader.beginnings
        self._records += new
        printed, metrics = LoggedSteps(), metrics_of(self._records, self._reader)
        if not self._gave_up:
            try:
                printed, metrics = with_printed(metrics, state, self._pattern)
            except UsageError:
                self._gave_up = True
        course = full_history(self._run_dir, own_course(metrics), self._read_earlier)
        now_s = time.monotonic()
        self._next_s = now_s + (now_s - begun_s) / SHARE
        return Measured(state, metrics, course, continued_by(self._run_dir), printed)


class LiveView:
    """The parts of the live page, keyed by name. Each part records the update that last changed it.

    One thread updates the parts. Other threads can read them at any time.
    """

    def __init__(self, run_dir: RunDir, progress_regex: str | None = None) -> None:
        self.run_dir = run_dir
        self.rank_count = 0
        self.log_rank = 0  # whose log a page shows until the user chooses a rank: the failed one, or the first
        self.over = False  # whether the contents are final
        self._sampler, self._course = Sampler(run_dir, progress_regex), HistoryReader(run_dir, progress_regex)
        self._parts: dict[str, tuple[int, Any]] = {}
        self._number = 0  # of the last look
        self._news = threading.Condition()

    def look(self) -> RunState:
        """Read the run again, update the parts of the page and wake waiting readers. Only one thread may call this."""
        state, rows = self._sampler.look()
        if not state.lives and not state.state.over:
            state, rows = self._sampler.look()  # its last rank has just ended
        parts = dict(self._seen(state, rows))
        if (measured := self._course.look(state)) is not None:
            charts = {f"chart {chart.title}": drawn(chart) for chart in charts_of([measured])}
            parts |= {**charts, "charts": list(charts), "chart notes": notes([measured])}
        with self._news:
            self.rank_count, self.over = len(rows), not state.lives
            self.log_rank = (state.verdict and state.verdict.culprit) or 0
            self._number += 1
            before = self._parts
            kept = {name: part for name, part in before.items() if measured is None and name.startswith("chart")}
            for name, value in parts.items():
                is_same = name in before and before[name][1] == value
                kept[name] = before[name] if is_same else (self._number, value)
            self._parts = kept
            self._news.notify_all()
        return state

    def after(self, number: int, *, each: bool) -> tuple[int, dict[str, Any]]:
        """Return the number of the latest update, and the parts that changed after update `number`.

        With `each`, the table has a row per rank; otherwise similar ranks share a row.
        """
        with self._news:
            if self.over:  # a page cannot request other parts later
                return self._number, {name: value for name, (_, value) in self._parts.items()}
            left_out = f"{GROUP if each else EACH} "
            parts = self._parts.items()
            news = {name: value for name, (at, value) in parts if at > number and not name.startswith(left_out)}
            return self._number, news

    def wait(self, number: int, limit_s: float) -> None:
        """Wait until there is an update after `number`, for at most `limit_s` seconds."""
        with self._news:
            self._news.wait_for(lambda: self._number != number or self.over, limit_s)

    def log_after(self, global_rank: int, place: Place | None) -> dict[str, Any]:
        """Return the new lines of a rank's log as JSON, with the position at which to continue reading."""
        try:
            piece = piece_after(self.run_dir.train_log(global_rank), place)
        except OSError as error:
            piece, trouble = LogCursor(place), f"the log cannot be read: {error.strerror or error}"
        else:
            trouble = "" if piece.place else "there is no log yet"
        return {
            "rank": global_rank,
            "place": str(piece.place or ""),
            "anew": piece.is_anew,
            "skipped": piece.skipped_bytes,
            "lines": [_shown(line) for line in piece.lines],
            "rest": _shown(piece.rest),
            "rest_bytes": len(piece.rest),
            "trouble": trouble,
        }

    def _seen(self, state: RunState, rows: list[Row]) -> Iterator[tuple[str, Any]]:
        running = how_many_run(state, len(rows)) if state.lives else ""
        yield (
            "run",
            {
                "name": shown_name(state),
                "state": state.state.value,
                "sentence": safe(sentence_of(state) + running),
                "argument": as_argument(self.run_dir),
                "directory": safe(str(state.run_dir.root)),
                "attempts": [
                    safe(f"attempt {attempt.number} {attempt.cause.value}: {headline(attempt.verdict)}")
                    for attempt in state.attempts[:-1][-MAX_ATTEMPTS:]
                    if attempt.verdict is not None
                ],
                "each": len(rows) < GROUPED_FROM,
                "over": not state.lives,
            },
        )
        yield "time", datetime.fromtimestamp(state.looked_ns // 10**9, timezone.utc).strftime("%H:%M:%S UTC")
        yield "progress", self._sampler.progress
        yield "spent", time_spent(self._sampler.steps)
        yield "said", "".join(printed_figures({row.rank.global_rank: row.figures for row in rows}))
        culprit = state.verdict.culprit if state.verdict else None
        columns = columns_at(state.looked_ns)
        yield "columns", [column.name for column in columns]
        for kind, groups in ((GROUP, grouped(rows, row_group_key(rows))), (EACH, [(row,) for row in rows])):
            names = []
            for group in groups:
                first = group[0]
                names.append(f"{kind} {first.rank.global_rank}")
                row = {"rank": first.rank.global_rank, "count": len(group), "cells": cells(group, columns)}
                yield names[-1], {**row, "look": _look(first, culprit)}
            yield f"{kind} order", names


def _look(row: Row, culprit: int | None) -> str:
    """Return the CSS class of a rank. If the culprit is known, other failed ranks are "ended" instead of "bad"."""
    if row.rank.status and culprit is not None:
        return "bad" if row.rank.global_rank == culprit else "ended"
    if row.slow or row.rank.state in {RankState.GONE, RankState.STOPPED} or row.rank.status or row.rank.reason:
        return "bad"
    return "well" if row.rank.status == 0 else row.rank.state.value


def _shown(line: bytes) -> str:
    return shortened(safe(line.decode(errors="replace")))


SIDE = 1000  # of the square for paths; the page stretches it
MAX_BUCKETS = 300  # of points per line; more are too close to distinguish
ROOM = 0.04  # margin at both ends of the y axis, as a share of it
GRID_LINES = 3


def drawn(chart: Chart) -> dict[str, Any]:
    """Return the JSON object of a chart: its axis labels, its restarts, and an SVG path for each curve."""
    shown = [series for series in chart.series if series.values]
    steps = [x for series in shown for x, _ in series.points]
    values = list(chain.from_iterable(series.values for series in shown))
    low, high = min(values), max(values)
    low = min(0.0, low) if chart.from_zero else low
    first, last = min(steps), max(steps)
    to_x, to_y = _scale(first, last, 0.0), _scale(_place(low, chart), _place(high, chart), ROOM)

    def path(series: Series) -> str:
        pieces, is_down = [], False
        for x, y in thinned(series.points):
            if y is None:
                is_down = False
                continue
            at = f"{to_x(x):.0f} {SIDE - to_y(_place(y, chart)):.0f}"
            # A single point is drawn as a dot.
            pieces.append(f"L{at}" if is_down else f"M{at}h0")
            is_down = not series.rings
        return "".join(pieces)

    marks = [low, high] if low == high else [low + (high - low) * part / (GRID_LINES - 1) for part in range(GRID_LINES)]
    if chart.is_log:
        marks = [low, math.sqrt(low) * math.sqrt(high), high]
    lines = {f"{mark / chart.divisor:.3g}": SIDE - to_y(_place(mark, chart)) for mark in marks}
    return {
        "title": chart.title,
        "note": chart.note,
        "unit": chart.unit,
        "steps": [axis_number(first), axis_number(last)],
        "grid": [[axis_number(float(text)), round(y)] for text, y in lines.items()],
        "restarts": [[round(to_x(x)), without_colours(text)] for x, text in chart.restarts if first <= x <= last],
        "series": [
            {
                "label": series.label,
                "last": axis_number(float(f"{series.values[-1] / chart.divisor:.5g}")),
                "style": series.style % 6,
                "dots": series.rings,
                "d": path(series),
            }
            for series in shown
        ],
    }


def thinned(points: Sequence[Point]) -> Iterator[Point]:
    """Thin out a curve: yield only the minimum, the maximum and the first gap of each bucket of points.

    >>> [y for _, y in thinned([(float(x), abs(x - 500.0)) for x in range(1000)])][248:252]
    [4.0, 1.0, 0.0, 3.0]
    """
    size = -(-len(points) // MAX_BUCKETS)
    for begin in range(0, len(points), size):
        part = points[begin : begin + size]
        known = [(y, place) for place, (_, y) in enumerate(part) if y is not None]
        if not known:
            yield part[0]
            continue
        kept = {min(known)[1], max(known)[1]}
        if begin + size >= len(points):
            kept.add(known[-1][1])
        kept.update([place for place, (_, y) in enumerate(part) if y is None][:1])
        yield from (part[place] for place in sorted(kept))


def _place(value: float, chart: Chart) -> float:
    """Return a value, or its logarithm if the chart has a log scale."""
    return math.log(value) if chart.is_log else value


def _scale(low: float, high: float, room: float) -> Any:
    """Return a function that scales values between `low` and `high` to a length, with a margin at both ends."""
    span = high / 2 - low / 2  # halves, because the difference of two floats may overflow
    return lambda value: SIDE * (room + (1 - 2 * room) * ((value / 2 - low / 2) / span if span > 0 else 0.5))
