"""`tlaunch top`: every rank's progress and use of the machine, redrawn until the run ends."""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import islice
from pathlib import Path

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from launcher.cli.options.chosen_run import LIVE_RUN_HELP, chosen_live, progress_regex_option, run_argument
from launcher.cli.options.types import Seconds
from launcher.cli.text.columns import duration, has_blocks, number, size, sparkline, step_time
from launcher.cli.text.keys import QUIT, keys_of_terminal, pressed
from launcher.cli.text.rank_rows import Column, age_s, alike, listed, most, same
from launcher.cli.text.rank_view import RankView
from launcher.cli.text.run_text import describe, printed_figures, shown_name
from launcher.cli.text.stdout import write_out
from launcher.cli.text.style import PLAIN, Screen, screen_of
from launcher.cli.text.verdict_text import describe_status
from launcher.core.frozen import frozen
from launcher.core.proc import Usage, usage_of
from launcher.core.run_dir import RunDir
from launcher.runs.course import runs_before, standing
from launcher.runs.metrics import MetricsReader, Record, StepMetrics, median_of, part_shares
from launcher.runs.rank_figures import FiguresReader, RankFigures, pattern_for
from launcher.runs.status import RankLook, RankState, RunState, RunStatusReader

EPILOG = """\b
Examples:
  tlaunch top
  tlaunch top --interval 10 20261121-053712-transformer
  tlaunch top --once | grep stopped

If the program writes metrics.jsonl, as the bundled trainer does, the loss, the tokens/s and the time of a step in the last
minutes are shown above the table. CPU and RSS include the processes that a rank has started; shared pages count for each process. STEP, LOSS,
TOKENS/S and DEVICE (memory) come from the rank's last heartbeat, BEAT ago; without one, STEP, LOSS and TOKENS/S are read
from the lines that it prints. A narrow terminal hides columns: DEVICE first, then BEAT, RSS, CPU, TOKENS/S.

Where not every rank fits the screen, those with the same state and step share a row, with the smallest and the largest
loss, speed and CPU, and the largest RSS, DEVICE and BEAT. Groups of few ranks come first.

\b
Keys: up, down, page up, page down, home, end (j, k, space, b) scroll; s and S
sort by the next column or the one before, r in reverse; g groups ranks or
shows each; ? shows the keys; q quits, and the run goes on.

Exit codes: 0 the run has ended, or you pressed q; 130 Ctrl-C; 2 wrong usage, or no such run.
"""
RESIZED_WITHIN_S = 0.25  # another size of the terminal is noticed
SAMPLE_S = 0.3  # between the two looks that a single table needs
RIGHT = frozenset({"RANK", "STEP", "LOSS", "TOKENS/S", "CPU", "RSS", "DEVICE", "BEAT"})
GIVING_WAY = [(name, 0) for name in ("DEVICE", "BEAT", "RSS", "CPU", "TOKENS/S", "LOSS", "STEP")]
LINES_AROUND = 4  # of a screen: title, header, keys, the cursor's own
PLAIN_COLUMNS = 120
RECENT_NS = 300 * 10**9
# Five minutes of the bundled trainer, which writes fifty lines of 700 bytes a second at most.
MAX_STEPS = 15_000
TAIL_BYTES = MAX_STEPS * 700
FIGURE = 10  # columns
MAX_LINE_COLUMNS = 120  # columns of blocks


@frozen
class Row:
    rank: RankLook
    slow: bool
    figures: RankFigures
    usage: Usage | None
    cpu_share: float | None  # of one core; None before there were two looks at the same process

    @property
    def state(self) -> str:
        """The state in words, or how the rank ended."""
        if self.rank.status is not None:
            return describe_status(self.rank.status)
        return f"{self.rank.state.value}, slow" if self.slow else self.rank.state.value


def columns_at(looked_ns: int) -> tuple[Column[Row], ...]:
    """Return the columns of a look at this time (wall clock, nanoseconds)."""

    def beat_age_s(row: Row) -> float | None:
        heartbeat = row.figures.heartbeat
        return age_s(heartbeat.time_ns if heartbeat else None, looked_ns)

    def device_bytes(row: Row) -> int | None:
        heartbeat = row.figures.heartbeat
        return None if heartbeat is None else heartbeat.beat.device_memory_bytes

    return (
        Column("RANK", lambda row: row.rank.global_rank, joined=listed),
        Column("STATE", lambda row: row.state, joined=same),
        Column("STEP", lambda row: row.figures.step, lambda step: number(step, "d")),
        Column("LOSS", lambda row: row.figures.loss, lambda loss: number(loss, ".4f")),
        Column("TOKENS/S", lambda row: row.figures.tokens_per_s, lambda speed: number(speed, ",.0f")),
        Column("CPU", lambda row: row.cpu_share, lambda share: number(share, ".0%")),
        Column("RSS", lambda row: row.usage.rss_bytes if row.usage else None, size, most),
        Column("DEVICE", device_bytes, size, most),
        Column("BEAT", beat_age_s, duration, most),
    )


