"""Turn the logs of ranks, while they grow, into text for stdout: for `tlaunch logs` and the console of a run."""

from __future__ import annotations

import fcntl
import math
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol, TextIO

from launcher.cli.text.log_format import Format, LineOptions
from launcher.cli.text.stdout import StreamWriter
from launcher.core.errors import UnreadableError
from launcher.core.machine.proc import make_room
from launcher.core.records import RunSpec
from launcher.core.run_dir import RunDir
from launcher.core.text import ranges
from launcher.logs.collapse import Shown
from launcher.logs.follow import Follower
from launcher.logs.lines import Line, PartialLine
from launcher.logs.log_file import GrowingLog, Truncation
from launcher.logs.terminal import printable_lines
from launcher.logs.tracebacks import Folded
from launcher.runs.record import RankPlace

TOGETHER = 1000  # lines that are written at once
TOGETHER_BYTES = 1 << 20  # as far as one line alone has not more
HELD_BACK_S = 0.1
RECENT_BYTES = 4 << 20  # of all logs together, in which an attempt begins that has just begun
PIPE_BYTES = 1 << 20  # as much as the system allows every user; with less, reader and writer wait for each other
INTERRUPTED_PATIENCE_S = 1.0


def truncated(log: Path, truncation: Truncation) -> str:
    """Return the line that reports a truncation."""
    unread = f", {truncation.unread_bytes} of them unread" if truncation.unread_bytes else ""
    return f"warning: {log} was truncated while it was followed: {truncation.lost_bytes} bytes are gone{unread}"


class Feed(Protocol):
    """Text of several ranks, bounded in memory however slowly it is taken. Close it at the end."""

    def next_text(self, *, ended: bool = False) -> bytes | None:
        """Return some new lines; None if there are none at the moment. Does not block.

        With `ended` no rank writes any more: an unfinished last line counts, and no line waits for others.
        """

    def partial(self) -> Mapping[int, PartialLine]:
        """Return what was read of lines that are not ended, by global rank."""

    def rank_ended(self, global_rank: int) -> None:
        """Wait for nothing more from this rank."""

    def skip_to_last(self, keep_bytes: int) -> Iterator[tuple[int, int]]:
        """Leave out all but the last `keep_bytes` of what is unread, all logs together.

        Yield the global rank of each log that is shortened, and how many bytes of it are left out.
        """

    def wait(self, seconds: float) -> None:
        """Sleep until there may be something new, at most for `seconds`."""

    def close(self) -> None: ...


class PlainFeed:
    """A feed of whole lines as they are, in the order in which they come."""

    def __init__(self, follower: Follower, shape: Format) -> None:
        self._follower, self._format = follower, shape
        self._before = b""
        self.partial = follower.partial
        self.wait = follower.wait
        self.close = follower.close

    def next_text(self, *, ended: bool = False) -> bytes | None:
        found = self._follower.next_block(ended=ended)
        if found is None:
            return (self._format.end() or None) if ended else None
        before, self._before = self._before, b""
        return before + self._format.block(*found)

    def rank_ended(self, global_rank: int) -> None:
        """Do nothing: no line waits for another."""

    def skip_to_last(self, keep_bytes: int) -> Iterator[tuple[int, int]]:
        for skipped in self._follower.skip_to_last(keep_bytes):
            self._before += self._format.end()  # of a line that was begun the rest may be left out
            yield skipped


def format_of(spec: RunSpec, shown: tuple[int, ...], stdout: TextIO) -> Format:
    places = [RankPlace(rank.global_rank, rank.server_id, rank.server_index, rank.device_id) for rank in spec.ranks]
    return Format(LineOptions(keeps_color=True), stdout, places, shown)


