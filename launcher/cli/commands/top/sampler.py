"""Sample a run for `tlaunch top`: recent metrics, and each rank's state, CPU and memory usage, and progress."""

from __future__ import annotations

import sys
import textwrap
import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from launcher.cli.text.columns import clipped_text, cut_off, duration, has_blocks, number, sparkline, step_time
from launcher.cli.text.pace import Pace, step_text
from launcher.cli.text.verdict_text import describe_status
from launcher.core.frozen import frozen
from launcher.core.machine.proc import Usage, usage_of
from launcher.core.metrics import Record, StepMetrics
from launcher.core.run_dir import RunDir
from launcher.runs.metrics_reader import MetricsReader, mean_of, median_of, part_shares
from launcher.runs.rank_figures import FiguresReader, RankFigures, pattern_for
from launcher.runs.silence import SilenceReader
from launcher.runs.status import RankLook, RankState, RunState, RunStatusReader
from launcher.runs.training_history import runs_before, standing

RECENT_NS = 300 * 10**9
# Five minutes of the bundled trainer, which writes at most 50 lines of 700 bytes per second.
MAX_STEPS = 15_000
TAIL_BYTES = MAX_STEPS * 700
FIGURE = 10  # columns
MAX_LINE_COLUMNS = 120  # of a sparkline


class RecentMetrics:
    """Reads metrics.jsonl incrementally: first only the end of the file, later only new lines."""

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

        Includes steps of the run that this one was resumed from. Excludes steps that were computed again after a
        restart, steps of a removed metrics file, and steps whose time is in the future or later than the last step's.
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
    """Yield one line each for the loss, the gradient norm and tokens/s: the first value, a sparkline and the last value.

    Then follow the median step time and its parts. Lines for unknown values are omitted.
    """
    times_ns = [step.time_ns for step in steps]
    over = duration((max(times_ns) - min(times_ns)) / 1e9) if steps else ""
    clipped = clipped_text(mean_of(steps, "clipped_share"))
    for name, field, form, more in (
        ("loss", "loss", ".4f", ""), ("gradient", "gradient_norm", ".4g", clipped), ("tokens/s", "tokens_per_s", ",.0f", "")
    ):  # fmt: skip
        values = [getattr(step, field) for step in steps]
        known = [value for value in values if value is not None]
        if len(known) > 1:
            first, last = (number(value, form) for value in (known[0], known[-1]))  # "nan" if not finite
            begin, end = f"{name:8} {first:>{FIGURE}} ", f" {last:<{FIGURE}} over {over}{more}"
            line = sparkline(values, max(0, min(MAX_LINE_COLUMNS, width - len(begin) - len(end))), plain=plain)
            yield f"{begin}{line}{end}"[:width]
    if spent := time_spent(steps):
        yield from textwrap.wrap(f"step     {spent}", width, subsequent_indent=" " * len("step     "))


def time_spent(steps: list[StepMetrics]) -> str:
    """Return the median step time and its parts as text, or "" if they are unknown."""
    shares = part_shares(steps)
    if not shares:
        return ""
    texts = [step_time(median_of(steps, "step_s"), shares)]
    for name, field in (("padding", "padding_share"), ("utilisation", "utilisation")):
        if (share := median_of(steps, field)) is not None:
            texts.append(f"{name} {number(share, '.0%')}")
    return "; ".join(texts)


@frozen
class Row:
    rank: RankLook
    slow: bool
    figures: RankFigures
    usage: Usage | None
    cpu_share: float | None  # of one core; None until the process was seen twice
    written_ns: int | None  # last write to its log, since 1970; None without a process
    silent_s: float | None  # None unless it is silent for unusually long

    @property
    def state(self) -> str:
        """The rank's state, such as "running, slow", or how the rank ended."""
        if self.rank.status is not None:
            return describe_status(self.rank.status)
        striking = "silent" if self.silent_s is not None else "slow" if self.slow else ""
        return ", ".join(filter(None, (self.rank.state.value, striking)))


class Sampler:
    """Samples a run repeatedly and holds the latest sample. CPU usage is known from the second sample on."""

    def __init__(self, run_dir: RunDir, progress_regex: str | None = None) -> None:
        """Create the sampler. `progress_regex` replaces the run's own --progress-regex."""
        self._watch = RunStatusReader(run_dir)
        self._metrics = RecentMetrics(run_dir)
        self._figures = FiguresReader(run_dir, pattern_for(run_dir, progress_regex))
        self._silence = SilenceReader(run_dir)
        self._plain = not has_blocks(sys.stdout.encoding)  # decided now, because rich replaces stdout
        self.steps: list[StepMetrics] = []  # of the last minutes
        self._pace = Pace()
        self.progress = ""  # such as "step 3 of 40, 12 s left"
        self._before: dict[int, Usage] = {}
        self._before_s = 0.0

    def measured(self, width: int) -> list[str]:
        """Return the metrics of the latest sample as lines of at most `width` columns."""
        lines = [cut_off(f"progress {self.progress}", width)] if self.progress else []
        return [*lines, *to_lines(self.steps, width, plain=self._plain)]

    def look(self) -> tuple[RunState, list[Row]]:
        """Sample the run, and return its state and a row for each rank, in ascending order."""
        state = self._watch.look()
        ranks = list(state.ranks)
        alive = {RankState.RUNNING, RankState.STOPPED}
        pids = {look.process.pid for look in ranks if look.process and look.process.is_local and look.state in alive}
        usages, now_s = usage_of(pids), time.monotonic()
        starts = state.progress.current.starts
        offsets = {rank: start.event.log_offset for rank, start in starts.items()}
        figures = {
            look.global_rank: self._figures.look(look.global_rank, offsets.get(look.global_rank, 0)) for look in ranks
        }
        beats_ns = {rank: None if each.heartbeat is None else each.heartbeat.time_ns for rank, each in figures.items()}
        running = [look.global_rank for look in ranks if look.state is RankState.RUNNING]
        silences = self._silence.look(
            {look.global_rank: beats_ns[look.global_rank] for look in ranks if look.state in alive},
            {rank: start.time_ns for rank, start in starts.items()},
        )
        slow = state.progress.current.slow.keys() & set(running)
        rows = []
        for look in ranks:
            rank, pid = look.global_rank, look.process.pid if look.process else 0
            share = None
            if pid in usages and pid in self._before and now_s > self._before_s:
                share = max(0.0, usages[pid].cpu_s - self._before[pid].cpu_s) / (now_s - self._before_s)
            written_ns = silences.written_ns.get(rank)
            silent_s = silences.silent_s.get(rank) if rank in running else None
            rows.append(Row(look, rank in slow, figures[rank], usages.get(pid), share, written_ns, silent_s))
        self._before, self._before_s = usages, now_s
        self.steps = self._metrics.look()
        self._note_pace(figures.values(), min((start.time_ns for start in starts.values()), default=0))
        left_s = self._pace.left_s if state.lives else None
        left = "" if left_s is None else f", {duration(left_s)} left"
        has_end = self._pace.figures.last_step is not None
        self.progress = f"{step_text(self._pace.figures)}{left}" if has_end else ""
        return state, rows

    def _note_pace(self, figures: Iterable[RankFigures], started_ns: int) -> None:
        """Update the pace from the figures of the first rank that has any. The attempt began at `started_ns`."""
        first = next((step for step in self.steps if step.time_ns >= started_ns), None)
        if self._pace.first is None and first is not None:
            self._pace.first = first.step, first.time_ns
        self._pace.note(next((each for each in figures if each.known), RankFigures()))
