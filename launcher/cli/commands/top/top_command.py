"""`tlaunch top`: show every rank's progress and machine usage until the run ends."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Hashable
from pathlib import Path

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from launcher.cli.commands.top.sampler import Row, Sampler
from launcher.cli.options.chosen_run import LIVE_RUN_HELP, active_run_argument, chosen_live, progress_regex_option
from launcher.cli.options.types import Seconds
from launcher.cli.text.columns import duration, number, size
from launcher.cli.text.progress_text import about_silence
from launcher.cli.text.rank_rows import Column, age_s, group_key, listed, most, same
from launcher.cli.text.rank_view import QUIT, RankView, keys_of_terminal, pressed
from launcher.cli.text.run_text import describe_run, printed_figures, scheduler_text, shown_name
from launcher.cli.text.stdout import as_argument, write_out
from launcher.cli.text.style import PLAIN, Screen, screen_of
from launcher.runs.status import RankState, RunState

EPILOG = """\b
Examples:
  tlaunch top
  tlaunch top --interval 10 20261121-053712-transformer
  tlaunch top | grep stopped

The first line above the table shows the step, the total number of steps and the time left. If the program writes
metrics.jsonl, as the bundled trainer does, more lines show the loss, tokens/s and step time of the last minutes. CPU
and RSS include a rank's child processes; shared pages count once per process. STEP, LOSS, TOKENS/S and DEVICE
(memory) come from the rank's last heartbeat, BEAT ago; without one, STEP, LOSS and TOKENS/S are parsed from its
output. WRITTEN is the time since the rank's last write to its log. A rank is `silent` if this time is much longer
than usual, or than for other ranks. A narrow terminal hides empty columns first, then DEVICE, BEAT, RSS, CPU and
TOKENS/S. If stdout is not a terminal, one table is printed.

If not all ranks fit on the screen, ranks with the same state and step share a row. It has the range of loss, speed and
CPU, and the largest RSS, DEVICE, BEAT and WRITTEN. Small groups come first.

\b
Keys: up, down, page up, page down, home, end (j, k, space, b) scroll; s and S
sort by the next or previous column, r reverses the order; g groups ranks or
shows each; ? shows the keys; q quits, and the run continues.

Exit codes: 0 the run has ended, or you pressed q; 130 Ctrl-C; 2 wrong usage, or no such run.
"""
RESIZED_WITHIN_S = 0.25  # maximum delay of a redraw after the terminal is resized
SAMPLE_S = 0.3  # between the two samples of a single table
PLAIN_COLUMNS = 120
RIGHT = frozenset({"RANK", "STEP", "LOSS", "TOKENS/S", "CPU", "RSS", "DEVICE", "BEAT", "WRITTEN"})
GIVING_WAY = ("DEVICE", "BEAT", "RSS", "CPU", "TOKENS/S", "WRITTEN", "LOSS", "STEP")
LINES_AROUND = 4  # title, table header, keys, and the cursor's line


@click.command(
    epilog=EPILOG, help=f"Watch every rank's progress, CPU and memory until the run ends.\n\n{LIVE_RUN_HELP}"
)
@click.option(
    "--interval", type=Seconds(min=0.1, max=3600), default=2.0, metavar="TIME",
    help="Time between two updates.  [default: 2]",
)  # fmt: skip
@progress_regex_option
@active_run_argument
def top(*, run: str | None, interval: float, progress_regex: str | None, runs_dir: Path) -> None:
    sampler = Sampler(chosen_live(runs_dir, run), progress_regex)
    if sys.stdout.isatty():
        _show_live(sampler, interval)
        return
    state, rows = sampler.look()
    if state.lives:
        time.sleep(SAMPLE_S)
        state, rows = sampler.look()
    look = screen_of(sys.stdout)
    console = Console(
        width=PLAIN_COLUMNS, color_system="standard" if look.coloured else None, no_color=False, highlight=False,
        markup=False, emoji=False,
    )  # fmt: skip
    with console.capture() as captured:
        console.print(to_screen(state, rows, sampler.measured(PLAIN_COLUMNS), PLAIN_COLUMNS, look=look))
    write_out("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def _show_live(sampler: Sampler, interval_s: float) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    view = RankView()
    state, rows = sampler.look()

    def screen(height: int | None = None) -> Group:
        look = screen_of(sys.stdout)
        return to_screen(state, rows, sampler.measured(console.width), console.width, height, view=view, look=look)

    try:
        with keys_of_terminal() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
            wait_s = SAMPLE_S  # CPU shares need a second sample
            while True:
                live.update(screen(console.height), refresh=True)
                if not state.lives or _attend(
                    keys, wait_s, view, lambda: live.update(screen(console.height), refresh=True)
                ):
                    break
                state, rows = sampler.look()
                wait_s = interval_s
            if not state.state.over:  # after q, or when the last rank has just ended: show the final state
                state, rows = sampler.look()
    finally:
        view.helps, view.grouped = False, view.is_grouped
        console.print(screen())  # the full last screen, on the normal terminal


def _attend(keys: int | None, wait_s: float, view: RankView, redraw: Callable[[], None]) -> bool:
    """Handle key presses and terminal resizes for `wait_s` seconds. Return True if the user wants to quit."""
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


def columns_at(looked_ns: int) -> tuple[Column[Row], ...]:
    """Return the table's columns for a sample taken at `looked_ns` (wall clock)."""
    return (
        Column("RANK", lambda row: row.rank.global_rank, joined=listed),
        Column("STATE", lambda row: row.state, joined=same),
        Column("STEP", lambda row: row.figures.step, lambda step: number(step, "d")),
        Column("LOSS", lambda row: row.figures.loss, lambda loss: number(loss, ".4f")),
        Column("TOKENS/S", lambda row: row.figures.tokens_per_s, lambda speed: number(speed, ",.0f")),
        Column("CPU", lambda row: row.cpu_share, lambda share: number(share, ".0%")),
        Column("RSS", lambda row: row.usage.rss_bytes if row.usage else None, size, most),
        Column(
            "DEVICE", lambda row: beat.beat.device_memory_bytes if (beat := row.figures.heartbeat) else None, size, most
        ),
        Column(
            "BEAT",
            lambda row: age_s(beat.time_ns, looked_ns) if (beat := row.figures.heartbeat) else None,
            duration,
            most,
        ),
        Column("WRITTEN", lambda row: age_s(row.written_ns, looked_ns), duration, most),
    )


