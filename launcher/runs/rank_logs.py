"""The logs of a run's ranks as lines: all that there is, the last ones, and what comes as they grow."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection, Iterator
from functools import partial
from operator import itemgetter
from pathlib import Path

from launcher.core.attempt_mark import mark_of
from launcher.core.events import AttemptStarted
from launcher.core.run_dir import RunDir
from launcher.logs.changes import Changes
from launcher.logs.follow import Follower
from launcher.logs.growing import GrowingLog, Truncation
from launcher.logs.lines import OVERWRITES, Begun, Line, Splitter, attempt_at, piece_end, with_attempts
from launcher.logs.tail import CHUNK_BYTES
from launcher.logs.times import Clock
from launcher.runs.attempt_starts import AttemptStarts
from launcher.runs.live import EventReader

LONGEST_BLOCK_BYTES = 1 << 20  # as far as it has no newline
AT_ONCE_BYTES = 1 << 20  # of all logs together, before whoever reads them has a turn
TIMED_BYTES = (8 << 10, 64 << 10, 256 << 10)  # in which the time of a line that tells none is looked for
SMALLEST_BYTES = 512  # of one log


def why_unreadable(log: Path) -> str | None:
    """Why it cannot be read; None where it can, or is not there yet. Does not block."""
    try:
        descriptor = os.open(log, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.strerror
    mode = os.fstat(descriptor).st_mode
    os.close(descriptor)
    if stat.S_ISREG(mode):
        return None
    return os.strerror(errno.EISDIR) if stat.S_ISDIR(mode) else "no regular file"


class RankLog:
    """The lines of one rank in their order, with times and attempts. Close it at the end."""

    def __init__(self, global_rank: int, log: GrowingLog, starts: AttemptStarts, near_ns: int) -> None:
        """`near_ns`: about when the rank ran, nanoseconds since 1970, for lines that tell a time without a year."""
        self._global_rank = global_rank
        self._log = log
        self._all_starts, self._starts = starts, starts.of(global_rank)
        self._splitter = Splitter(global_rank)
        self._clock = Clock(near_ns)
        self.before_read: Callable[[], None] = _nothing  # called again and again while `present` goes through the log

    def skip_to_last(self, count: int, *, with_times: bool = False) -> None:
        """Leave out all but the last `count` lines. Call it first.

        `with_times`: lines before them are looked at, for the time of those that tell none themselves.
        """
        self._log.skip_to_last_lines(count)
        if with_times:
            any(map(self._tells_time_before, TIMED_BYTES))

    def _tells_time_before(self, limit_bytes: int) -> bool:
        """Whether one of so many bytes before what is read next tells a time; lines after it have it."""
        splitter = Splitter(self._global_rank)
        chunks = self._log.before(limit_bytes)
        dated = [self._clock.stamped(line).dated for chunk in chunks for line in splitter.put(*chunk)]
        return any(dated)

    def present(self) -> Iterator[Line]:
        """All lines up to the log's present end that are finished."""
        for offset, chunk in self._present():
            yield from self._told(self._splitter.put(offset, chunk))

    def whole(self) -> Iterator[Line]:
        """As `present`, and an unfinished last one too."""
        yield from self.present()
        yield from self.rest()

    def blocks(self) -> Iterator[bytes]:
        """As `whole`, in blocks of whole lines, each with its newline; pieces and an unfinished last line have none."""
        partial = b""
        for _, chunk in self._present():
            complete, newline, partial = (partial + chunk).rpartition(b"\n")
            if newline:
                yield complete + newline
            elif len(partial) > LONGEST_BLOCK_BYTES:
                size_bytes = piece_end(partial, len(partial) - 1)
                yield partial[:size_bytes]
                partial = partial[size_bytes:]
        if unfinished := partial.rstrip(OVERWRITES):
            yield unfinished

    def read(self, limit_bytes: int) -> tuple[int, bytes]:
        """Bytes of one attempt that came since the last call, at most so many, and the offset of the first.

        Does not block.
        """
        position = self._log.position
        _, behind, _ = attempt_at(position, self._starts)
        return self._log.read(int(min(limit_bytes, behind - position)))

    def of_attempt(self, attempt: int, offset: int, chunk: bytes) -> bytes:
        """What of a chunk that was just read belongs to `attempt` or an earlier one; the rest is read again."""
        self._note_mark(offset, chunk)
        _, behind, now = attempt_at(offset, self._starts)
        end = offset if now is not None and now > attempt else int(min(behind, offset + len(chunk)))
        if end < offset + len(chunk):
            self._log.position = end
        return chunk[: end - offset]

    def _note_mark(self, offset: int, chunk: bytes) -> None:
        """The mark of an attempt that has begun may be there before anybody tells where it begins in this log."""
        _, _, attempt = attempt_at(offset, self._starts)
        if attempt is None or attempt >= self._all_starts.attempt:
            return
        mark = mark_of(attempt + 1)
        at = 0 if chunk.startswith(mark) and self._splitter.begun is None else chunk.find(b"\n" + mark) + 1
        if at > 0 or chunk.startswith(mark):
            self._all_starts.note(self._global_rank, offset + at, attempt + 1)

    @property
    def trouble(self) -> str | None:
        """Why it could not be read when that was tried last."""
        return self._log.trouble

    @property
    def unread_bytes(self) -> int:
        return self._log.unread_bytes

    @property
    def attempt(self) -> int:
        """That of what is to be read next, as far as is known; -1: nobody has said."""
        attempt = attempt_at(self._log.position, self._starts)[2]
        return -1 if attempt is None else attempt

    def lines(self, offset: int, chunk: bytes) -> list[Line]:
        """The lines that end in what `read` gave. Call it once for each chunk, in their order."""
        return list(self._told(self._splitter.put(offset, chunk)))

    def rest(self) -> Iterator[Line]:
        """The start of a line whose end was never written."""
        return self._told(self._splitter.rest())

    @property
    def begun(self) -> Begun | None:
        """What `lines` was given of a line that is not ended; None for nothing."""
        return self._splitter.begun

    def skip_to_last_bytes(self, keep_bytes: int) -> int:
        """Leave out all but so many of the bytes that are unread; how many were left out, up to the start of a line."""
        return self._log.skip_to_last(keep_bytes)

    def close(self) -> None:
        self._log.close()

    def _present(self) -> Iterator[tuple[int, bytes]]:
        """What is unread, up to the present end: whoever writes meanwhile does not keep us for ever."""
        end = self._log.end
        while self._log.position < end:
            self.before_read()
            offset, chunk = self._log.read(min(CHUNK_BYTES, end - self._log.position))
            if not chunk:
                return
            yield offset, chunk

    def _told(self, lines: Iterator[Line]) -> Iterator[Line]:
        return map(self._clock.stamped, with_attempts(lines, self._starts))


