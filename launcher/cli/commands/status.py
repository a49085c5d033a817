"""`tlaunch status`: the state of a run, rank by rank."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from launcher.cli.options.chosen_run import LIVE_RUN_HELP, as_argument, chosen_live, json_option, run_argument
from launcher.cli.text.columns import aligned, counted, duration, number, size
from launcher.cli.text.run_text import as_json as run_as_json
from launcher.cli.text.run_text import continued_from, culprit, describe, shown_name
from launcher.cli.text.stdout import write_out
from launcher.cli.text.style import Screen, screen_of
from launcher.cli.text.verdict_text import describe_status, rank_list
from launcher.core.codec import json_text
from launcher.core.frozen import frozen
from launcher.core.heartbeat import Heartbeat, read_heartbeat
from launcher.core.run_dir import RunDir
from launcher.logs.terminal import one_line
from launcher.runs.record import Place, Recorded, read_recorded
from launcher.runs.status import RankLook, RunState, look

EPILOG = """\b
Examples:
  tlaunch status
  tlaunch status 20261121-053712-transformer --json

States of a rank: waiting (about to start), not started (and will not be), running, stopped (by SIGSTOP or Ctrl-Z), ended,
gone (its exit code is unknown), unwatched (started by `tlaunch exec` on another machine: only mpirun or srun knows its
state). STEP and LOSS come from the rank's heartbeat file. LOG is the amount written to train.log, WRITTEN the time since the last write.

Exit codes: 0 whatever the run's state is; 2 wrong usage, or no such run.
"""
HEADER = ("RANK", "SERVER", "DEVICE", "STATE", "PID", "STEP", "LOSS", "BEAT", "LOG", "WRITTEN", "END")
RIGHT = frozenset({"RANK", "DEVICE", "PID", "STEP", "LOSS", "BEAT", "LOG", "WRITTEN"})


@frozen
class RankStatus:
    """All that is known of one rank."""

    look: RankLook
    place: Place | None
    heartbeat: Heartbeat | None
    log_bytes: int | None  # None where there is no log
    log_written_ns: int | None


@click.command(epilog=EPILOG, help=f"Show the state of a run, rank by rank.\n\n{LIVE_RUN_HELP}")
@json_option
@run_argument
def status(*, run: str | None, as_json: bool, runs_dir: Path) -> None:
    run_dir = chosen_live(runs_dir, run)
    recorded = read_recorded(run_dir)
    state = look(run_dir)
    places = recorded.places_in(state.progress.current.allotment)
    ranks = [_rank_status(rank, places, run_dir) for rank in state.ranks]
    if as_json:
        whole = run_as_json(state) | {"max_restarts": recorded.max_restarts, "each": [_to_json(rank) for rank in ranks]}
        write_out(json_text(whole))
    else:
        write_out("".join(f"{line}\n" for line in _lines(state, ranks, recorded, screen_of(sys.stdout))))


def _rank_status(look: RankLook, places: tuple[Place, ...], run_dir: RunDir) -> RankStatus:
    place = next((place for place in places[look.global_rank :] if place.global_rank == look.global_rank), None)
    path = run_dir.train_log(look.global_rank)
    log_bytes = logged_ns = None
    with suppress(OSError):
        found = path.stat()
        logged_ns, log_bytes = found.st_mtime_ns, found.st_size
    heartbeat = read_heartbeat(run_dir.heartbeat(look.global_rank))
    return RankStatus(look, place, heartbeat, log_bytes, logged_ns)


def _lines(state: RunState, ranks: list[RankStatus], recorded: Recorded, screen: Screen) -> Iterator[str]:
    yield f"{shown_name(state)}: {screen.description(describe(state, restarts=not recorded.max_restarts))}"
    yield from _about(state, recorded)
    if failure := culprit(state):
        yield f"  first failure: {failure}"
        yield f"  more: tlaunch why {as_argument(state.run_dir)}"
    if ranks:
        yield ""
        yield from aligned(
            HEADER,
            [_row(rank, state) for rank in ranks],
            right=RIGHT,
            paint={"STATE": screen.state, "END": screen.state},
        )


def _about(state: RunState, recorded: Recorded) -> Iterator[str]:
    progress = state.progress
    if recorded.continues is not None:
        yield f"  continues {continued_from(recorded.continues)}"
    if state.part is not None:
        rest = "its script on each other server" if recorded.engine else "the launcher that began the run"
        yield f"  only this server's part, {rank_list(state.part)}: {rest} has the rest"
    if state.ended_ns is not None:
        what = "last event" if state.exit_code is None else "ended"
        yield f"  {what} {duration((state.looked_ns - state.ended_ns) / 1e9)} ago"
    if state.state.going_on:
        processes = {"launcher": progress.head, recorded.engine or "agent": progress.agent}
        living = [f"{name} {process.pid}" for name, process in processes.items() if process and process.lives]
        yield f"  processes: {', '.join(living) or 'none yet'}"
    if unknown := [look for look in state.ranks if state.engine and look.state.value == "unwatched"]:
        hosts = sorted({one_line(look.process.host) for look in unknown if look.process})
        where = f", which are on {', '.join(hosts)}" if hosts else ""
        yield f"  the state of {rank_list([look.global_rank for look in unknown])}{where} is not known on this machine"
    if recorded.max_restarts:
        yield f"  restarts: {progress.restarts} of at most {recorded.max_restarts}"
    if (allotment := progress.current.allotment) is not None:
        used = counted(len(allotment.devices), "device")
        spare = f", {len(allotment.spare)} spare at its beginning" if allotment.spare else ""
        where = f"{used} of {len(recorded.devices)}{spare}"
        yield f"  elastic: attempt {progress.current.number} with {allotment.layout} on {where}"
    if progress.current.slow and state.state.going_on:
        yield f"  slower than the others: {rank_list(progress.current.slow)}"


def _row(rank: RankStatus, state: RunState) -> tuple[str, ...]:
    look, beat = rank.look, rank.heartbeat.beat if rank.heartbeat else None
    return (
        str(look.global_rank),
        one_line(rank.place.server_id) if rank.place else "-",
        str(rank.place.device_id) if rank.place else "-",
        # `--json` has the state alone: of a run that did not begin that says the same.
        "not started" if look.state.value == "waiting" and state.progress.not_begun is not None else look.state.value,
        str(look.process.pid) if look.process else "-",
        number(beat.step if beat else None, "d"),
        number(beat.loss if beat else None, ".4f"),
        duration(_age_s(rank.heartbeat.time_ns if rank.heartbeat else None, state)),
        size(rank.log_bytes),
        duration(_age_s(rank.log_written_ns, state)),
        "-" if look.status is None else one_line(look.reason) if look.reason else describe_status(look.status),
    )


def _age_s(time_ns: int | None, state: RunState) -> float | None:
    return None if time_ns is None else max(0.0, (state.looked_ns - time_ns) / 1e9)


def _to_json(rank: RankStatus) -> dict[str, Any]:
    look = rank.look
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
        "heartbeat": {"time_ns": rank.heartbeat.time_ns, **asdict(rank.heartbeat.beat)} if rank.heartbeat else None,
        "log_bytes": rank.log_bytes,
        "log_written_ns": rank.log_written_ns,
    }
