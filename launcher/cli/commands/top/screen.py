"""The screen of `tlaunch top`: a run's state, its recent metrics and its ranks."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from rich.console import Group
from rich.text import Text

from launcher.cli.commands.top.sampler import Row
from launcher.cli.text.columns import duration, number, size
from launcher.cli.text.progress_text import about_silence
from launcher.cli.text.rank_rows import Column, age_s, group_key, listed, most, same
from launcher.cli.text.rank_view import RankView
from launcher.cli.text.run_text import describe_run, printed_figures, scheduler_text, shown_name
from launcher.cli.text.stdout import as_argument
from launcher.cli.text.style import PLAIN, Screen
from launcher.runs.status import RankState, RunState

RIGHT = frozenset({"RANK", "STEP", "LOSS", "TOKENS/S", "CPU", "RSS", "DEVICE", "BEAT", "WRITTEN"})
GIVING_WAY = ("DEVICE", "BEAT", "RSS", "CPU", "TOKENS/S", "WRITTEN", "LOSS", "STEP")
LINES_AROUND = 4  # title, table header, keys, and the cursor's line


def columns_at(looked_ns: int) -> tuple[Column[Row], ...]:
    """Return the columns for a sample taken at `looked_ns` (wall clock)."""

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
        Column("WRITTEN", lambda row: age_s(row.written_ns, looked_ns), duration, most),
    )


def row_group_key(rows: list[Row]) -> Callable[[Row], Hashable]:
    """Return a function from a row to its group. Only running ranks are compared by step."""
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
    """Return the run's state, its recent metrics and as many rows as fit, with the keys below.

    Without `height`, all rows are returned. Each rank has a row unless `view` groups them.
    """
    view, columns = view or RankView(), columns_at(state.looked_ns)
    title = f"{shown_name(state)}: {look.description(describe_run(state))}{how_many_run(state, len(rows))}"
    said = [*printed_figures({row.rank.global_rank: row.figures for row in rows}), *_about_silent(rows, state)]
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
    lines = (Text.from_ansi(line, no_wrap=True, overflow="crop") for line in shown)
    whole = height is None  # on a screen of limited height, a wrapped line would not fit
    return Group(Text.from_ansi(title, no_wrap=not whole, overflow="fold" if whole else "crop"), *lines)


def how_many_run(state: RunState, rank_count: int) -> str:
    """Return "; 3 of 4 ranks running", or "" for a run without an agent, because only agents know it."""
    return "" if state.engine else f"; {state.progress.current.running} of {rank_count} ranks running"


def _about_silent(rows: list[Row], state: RunState) -> list[str]:
    """Return lines about ranks that are silent for unusually long, with the command that shows their stacks."""
    silent_s = {row.rank.global_rank: row.silent_s for row in rows if row.silent_s is not None}
    running = sum(row.rank.state is RankState.RUNNING for row in rows)
    return list(about_silence(silent_s, running, as_argument(state.run_dir))) if silent_s else []