def row_group_key(rows: list[Row]) -> Callable[[Row], Hashable]:
    """Return a function that maps a row to its group key. The step is part of the key only for running ranks."""
    return group_key(
        rows,
        state=lambda row: row.state,
        step=lambda row: row.figures.compared_step if row.rank.state is RankState.RUNNING else None,
        loss=lambda row: row.figures.loss,
    )


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
    """Return the screen: the run's state, recent metrics, as many table rows as fit, and a line with the keys.

    Without `height`, all rows are returned. Each rank has a row unless `view` groups them.
    """
    view, columns = view or RankView(), columns_at(state.looked_ns)
    title = f"{shown_name(state)}: {look.description(describe_run(state))}{how_many_run(state, len(rows))}"
    said = [*printed_figures({row.rank.global_rank: row.figures for row in rows})]
    if silent_s := {row.rank.global_rank: row.silent_s for row in rows if row.silent_s is not None}:
        running = sum(row.rank.state is RankState.RUNNING for row in rows)
        said += about_silence(silent_s, running, as_argument(state.run_dir))
    if scheduler := scheduler_text(state):
        # The command is on a separate line, so that narrow terminals do not cut it.
        said += [
            f"MindSpore's scheduler: {scheduler}; its log:",
            f"  tlaunch logs {as_argument(state.run_dir)} --scheduler",
        ]
    most_rows = None if height is None else height - LINES_AROUND - len(measured) - len(said)
    if most_rows is not None and most_rows < 1:  # ranks are more important
        measured, said, most_rows = [], [], max(1, most_rows + len(measured) + len(said))
    # Empty columns, such as BEAT without heartbeats, are dropped first.
    empty = {column.name for column in columns if all(column.value(row) is None for row in rows)}
    giving_way = [(name, 0) for name in sorted(GIVING_WAY, key=lambda name: name not in empty)]
    table = view.lines(
        rows, columns, row_group_key(rows), width, most_rows, giving_way=giving_way, right=RIGHT, paint={"STATE": look.state}
    )  # fmt: skip
    shown = [*measured, *(view.help_lines(width) if view.helps else table), *said]
    if height is not None:
        shown = [*shown[: height - 3], view.foot(columns, width)]
    lines = (Text.from_ansi(line, no_wrap=True, overflow="ellipsis") for line in shown)
    whole = height is None  # on a screen of limited height, a wrapped line would not fit
    return Group(Text.from_ansi(title, no_wrap=not whole, overflow="fold" if whole else "ellipsis"), *lines)


def how_many_run(state: RunState, rank_count: int) -> str:
    """Return a text such as "; 3 of 4 ranks running", or "" for a run without agents."""
    return "" if state.engine else f"; {state.progress.current.running} of {rank_count} ranks running"
