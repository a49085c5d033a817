"""`tlaunch top`: every rank's progress and use of the machine, redrawn until the run ends."""

from __future__ import annotations

import os
import select
import shutil
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from launcher.cli.options.chosen_run import LIVE_RUN_HELP, chosen_live, run_argument
from launcher.cli.options.types import Seconds
from launcher.cli.text.columns import counted, duration, fitted, has_blocks, number, size, sparkline, step_time
from launcher.cli.text.run_text import describe, shown_name
from launcher.cli.text.stdout import write_out
from launcher.cli.text.style import PLAIN, Screen, screen_of
from launcher.cli.text.verdict_text import describe_status
from launcher.core.frozen import frozen
from launcher.core.heartbeat import Beat, Heartbeat, read_heartbeat
from launcher.core.proc import Usage, usage_of
from launcher.core.run_dir import RunDir
from launcher.runs.course import runs_before, standing
from launcher.runs.metrics import MetricsReader, Record, StepMetrics, median_of, part_shares
from launcher.runs.status import RankLook, RankState, RunState, RunStatusReader

EPILOG = """\b
Examples:
  tlaunch top
  tlaunch top --interval 10 20261121-053712-transformer
  tlaunch top --once | grep stopped

If the program writes metrics.jsonl, as the bundled trainer does, the loss, the tokens/s and the time of a step in the last
minutes are shown above the table. CPU and RSS include the processes that a rank has started; shared pages count for each process. STEP, LOSS,
TOKENS/S and DEVICE (memory) come from the rank's last heartbeat, BEAT ago. A narrow terminal hides columns: DEVICE first,
then BEAT, RSS, CPU, TOKENS/S.

Exit codes: 0 the run has ended, or you pressed q; 130 Ctrl-C; 2 wrong usage, or no such run.
"""
QUITS = frozenset(b"qQ\x04")
SAMPLE_S = 0.3  # between the two looks that a single table needs
HEADER = ("RANK", "STATE", "STEP", "LOSS", "TOKENS/S", "CPU", "RSS", "DEVICE", "BEAT")
RIGHT = frozenset(HEADER) - {"STATE"}
GIVING_WAY = [(name, 0) for name in ("DEVICE", "BEAT", "RSS", "CPU", "TOKENS/S", "LOSS", "STEP")]
LINES_AROUND = 4  # of a screen: title, header, the line about the rest, the cursor's own
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
    heartbeat: Heartbeat | None
    usage: Usage | None
    cpu_share: float | None  # of one core; None before there were two looks at the same process


@click.command(
    epilog=EPILOG, help=f"Watch every rank's progress, CPU and memory until the run ends.\n\n{LIVE_RUN_HELP}"
)
@click.option("--once", is_flag=True, help="Print one table and exit, as when stdout is not a terminal.")
@click.option(
    "--interval", type=Seconds(min=0.1, max=3600), default=2.0, metavar="TIME",
    help="Time between two updates.  [default: 2]",
)  # fmt: skip
@run_argument
def top(*, run: str | None, once: bool, interval: float, runs_dir: Path) -> None:
    sampler = Sampler(chosen_live(runs_dir, run))
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
    if shares := part_shares(steps):
        texts = [f"step     {step_time(median_of(steps, 'step_s'), shares)}"]
        for name, field in (("padding", "padding_share"), ("utilisation", "utilisation")):
            if (share := median_of(steps, field)) is not None:
                texts.append(f"{name} {number(share, '.0%')}")
        yield "; ".join(texts)[:width]


class Sampler:
    """Looks at a run; from the second look on, CPU shares are known. All that it gives is of one look, the last."""

    def __init__(self, run_dir: RunDir) -> None:
        self._watch = RunStatusReader(run_dir)
        self._metrics = RecentMetrics(run_dir)
        self._plain = not has_blocks(sys.stdout.encoding)  # now: rich puts something else in its place
        self._steps: list[StepMetrics] = []
        self._before: dict[int, Usage] = {}
        self._before_s = 0.0

    def measured(self, width: int) -> list[str]:
        """Return what the run had measured by the last look in its last minutes, in lines of at most `width` columns."""
        return list(to_lines(self._steps, width, plain=self._plain))

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
            heartbeat = read_heartbeat(state.run_dir.heartbeat(look.global_rank))
            slow = look.global_rank in state.progress.current.slow and look.state is RankState.RUNNING
            share = None
            if pid in usages and pid in self._before and now_s > self._before_s:
                share = max(0.0, usages[pid].cpu_s - self._before[pid].cpu_s) / (now_s - self._before_s)
            rows.append(Row(look, slow, heartbeat, usages.get(pid), share))
        self._before, self._before_s = usages, now_s
        self._steps = self._metrics.look()
        return state, rows


