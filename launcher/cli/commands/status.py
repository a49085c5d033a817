"""`tlaunch status`: show the state of a run, rank by rank."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import click

from launcher.cli.options.chosen_run import LIVE_RUN_HELP, chosen_live, json_option, progress_regex_option, run_argument
from launcher.cli.text.columns import counted, duration, fitted, number, size
from launcher.cli.text.rank_rows import UNKNOWN, Column, age_s, cells, group_key, grouped, listed, most, same
from launcher.cli.text.run_text import as_json as run_as_json
from launcher.cli.text.run_text import (
    continued_from,
    culprit,
    describe_run,
    printed_figures,
    scheduler_json,
    scheduler_text,
    shown_name,
)
from launcher.cli.text.saved_text import how_to_resume
from launcher.cli.text.stdout import as_argument, as_people_call_it, write_lines, write_out
from launcher.cli.text.style import Screen, screen_of
from launcher.cli.text.verdict_text import describe_status, rank_list
from launcher.core.codec import json_text
from launcher.core.frozen import frozen
from launcher.logs.terminal import one_line
from launcher.runs.rank_figures import FiguresReader, RankFigures, pattern_for
from launcher.runs.record import RankPlace, Recorded, read_recorded
from launcher.runs.status import RankLook, RunState, look

EPILOG = """\b
Examples:
  tlaunch status
  tlaunch status --each | grep stopped
  tlaunch status 20261121-053712-transformer --json

States of a rank: waiting (about to start), not started (and will not be), running, stopped (by SIGSTOP or Ctrl-Z),
ended, gone (its exit code is unknown), unwatched (started by `tlaunch exec` on another machine: only mpirun or srun
knows its state). STEP and LOSS come from the rank's heartbeat file; without one, they are parsed from its output. LOG
is the amount written to train.log, WRITTEN the time since the last write. In --json, `each` is the list of ranks.

A row of several ranks (--group) has the range of STEP and LOSS, and the largest BEAT, LOG and WRITTEN. Small groups
come first, so that lagging and stopped ranks are at the top.