def _nothing() -> None:
    """Nobody wants to know."""


class RankLogs:
    """The logs of some ranks of one run."""

    def __init__(
        self, run_dir: RunDir, global_ranks: Collection[int], near_ns: int, *, environment: bool = False,
        on_truncation: Callable[[int, Truncation], object] = lambda _rank, _truncation: None,
    ) -> None:  # fmt: skip
        """Open the logs; those that cannot be opened are left out.

        `environment`: env.log of each rank instead of train.log. `on_truncation` is called with the global rank.
        """
        self._on_truncation = on_truncation
        path_of = run_dir.env_log if environment else run_dir.train_log
        self._named = {rank: path_of(rank) for rank in sorted(global_ranks)}
        self._left_out = {rank: why_unreadable(path) for rank, path in self._named.items()}
        self._growing = {
            rank: GrowingLog(path, partial(self._note_truncation, rank))
            for rank, path in self._named.items()
            if self._left_out[rank] is None
        }
        self._starts = AttemptStarts()
        self.of_rank = {rank: RankLog(rank, log, self._starts, near_ns) for rank, log in self._growing.items()}
        self._watched: Changes | None = None
        self._events = EventReader(run_dir.events)

    @property
    def unreadable(self) -> dict[int, tuple[Path, str]]:
        """By global rank, path and reason: logs that are left out, or could not be read when that was tried last."""
        reasons = self._left_out | {rank: log.trouble for rank, log in self._growing.items()}
        return {rank: (self._named[rank], reason) for rank, reason in sorted(reasons.items()) if reason is not None}

    @property
    def _changes(self) -> Changes:
        """Made when something is followed for the first time."""
        if self._watched is None:
            self._watched = Changes({global_rank: log.path for global_rank, log in self._growing.items()})
        return self._watched

    def new_lines(self, *, ended: bool = False, at_once_bytes: int = AT_ONCE_BYTES) -> Iterator[list[Line]]:
        """Lines that came since the last call, some of each rank; nothing once there are none. Does not block.

        About `at_once_bytes` at most of all logs together, and of each of them its share.

        What an attempt has written comes before anything of the next. With `ended` nobody writes any more, and no change
        is waited for.
        """
        self.note_attempts()
        came_bytes, last_attempt = 0, -1
        due = self._changes.due(ended=ended)
        limit_bytes = min(CHUNK_BYTES, max(SMALLEST_BYTES, at_once_bytes // max(1, len(due))))
        for attempt, global_rank in self._in_turn(due):
            if came_bytes and attempt > last_attempt:
                return
            last_attempt, log = attempt, self.of_rank[global_rank]
            known_attempt = log.attempt
            offset, chunk = log.read(limit_bytes)
            if not chunk:
                self._changes.nothing_new(global_rank)
                continue
            self._changes.later(global_rank)
            self.note_attempts()  # now: what was just read may be the first of an attempt
            chunk = log.of_attempt(known_attempt, offset, chunk)
            yield log.lines(offset, chunk)
            came_bytes += len(chunk)
            if came_bytes >= max(at_once_bytes, len(due) * limit_bytes):
                return

    def _in_turn(self, global_ranks: Collection[int]) -> list[tuple[int, int]]:
        """Attempts and ranks, those first that are behind."""
        if not self._starts.attempt:
            return [(0, global_rank) for global_rank in global_ranks]
        return sorted(((self.of_rank[each].attempt, each) for each in global_ranks), key=itemgetter(0))

    def look_at(self, global_rank: int) -> None:
        """Read this log to its present end, whether anybody told that it has changed or not: `is_read` tells when."""
        self._changes.look_at(global_rank)

    def is_read(self, global_rank: int) -> bool:
        """Whether all that is known to have come was given by `new_lines`."""
        return not self._changes.is_due(global_rank)

    def follower(self) -> Follower:
        """Gives what is unread as it is, instead of `new_lines`."""
        return Follower(self._growing, CHUNK_BYTES)

    def wait(self, seconds: float) -> None:
        """Sleep until something may have come, at most so long."""
        self._changes.wait(seconds)

    def note_attempts(self) -> None:
        """Look where attempts that have begun since the last call begin in each log."""
        for stamped in self._events.read():
            self._starts.take(stamped.event)
            if isinstance(stamped.event, AttemptStarted) and self._watched is not None:
                for global_rank in self.of_rank:  # all that the attempt before wrote is there
                    self._changes.look_at(global_rank)

    def _note_truncation(self, global_rank: int, truncation: Truncation) -> None:
        starts = self._starts.of(global_rank)
        if starts:  # what the log holds now was written by the last attempt
            starts[:] = [(0, starts[-1][1])]
        self._on_truncation(global_rank, truncation)

    def close(self) -> None:
        if self._watched is not None:
            self._watched.close()
        for log in self.of_rank.values():
            log.close()
