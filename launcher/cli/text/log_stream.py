"""Stream growing logs of ranks to stdout, for `tlaunch logs` and for the console of a run."""

from __future__ import annotations

import codecs
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

TOGETHER = 1000  # lines per write
TOGETHER_BYTES = 1 << 20  # bytes per write, unless one line is longer
HELD_BACK_S = 0.1
RECENT_BYTES = 4 << 20  # of all logs; a new attempt starts within them
PIPE_BYTES = 1 << 20  # Linux's default limit; with a smaller pipe, reader and writer wait for each other
INTERRUPTED_PATIENCE_S = 1.0


def truncated(log: Path, truncation: Truncation) -> str:
    unread = f", {truncation.unread_bytes} of them unread" if truncation.unread_bytes else ""
    return f"warning: {log} was truncated while it was read: {truncation.lost_bytes} bytes are lost{unread}"


class Feed(Protocol):
    """A source of log text from several ranks, with bounded memory use. The caller must close it."""

    def next_text(self, *, ended: bool = False) -> bytes | None:
        """Return some new lines, or None if there are none yet. Does not block.

        Once all ranks have ended (`ended`), partial lines are returned too, and no line waits for other ranks.
        """

    def partial(self) -> Mapping[int, PartialLine]:
        """Return the current partial lines, which have no newline yet, keyed by global rank."""

    def rank_ended(self, global_rank: int) -> None:
        """Record that this rank has ended, so that lines of other ranks no longer wait for it."""

    def skip_to_last(self, keep_bytes: int) -> Iterator[tuple[int, int]]:
        """Skip unread text, except the last `keep_bytes` bytes of all logs together.

        For each log of which text was skipped, yield the global rank and the number of skipped bytes.
        """

    def wait(self, seconds: float) -> None:
        """Sleep until there may be new lines, for at most `seconds`."""

    def close(self) -> None: ...


class PlainFeed:
    """A feed that passes complete lines on unchanged, in the order in which they arrive."""

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
        """Do nothing, because lines do not wait for other ranks."""

    def skip_to_last(self, keep_bytes: int) -> Iterator[tuple[int, int]]:
        for skipped in self._follower.skip_to_last(keep_bytes):
            self._before += self._format.end()  # the rest of a partial line may be skipped
            yield skipped


class LiveFeed:
    """A feed of one rank's output as it is written, so that a prompt appears before its line ends."""

    def __init__(self, global_rank: int, log: GrowingLog, shape: Format) -> None:
        self._global_rank, self._log, self._format = global_rank, log, shape
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self.wait, self.close = time.sleep, log.close

    def next_text(self, *, ended: bool = False) -> bytes | None:
        _, chunk = self._log.read()
        if text := self._decode(chunk, final=ended and not chunk):
            return self._format.live(text)
        return (self._format.end() or None) if ended else None

    def partial(self) -> Mapping[int, PartialLine]:
        return {}

    def rank_ended(self, global_rank: int) -> None:
        """Do nothing, because no line waits."""

    def skip_to_last(self, keep_bytes: int) -> Iterator[tuple[int, int]]:
        if skipped := self._log.skip_to_last(keep_bytes):
            yield self._global_rank, skipped


def format_of(spec: RunSpec, shown: tuple[int, ...], stdout: TextIO) -> Format:
    places = [RankPlace(rank.global_rank, rank.server_id, rank.server_index, rank.device_id) for rank in spec.ranks]
    return Format(LineOptions(keeps_color=True), stdout, places, shown)


def feed_of(
    spec: RunSpec, global_ranks: tuple[int, ...], shape: Format, on_truncation: Callable[[int, Truncation], object],
    part: tuple[RunDir, int] | None = None,
) -> Feed:  # fmt: skip
    """Open a feed that reads the logs of `global_ranks`. The caller must close the feed.

    `on_truncation` is called with the global rank. `part` is a server's directory and the only attempt to show, because
    in other attempts other servers may write these logs.
    """
    run_dir = RunDir(spec.run_dir)
    make_room(len(global_ranks))  # if the limit on open files cannot be raised, some logs are not shown
    if spec.console == "collapse" or part is not None:
        from launcher.cli.text.arranged_lines import ArrangedFeed  # rarely needed
        from launcher.runs.rank_logs import RankLogs

        its_dir, attempt = part or (run_dir, 0)
        logs = RankLogs(
            its_dir, global_ranks, time.time_ns(), on_truncation=on_truncation,
            wanted=None if part is None else lambda line: (line.attempt or 0) == attempt,
        )  # fmt: skip
        feed = ArrangedFeed(logs, shape, collapsed=spec.console == "collapse")
        if attempt:  # skip the lines of earlier attempts
            deque(feed.skip_to_last(RECENT_BYTES), maxlen=0)
        return feed
    growing = {rank: GrowingLog(run_dir.train_log(rank), partial(on_truncation, rank)) for rank in global_ranks}
    if spec.stdin is not None:
        return LiveFeed(spec.stdin, growing[spec.stdin], shape)
    return PlainFeed(Follower(growing), shape)


class Writer:
    """A buffered writer of lines to stdout. Its methods block while the reader of stdout is slow.

    Raises (all methods that write):
        BrokenPipeError: stdout's reader has closed it.
        UnreadableError: stdout cannot be written.
    """

    def __init__(self, shape: Format) -> None:
        self._stdout = StreamWriter(sys.stdout)
        self._format = shape
        with suppress(OSError, AttributeError):  # not a pipe, or not on Linux
            fcntl.fcntl(sys.stdout.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._batch: list[Line | Shown] = []
        self._batch_bytes = 0
        self._flushed_s = 0.0
        self._left = select.poll()
        self._left.register(sys.stdout.fileno(), 0)  # poll always reports errors

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
        """Raise BrokenPipeError if the reader of stdout has closed the pipe."""
        if self._left.poll(0):
            raise BrokenPipeError

    def write(self, lines: Iterable[Line | Shown]) -> None:
        """Write lines in batches. If the iterator raises an exception, the current batch is still written.

        If Ctrl-C interrupts a write to a stuck reader, the output may end in the middle of a line.
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
        """Write the current batch if it has waited too long. The next line may not be found soon."""
        if self._batch and time.monotonic() - self._flushed_s >= HELD_BACK_S:
            self._flush()

    def write_blocks(self, global_rank: int, blocks: Iterable[bytes]) -> None:
        """Write lines of one rank without parsing them. Their prefix must not contain the time."""
        for block in blocks:
            self.put(self._format.block(global_rank, block))
        self.put(self._format.end())

    def write_errors(self, errors: Collection[Folded]) -> None:
        """Write each error once, with the ranks that raised it."""
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