Exit codes: 0 in any state of the run; 2 wrong usage, or no such run.
"""
RIGHT = frozenset({"RANK", "DEVICE", "PID", "STEP", "LOSS", "BEAT", "LOG", "WRITTEN"})
# How a narrow terminal shrinks the table, in this order: column and new width, 0 drops it.
GIVING_WAY = (
    ("END", 24), ("DEVICE", 0), ("WRITTEN", 0), ("LOG", 0), ("SERVER", 0), ("PID", 0), ("BEAT", 0), ("LOSS", 0), ("END", 8),
)  # fmt: skip
LOG_FIGURES = ("step", "last_step", "epoch", "loss", "tokens_per_s", "steps_per_s", "counts_samples")
GROUPED_FROM = 16  # ranks; a terminal groups this many or more


@frozen
class RankStatus:
    look: RankLook
    place: RankPlace | None
    figures: RankFigures
    log_bytes: int | None  # None without a log
    log_written_ns: int | None


@click.command(epilog=EPILOG, help=f"Show the state of a run, rank by rank.\n\n{LIVE_RUN_HELP}")
@click.option(
    "--group/--each",
    "groups",
    default=None,
    help="Group similar ranks into one row (--group), or show one row per rank (--each).  [default: --group for 16 or more ranks on a terminal]",
)
@progress_regex_option
@json_option
@run_argument
def status(*, run: str | None, groups: bool | None, progress_regex: str | None, as_json: bool, runs_dir: Path) -> None:
    run_dir = chosen_live(runs_dir, run)
    recorded = read_recorded(run_dir)
    state = look(run_dir)
    places = recorded.places_in(state.progress.current.allotment)
    reader = FiguresReader(run_dir, pattern_for(run_dir, progress_regex))
    ranks = [_rank_status(rank, places, state, reader) for rank in state.ranks]
    if as_json:
        whole = run_as_json(state) | {
            "max_restarts": recorded.max_restarts,
            "scheduler": scheduler_json(state),
            "each": [_to_json(rank) for rank in ranks],
        }
        write_out(json_text(whole))
    else:
        wants_groups = sys.stdout.isatty() and len(ranks) >= GROUPED_FROM if groups is None else groups
        write_lines(_lines(state, ranks, recorded, screen_of(sys.stdout), wants_groups=wants_groups))


def _rank_status(look: RankLook, places: tuple[RankPlace, ...], state: RunState, reader: FiguresReader) -> RankStatus:
    place = next((place for place in places[look.global_rank :] if place.global_rank == look.global_rank), None)
    path = state.run_dir.train_log(look.global_rank)
    log_bytes = logged_ns = None
    with suppress(OSError):
        found = path.stat()
        logged_ns, log_bytes = found.st_mtime_ns, found.st_size
    start = state.progress.current.starts.get(look.global_rank)
    figures = reader.look(look.global_rank, start.event.log_offset if start else 0)
    return RankStatus(look, place, figures, log_bytes, logged_ns)


def _lines(
    state: RunState, ranks: list[RankStatus], recorded: Recorded, screen: Screen, *, wants_groups: bool
) -> Iterator[str]:
    described = describe_run(state, restarts=not recorded.max_restarts)
    yield screen.wrapped(f"{shown_name(state)}: {screen.description(described)}")
    yield from map(screen.wrapped, chain(_about(state, recorded), _failure(state)))
    if ranks:
        yield ""
        columns = _columns(state)
        slow = state.progress.current.slow if state.state.going_on else {}
        key = group_key(
            ranks,
            state=lambda rank: (rank.look.state, _end_of(rank), rank.look.global_rank in slow),
            step=lambda rank: rank.figures.compared_step,
            loss=lambda rank: rank.figures.loss,
        )
        rows = grouped(ranks, key) if wants_groups else [(rank,) for rank in ranks]
        header = [column.name for column in columns]
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
        table = [cells(row, columns) for row in rows]
        paint = {"STATE": screen.state, "END": screen.state}
        yield from fitted(header, table, width, giving_way=GIVING_WAY, right=RIGHT, paint=paint)
    if printed := printed_figures({rank.look.global_rank: rank.figures for rank in ranks}):
        yield from ("", *printed)


def _about(state: RunState, recorded: Recorded) -> Iterator[str]:
    progress = state.progress
    yield from _origin(recorded)
    if state.part is not None:
        rest = "the other servers" if recorded.engine else "the launcher's machine"
        yield f"  only this server's part is shown, {rank_list(state.part)}; for the others run `tlaunch status` on {rest}"
    if state.ended_ns is not None:
        what = "last event" if state.exit_code is None else "ended"
        yield f"  {what} {duration((state.looked_ns - state.ended_ns) / 1e9)} ago"
    if state.state.going_on:
        processes = {"launcher": progress.head, recorded.engine or "agent": progress.agent}
        living = [f"{name} {process.pid}" for name, process in processes.items() if process and process.lives]
        yield f"  processes: {', '.join(living) or 'none yet'}"
    if scheduler := scheduler_text(state):
        yield f"  MindSpore's scheduler: {scheduler}; log in {as_people_call_it(state.run_dir.scheduler_log)}"
    if unknown := [look for look in state.ranks if state.engine and look.state.value == "unwatched"]:
        hosts = sorted({one_line(look.process.host) for look in unknown if look.process})
        where = f" on {', '.join(hosts)}" if hosts else ""
        yield f"  the state of {rank_list([look.global_rank for look in unknown])}{where} is unknown on this machine"
    if recorded.max_restarts:
        yield f"  restarts: {progress.restarts} of at most {recorded.max_restarts}"
    if (allotment := progress.current.allotment) is not None:
        used = counted(len(allotment.devices), "device")
        spare = f", {len(allotment.spare)} spare at its start" if allotment.spare else ""
        where = f"{used} of {len(recorded.devices)}{spare}"
        yield f"  elastic: attempt {progress.current.number} with {allotment.layout} on {where}"
    if progress.current.slow and state.state.going_on:
        yield f"  slower than the others: {rank_list(progress.current.slow)}"


def _failure(state: RunState) -> Iterator[str]:
    """Yield lines about the first failure, and how to resume the run."""
    if failure := culprit(state):
        yield f"  first failure: {failure}"
        yield f"  more: `tlaunch why {as_argument(state.run_dir)}`"
    if state.run_dir.checkpoints.is_dir():
        yield from (f"  {line}" for line in how_to_resume(state))


def _origin(recorded: Recorded) -> Iterator[str]:
    if recorded.continues is not None:
        yield f"  continues {continued_from(recorded.continues)}"
    if recorded.init_from is not None:
        yield f"  initial weights from {one_line(recorded.init_from)}"


def _columns(state: RunState) -> tuple[Column[RankStatus], ...]:
    def state_of(rank: RankStatus) -> str:
        # Only in text: JSON has the rank's state, and the run's state shows that it did not start.
        waits = rank.look.state.value == "waiting" and state.progress.not_begun is not None
        return "not started" if waits else rank.look.state.value

    def beat_age_s(rank: RankStatus) -> float | None:
        return age_s(rank.figures.heartbeat.time_ns if rank.figures.heartbeat else None, state.looked_ns)

    def servers(values: Sequence[str], _text: Callable[[str], str]) -> str:
        return values[0] if len(set(values)) == 1 else counted(len(set(values)), "server")

    return (
        Column("RANK", lambda rank: rank.look.global_rank, joined=listed),
        Column("SERVER", lambda rank: one_line(rank.place.server_id) if rank.place else UNKNOWN, joined=servers),
        Column("DEVICE", lambda rank: rank.place.device_id if rank.place else None, _or_unknown, listed),
        Column("STATE", state_of, joined=same),
        Column("PID", lambda rank: rank.look.process.pid if rank.look.process else None, _or_unknown, same),
        Column("STEP", lambda rank: rank.figures.step, lambda step: number(step, "d")),
        Column("LOSS", lambda rank: rank.figures.loss, lambda loss: number(loss, ".4f")),
        Column("BEAT", beat_age_s, duration, most),
        Column("LOG", lambda rank: rank.log_bytes, size, most),
        Column("WRITTEN", lambda rank: age_s(rank.log_written_ns, state.looked_ns), duration, most),
        Column("END", _end_of, joined=same),
    )


def _end_of(rank: RankStatus) -> str:
    look = rank.look
    return UNKNOWN if look.status is None else one_line(look.reason) if look.reason else describe_status(look.status)


def _or_unknown(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)


def _to_json(rank: RankStatus) -> dict[str, Any]:
    look, figures = rank.look, rank.figures
    beat = figures.heartbeat
    return {
        "global_rank": look.global_rank,
        "server_id": rank.place.server_id if rank.place else None,
        "device_id": rank.place.device_id if rank.place else None,
        "state": look.state.value,
        "pid": look.process.pid if look.process else None,
        "started_ns": look.started_ns,
        "ended_ns": look.ended_ns,
        "status": look.status,
        "reason": look.reason,
        "heartbeat": {"time_ns": beat.time_ns, **asdict(beat.beat)} if beat else None,
        "log_figures": {name: getattr(figures, name) for name in LOG_FIGURES} if figures.from_log else None,
        "log_bytes": rank.log_bytes,
        "log_written_ns": rank.log_written_ns,
    }