def feed_of(
    spec: RunSpec, global_ranks: tuple[int, ...], shape: Format, on_truncation: Callable[[int, Truncation], object],
    part: tuple[RunDir, int] | None = None,
) -> Feed:  # fmt: skip
    """Open the feed of these ranks' logs; close it at the end. `on_truncation` is called with the global rank.

    `part`: a server's files, and the only attempt of which lines are shown. In others other servers may write these logs.
    """
    run_dir = RunDir(spec.run_dir)
    make_room(len(global_ranks))  # where that cannot be, what cannot be opened is not shown
    if spec.console == "collapse" or part is not None:
        from launcher.cli.text.arranged_lines import ArrangedFeed  # others need none of it
        from launcher.runs.rank_logs import RankLogs

        its_dir, attempt = part or (run_dir, 0)
        logs = RankLogs(
            its_dir, global_ranks, time.time_ns(), on_truncation=on_truncation,
            wanted=None if part is None else lambda line: (line.attempt or 0) == attempt,
        )  # fmt: skip
        feed = ArrangedFeed(logs, shape, collapsed=spec.console == "collapse")
        if attempt:  # it has just begun, and before it much may have been written
            deque(feed.skip_to_last(RECENT_BYTES), maxlen=0)
        return feed
    growing = {rank: GrowingLog(run_dir.train_log(rank), partial(on_truncation, rank)) for rank in global_ranks}
    return PlainFeed(Follower(growing), shape)


class Writer:
    """Lines on their way to stdout. Each method blocks while stdout takes nothing.

    Raises (everything that writes):
        BrokenPipeError: stdout's reader has gone.
        UnreadableError: stdout takes nothing any more.
    """

    def __init__(self, shape: Format) -> None:
        self._stdout = StreamWriter(sys.stdout)
        self._format = shape
        with suppress(OSError, AttributeError):  # it is no pipe, or this is no Linux
            fcntl.fcntl(sys.stdout.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._batch: list[Line | Shown] = []
        self._batch_bytes = 0
        self._flushed_s = 0.0
        self._left = select.poll()
        self._left.register(sys.stdout.fileno(), 0)  # errors are reported unasked

    def put(self, text: bytes, patience_s: float = math.inf) -> None:
        if not text:
            return
        self._stdout.put_bytes(text)
        try:
            self._stdout.push(time.monotonic() + patience_s)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise UnreadableError(f"stdout cannot be written: {error.strerror}") from error

    def check_reader(self) -> None:
        """Raise BrokenPipeError where stdout has lost its reader."""
        if self._left.poll(0):
            raise BrokenPipeError

    def write(self, lines: Iterable[Line | Shown]) -> None:
        """Write lines, many at once; those that wait are written too when the search for more is broken off.

        A write that is broken off itself (Ctrl-C while the reader takes nothing) may end anywhere.
        """
        try:
            for line in lines:
                self._batch.append(line)
                self._batch_bytes += len(line.text) if isinstance(line, Shown) else len(line.raw)
                if len(self._batch) >= TOGETHER or self._batch_bytes >= TOGETHER_BYTES:
                    self._flush()
        except BaseException:
            self._flush(INTERRUPTED_PATIENCE_S)
            raise
        self._flush()
        self.put(self._format.end())

    def flush_late(self) -> None:
        """Write the lines that have been found if the last ones were written a while ago: the next may be far away."""
        if self._batch and time.monotonic() - self._flushed_s >= HELD_BACK_S:
            self._flush()

    def write_blocks(self, global_rank: int, blocks: Iterable[bytes]) -> None:
        """Write unread lines of one rank; their prefix holds no time."""
        for block in blocks:
            self.put(self._format.block(global_rank, block))
        self.put(self._format.end())

    def write_errors(self, errors: Collection[Folded]) -> None:
        """Write what was raised, each once, with the ranks that raised it."""
        if self._format.as_json:
            self.put(b"".join(map(self._format.error, errors)))
            return
        texts = []
        for error in errors:
            ranks = f"ranks {ranges(error.ranks)}:" if len(error.ranks) > 1 else f"rank {error.ranks[0]}:"
            lines = map(self._format.safe, printable_lines(error.traceback.text))
            texts.append(f"{ranks}\n" + "".join(f"  {line}\n" for line in lines))
        self.put(self._format.encoded("\n".join(texts) or "no traceback in these logs\n"))

    def _flush(self, patience_s: float = math.inf) -> None:
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        self.put(self._format.lines(batch), patience_s)
        self._flushed_s = time.monotonic()
