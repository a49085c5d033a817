"""What the console of a run shows of its ranks' logs, as `--console` says."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TextIO

from launcher.cli.log_feeds import Feed, PlainFeed
from launcher.cli.log_format import Format, Look
from launcher.core.records import RunSpec
from launcher.core.run_dir import RunDir
from launcher.core.system import make_room
from launcher.logs.follow import Follower
from launcher.logs.growing import GrowingLog, Truncation
from launcher.runs.recorded import Place


def format_of(spec: RunSpec, shown: tuple[int, ...], stdout: TextIO) -> Format:
    places = [Place(rank.global_rank, rank.server_id, rank.server_index, rank.device_id) for rank in spec.ranks]
    return Format(Look(color=True), stdout, places, shown)


def feed_of(
    spec: RunSpec, global_ranks: tuple[int, ...], shape: Format, on_truncation: Callable[[int, Truncation], object]
) -> Feed:
    """Open the feed of these ranks' logs; close it at the end. `on_truncation` is called with the global rank."""
    run_dir = RunDir(spec.run_dir)
    make_room(len(global_ranks))  # where that cannot be, what cannot be opened is not shown
    if spec.console == "collapse":
        from launcher.cli.staged_feed import StagedFeed  # others need none of it
        from launcher.runs.rank_logs import RankLogs

        logs = RankLogs(run_dir, global_ranks, time.time_ns(), on_truncation=on_truncation)
        return StagedFeed(logs, shape, collapsed=True)
    growing = {rank: GrowingLog(run_dir.train_log(rank), partial(on_truncation, rank)) for rank in global_ranks}
    return PlainFeed(Follower(growing), shape)


def shown_ranks(spec: RunSpec, server_index: int | None) -> tuple[int, ...]:
    """Of all servers, or of one: there the lowest stands for rank 0."""
    ranks = ranks_of(spec, server_index)
    match spec.console:
        case "rank0":
            return ranks[:1]
        case "all" | "collapse":
            return ranks
        case _:
            return ()


def ranks_of(spec: RunSpec, server_index: int | None) -> tuple[int, ...]:
    """The global ranks of one server, or of all, ascending."""
    return tuple(rank.global_rank for rank in spec.ranks if server_index in {None, rank.server_index})
