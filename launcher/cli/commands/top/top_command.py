"""`tlaunch top`: show every rank's progress and machine usage until the run ends."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console, Group
from rich.live import Live

from launcher.cli.commands.top.sampler import Sampler
from launcher.cli.commands.top.screen import columns_at, to_screen
from launcher.cli.options.chosen_run import LIVE_RUN_HELP, active_run_argument, chosen_live, progress_regex_option
from launcher.cli.options.types import Seconds
from launcher.cli.text.rank_view import QUIT, RankView, keys_of_terminal, pressed
from launcher.cli.text.stdout import write_out
from launcher.cli.text.style import screen_of

EPILOG = """\b
Examples:
  tlaunch top
  tlaunch top --interval 10 20261121-053712-transformer
  tlaunch top | grep stopped

If the program writes metrics.jsonl, as the bundled trainer does, the lines above the table show the loss, tokens/s and
step time of the last minutes. CPU and RSS include a rank's child processes; shared pages count once per process. STEP,
LOSS, TOKENS/S and DEVICE (memory) come from the rank's last heartbeat, BEAT ago; without one, STEP, LOSS and TOKENS/S
are parsed from its output. WRITTEN is the time since the rank's last write to its log. A rank is `silent` if this time
is much longer than usual, or than for other ranks. A narrow terminal hides empty columns first, then DEVICE, BEAT,
RSS, CPU and TOKENS/S. If stdout is not a terminal, one table is printed.

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
    """Handle keys and resizes of the terminal for `wait_s` seconds; return whether to quit."""
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