def tells_apart(rows: list[Row]) -> Callable[[Row], Hashable]:
    """Return what tells apart ranks that do not belong in one row; steps count of those that run."""
    return alike(
        rows,
        state=lambda row: row.state,
        step=lambda row: row.figures.step if row.rank.state is RankState.RUNNING else None,
        loss=lambda row: row.figures.loss,
    )


@click.command(
    epilog=EPILOG, help=f"Watch every rank's progress, CPU and memory until the run ends.\n\n{LIVE_RUN_HELP}"
)
@click.option("--once", is_flag=True, help="Print one table and exit, as when stdout is not a terminal.")
@click.option(
    "--interval", type=Seconds(min=0.1, max=3600), default=2.0, metavar="TIME",
    help="Time between two updates.  [default: 2]",
)  # fmt: skip
@progress_regex_option
@run_argument
def top(*, run: str | None, once: bool, interval: float, progress_regex: str | None, runs_dir: Path) -> None:
    sampler = Sampler(chosen_live(runs_dir, run), progress_regex)
    if not once and sys.stdout.isatty():
        _show_live(sampler, interval)
        return
    state, rows = sampler.look()
    if state.lives:
        time.sleep(SAMPLE_S)
        state, rows = sampler.look()
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PLAIN_COLUMNS
    look = screen_of(sys.stdout)
    console = Console(
        width=width, color_system="standard" if look.coloured else None, no_color=False, highlight=False, markup=False, emoji=False
    )  # fmt: skip
    with console.capture() as captured:
        console.print(to_screen(state, rows, sampler.measured(width), width, look=look))
    write_out("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


class RecentMetrics:
    """Looks at metrics.jsonl again and again. However long it is, the first look reads its end, others what is new."""

    def __init__(self, run_dir: RunDir) -> None:
        self._reader = MetricsReader(run_dir.metrics, last_bytes=TAIL_BYTES)
        self._beginnings = 0
        self._before: list[StepMetrics] = []
        for earlier, continued in islice(
            runs_before(run_dir), 1
        ):  # nobody begins two runs within five minutes, as a rule
            steps = _steps_in(MetricsReader(earlier.metrics, last_bytes=TAIL_BYTES).read())
            self._before = standing(steps, steps, continued.step + 1)
        self._steps: deque[StepMetrics] = deque(maxlen=MAX_STEPS)

    def look(self) -> list[StepMetrics]:
        """Return the steps of the five minutes before the last one, the last 15,000 at most, in the order of their lines.

        With those of the run that this one goes on from, and without what a restart has computed again. None of a file that is gone, nor those whose times are still to come, or later than the last one's.
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
    """Yield loss and tokens/s: first value, course, last value, fitting `width` columns, where they were measured.

    Then, on average, a step's time and what it went into on the rank that writes metrics.
    """
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
    if spent := time_spent(steps):
        yield f"step     {spent}"[:width]


def time_spent(steps: list[StepMetrics]) -> str:
    """Return a step's time on average, and what it went into on the rank that writes metrics; empty where that is unknown."""
    shares = part_shares(steps)
    if not shares:
        return ""
    texts = [step_time(median_of(steps, "step_s"), shares)]
    for name, field in (("padding", "padding_share"), ("utilisation", "utilisation")):
        if (share := median_of(steps, field)) is not None:
            texts.append(f"{name} {number(share, '.0%')}")
    return "; ".join(texts)


class Sampler:
    """Looks at a run; from the second look on, CPU shares are known. All that it gives is of one look, the last."""

    def __init__(self, run_dir: RunDir, progress_regex: str | None = None) -> None:
        """`progress_regex`: for lines of ranks, in place of the one that the run was started with."""
        self._watch = RunStatusReader(run_dir)
        self._metrics = RecentMetrics(run_dir)
        self._figures = FiguresReader(run_dir, pattern_for(run_dir, progress_regex))
        self._plain = not has_blocks(sys.stdout.encoding)  # now: rich puts something else in its place
        self.steps: list[StepMetrics] = []  # of the last minutes
        self._before: dict[int, Usage] = {}
        self._before_s = 0.0

    def measured(self, width: int) -> list[str]:
        """Return what the run had measured by the last look in its last minutes, in lines of at most `width` columns."""
        return list(to_lines(self.steps, width, plain=self._plain))

    def look(self) -> tuple[RunState, list[Row]]:
        """Return the run's state and one row per rank, ascending."""
        state = self._watch.look()
        ranks = list(state.ranks)
        alive = {RankState.RUNNING, RankState.STOPPED}
        pids = {look.process.pid for look in ranks if look.process and look.process.here and look.state in alive}
        usages, now_s = usage_of(pids), time.monotonic()
        rows = []
        for look in ranks:
            pid = look.process.pid if look.process else 0
            start = state.progress.current.starts.get(look.global_rank)
            figures = self._figures.look(look.global_rank, start.event.log_offset if start else 0)
            slow = look.global_rank in state.progress.current.slow and look.state is RankState.RUNNING
            share = None
            if pid in usages and pid in self._before and now_s > self._before_s:
                share = max(0.0, usages[pid].cpu_s - self._before[pid].cpu_s) / (now_s - self._before_s)
            rows.append(Row(look, slow, figures, usages.get(pid), share))
        self._before, self._before_s = usages, now_s
        self.steps = self._metrics.look()
        return state, rows


def to_screen(
    state: RunState,
    rows: list[Row],
    measured: list[str],
    width: int,
    height: int | None = None,
    *,
    view: RankView | None = None,
    look: Screen = PLAIN,
) -> Group:
    """Return how the run stands, what it measured in its last minutes, and as many rows as fit, with the keys below them.

    All rows without `height`, each rank in one if `view` does not group them.
    """
    view, columns = view or RankView(), columns_at(state.looked_ns)
    title = f"{shown_name(state)}: {look.description(describe(state))}{how_many_run(state, len(rows))}"
    said = printed_figures({row.rank.global_rank: row.figures for row in rows})
    most_rows = None if height is None else height - LINES_AROUND - len(measured) - len(said)
    if most_rows is not None and most_rows < 1:  # ranks are more important
        measured, said, most_rows = [], [], max(1, most_rows + len(measured) + len(said))
    paint = {"STATE": look.state}
    table = view.lines(
        rows, columns, tells_apart(rows), width, most_rows, giving_way=GIVING_WAY, right=RIGHT, paint=paint
    )
    shown = [*measured, *(view.help_lines(width) if view.helps else table), *said]
    if height is not None:
        shown = [*shown[: height - 3], view.foot(columns, width)]
    lines = (Text.from_ansi(line, no_wrap=True, overflow="crop") for line in shown)
    whole = height is None  # else a line that is wrapped would be one more than fits
    return Group(Text.from_ansi(title, no_wrap=not whole, overflow="fold" if whole else "crop"), *lines)


def how_many_run(state: RunState, rank_count: int) -> str:
    """Return "; 3 of 4 ranks running", and nothing for a run without an agent, which alone knows that."""
    return "" if state.engine else f"; {state.progress.current.running} of {rank_count} ranks running"


def _show_live(sampler: Sampler, interval_s: float) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    view = RankView()
    state, rows = sampler.look()

    def screen(height: int | None = None) -> Group:
        look = screen_of(sys.stdout)
        return to_screen(state, rows, sampler.measured(console.width), console.width, height, view=view, look=look)

    try:
        with keys_of_terminal() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
            wait_s = SAMPLE_S  # CPU shares need a second look
            while True:
                live.update(screen(console.height), refresh=True)
                if not state.lives or _attend(
                    keys, wait_s, view, lambda: live.update(screen(console.height), refresh=True)
                ):
                    break
                state, rows = sampler.look()
                wait_s = interval_s
            if not state.state.over:  # what stays on the screen is of now: by q, or where the last rank has just gone
                state, rows = sampler.look()
    finally:
        view.helps, view.grouped = False, view.is_grouped
        console.print(screen())  # the last one in full, below what was there


def _attend(keys: int | None, wait_s: float, view: RankView, redraw: Callable[[], None]) -> bool:
    """Wait for so long, and act on keys and on another size of the terminal meanwhile; return whether to quit."""
    deadline, before = time.monotonic() + wait_s, shutil.get_terminal_size()
    while (left_s := deadline - time.monotonic()) > 0:
        typed = pressed(keys, min(left_s, RESIZED_WITHIN_S))
        if QUIT in typed:
            return True
        for key in typed:
            view.press(key, len(columns_at(0)))
        if typed or shutil.get_terminal_size() != before:
            before = shutil.get_terminal_size()
            redraw()
    return False
