"""What ranks write, as text ready to be shown while they write it: for `tlaunch logs --follow` and the console of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol, TextIO

from launcher.cli.text.log_format import Format, Look
from launcher.core.proc import make_room
from launcher.core.records import RunSpec
from launcher.core.run_dir import RunDir
from launcher.logs.follow import Follower
from launcher.logs.growing import GrowingLog, Truncation
from launcher.logs.lines import Begun
from launcher.runs.record import Place


def truncated(log: Path, truncation: Truncation) -> str:
    """Return the line that reports a truncation."""
    unread = f", {truncation.unread_bytes} of them unread" if truncation.unread_bytes else ""
    return f"warning: {log} was truncated while it was followed: {truncation.lost_bytes} bytes are gone{unread}"


class Feed(Protocol):
    """Text of several ranks, bounded in memory however slowly it is taken. Close it at the end."""

    def next_text(self, *, ended: bool = False) -> bytes | None:
        """Return some new lines; None if there are none at the moment. Does not block.

        With `ended` nobody writes any more: an unfinished last line counts, and no line waits for others.
        """

    def begun(self) -> Mapping[int, Begun]:
        """Return what was read of lines that are not ended, by global rank."""

    def rank_ended(self, global_rank: int) -> None:
        """Wait for nothing more from this rank."""

    def skip_to_last(self, keep_bytes: int) -> Iterator[tuple[int, int]]:
        """Leave out all but the last `keep_bytes` of what is unread, all logs together.

        Gives the global rank of each log that is shortened, and how many bytes of it are left out.
        """

    def wait(self, seconds: float) -> None:
        """Sleep until there may be something new, at most so long."""

    def close(self) -> None: ...


class PlainFeed:
    """Whole lines as they are, in the order in which they come."""

    def __init__(self, follower: Follower, shape: Format) -> None:
        self._follower, self._format = follower, shape
        self._before = b""
        self.begun = follower.begun
        self.wait = follower.wait
        self.close = follower.close

    def next_text(self, *, ended: bool = False) -> bytes | None:
        found = self._follower.next_block(ended=ended)
        if found is None:
            return (self._format.end() or None) if ended else None
        before, self._before = self._before, b""
        return before + self._format.block(*found)

    def rank_ended(self, global_rank: int) -> None:
        """Nobody waits for anybody here."""

    def skip_to_last(self, keep_bytes: int) -> Iterator[tuple[int, int]]:
        for skipped in self._follower.skip_to_last(keep_bytes):
            self._before += self._format.end()  # of a line that was begun the rest may be left out
            yield skipped


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
        from launcher.cli.text.arranged_lines import ArrangedFeed  # others need none of it
        from launcher.runs.rank_logs import RankLogs

        logs = RankLogs(run_dir, global_ranks, time.time_ns(), on_truncation=on_truncation)
        return ArrangedFeed(logs, shape, collapsed=True)
    growing = {rank: GrowingLog(run_dir.train_log(rank), partial(on_truncation, rank)) for rank in global_ranks}
    return PlainFeed(Follower(growing), shape)


def shown_ranks(spec: RunSpec, server_index: int | None) -> tuple[int, ...]:
    """Return the ranks that --console shows, of all servers or of one, whose lowest stands for rank 0."""
    ranks = ranks_of(spec, server_index)
    match spec.console:
        case "rank0":
            return ranks[:1]
        case "all" | "collapse":
            return ranks
        case _:
            return ()


def ranks_of(spec: RunSpec, server_index: int | None) -> tuple[int, ...]:
    """Return the global ranks of one server, or of all, ascending."""
    return tuple(rank.global_rank for rank in spec.ranks if server_index in {None, rank.server_index})