def to_screen(
    state: RunState, rows: list[Row], measured: list[str], width: int, height: int | None = None, *, look: Screen = PLAIN
) -> Group:  # fmt: skip
    """Return how the run stands, what it measured in its last minutes, and as many rows as fit."""
    running = "" if state.engine else f"; {state.progress.current.running} of {len(rows)} ranks running"
    title = f"{shown_name(state)}: {look.description(describe(state))}{running}"
    most_rows = None if height is None else height - LINES_AROUND - len(measured)
    if most_rows is not None and most_rows < 1:  # ranks are more important
        measured, most_rows = [], max(1, most_rows + len(measured))
    table = _table(state, rows, width, most_rows, look)
    lines = (Text.from_ansi(line, no_wrap=True, overflow="crop") for line in (*measured, *table))
    whole = height is None  # else a line that is wrapped would be one more than fits
    return Group(Text.from_ansi(title, no_wrap=not whole, overflow="fold" if whole else "crop"), *lines)


def _table(state: RunState, rows: list[Row], width: int, most_rows: int | None, look: Screen) -> Iterator[str]:
    shown = rows[:most_rows]
    cells = [tuple(_cells(row, state)) for row in shown]
    yield from fitted(HEADER, cells, width, giving_way=GIVING_WAY, right=RIGHT, paint={"STATE": look.state})
    if rest := len(rows) - len(shown):
        yield f"... and {counted(rest, 'more rank')}"


def _cells(row: Row, state: RunState) -> Iterator[str]:
    beat: Beat | None = row.heartbeat.beat if row.heartbeat else None
    yield str(row.rank.global_rank)
    if row.rank.status is not None:
        yield describe_status(row.rank.status)
    else:
        yield f"{row.rank.state.value}, slow" if row.slow else row.rank.state.value
    yield number(beat.step if beat else None, "d")
    yield number(beat.loss if beat else None, ".4f")
    yield number(beat.tokens_per_s if beat else None, ",.0f")
    yield number(row.cpu_share, ".0%")
    yield size(row.usage.rss_bytes if row.usage else None)
    yield size(beat.device_memory_bytes if beat else None)
    yield duration(max(0.0, (state.looked_ns - row.heartbeat.time_ns) / 1e9) if row.heartbeat else None)


def _show_live(sampler: Sampler, interval_s: float) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    state, rows = sampler.look()

    def screen(height: int | None = None) -> Group:
        return to_screen(
            state, rows, sampler.measured(console.width), console.width, height, look=screen_of(sys.stdout)
        )

    try:
        with _keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
            live.update(screen(console.height), refresh=True)
            wait_s = SAMPLE_S  # CPU shares need a second look
            while state.lives and not _asked_to_quit(keys, wait_s):
                state, rows = sampler.look()
                live.update(screen(console.height), refresh=True)
                wait_s = interval_s
            if not state.state.over:  # what stays on the screen is of now: by q, or where the last rank has just gone
                state, rows = sampler.look()
    finally:
        console.print(screen())  # the last one in full, below what was there


def _asked_to_quit(keys: int | None, wait_s: float) -> bool:
    """Wait for so long, or until `q` is pressed; return whether it was."""
    if keys is None:
        time.sleep(wait_s)
        return False
    deadline = time.monotonic() + wait_s
    while (left_s := deadline - time.monotonic()) > 0:
        if select.select([keys], [], [], left_s)[0]:
            typed = os.read(keys, 64)
            if not typed or QUITS.intersection(typed):
                return True
    return False


@contextmanager
def _keys() -> Iterator[int | None]:
    """Yield the terminal's descriptor, which gives keys as they are typed; None without one. Ctrl-C acts as ever."""
    if not sys.stdin or not sys.stdin.isatty():
        yield None
        return
    descriptor = sys.stdin.fileno()
    former = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, former)
