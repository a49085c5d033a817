"""Read the lines of ranks' logs: all lines, the last ones, or new ones as the logs grow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from operator import itemgetter
from pathlib import Path

from launcher.core.events import AttemptStarted, Event, RankStarted, SchedulerStarted
from launcher.core.records import DeviceAssignment
from launcher.core.run_dir import RunDir, mark_of
from launcher.logs.follow import Changes, Follower
from launcher.logs.lines import OVERWRITES, Line, LineReader, PartialLine, attempt_at, with_attempts
from launcher.logs.log_file import CHUNK_BYTES, GrowingLog, Truncation, opened
from launcher.logs.times import Arrivals, Clock
from launcher.runs.event_reader import EventReader
from launcher.runs.record import RankPlace, Recorded

SCHEDULER = -1  # the "rank" of MindSpore's scheduler in mappings by rank


class AttemptStarts:
    """The byte offsets where attempts start in the ranks' logs. Attempts after the first begin with `mark_of`."""

    def __init__(self, *, written_anew: bool = False) -> None:
        """Start without attempts. If `written_anew` is True, each attempt overwrites the previous attempt's log."""
        self.attempt = 0  # the latest attempt
        self._written_anew = written_anew
        self._of_rank: dict[int, list[tuple[int, int]]] = {}

    def of(self, global_rank: int) -> list[tuple[int, int]]:
        """Return a rank's (start offset, attempt) pairs in ascending order. The list grows as attempts become known."""
        return self._of_rank.setdefault(global_rank, [])

    def apply(self, event: Event) -> None:
        match event:
            case AttemptStarted(number=number):
                self.attempt = number
            case SchedulerStarted() | RankStarted():
                rank = event.global_rank if isinstance(event, RankStarted) else SCHEDULER
                mark_bytes = len(mark_of(self.attempt)) if self.attempt else 0
                offset = 0 if self._written_anew else max(0, event.log_offset - mark_bytes)
                self.note(rank, offset, self.attempt)
            case _:
                pass

    def note(self, global_rank: int, offset: int, attempt: int) -> None:
        """Record that `attempt` starts at `offset` in a rank's log."""
        starts = self.of(global_rank)
        if starts and starts[-1][0] > offset:  # the log was truncated: all text before `offset` was written since
            starts[:] = [(0, starts[-1][1])]
        if starts and starts[-1][0] == offset:  # that attempt wrote nothing
            starts.pop()
        starts.append((offset, attempt))


MAX_PIECE_BYTES = 1 << 20  # `blocks` splits longer lines
AT_ONCE_BYTES = 1 << 20  # of all logs together, in one call
TIMED_BYTES = (8 << 10, 64 << 10, 256 << 10)  # searched backwards for the time of a line without one
MIN_BYTES = 512  # read from one log


def why_unreadable(log: Path) -> str | None:
    """Return the error message if a log cannot be opened, else None. A missing log is not an error."""
    try:
        with opened(log):
            return None
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.strerror


class RankLog:
    """Reads the lines of one rank's log in order, with times and attempts. Call `close` at the end."""

    def __init__(
        self, global_rank: int, log: GrowingLog, starts: AttemptStarts, near_ns: int, *,
        wanted: Callable[[Line], bool] | None = None, arrivals: Arrivals | None = None,
    ) -> None:  # fmt: skip
        """Start at the beginning of `log`. Times without a year get the year that brings them nearest to `near_ns`.

        `wanted`: as in `RankLogs`. `arrivals`: the times of lines that contain no time.
        """
        self._global_rank = global_rank
        self._log, self._reader = log, LineReader(global_rank)
        self._all_starts, self._starts = starts, starts.of(global_rank)
        self._clock = Clock(near_ns, arrivals)
        self._wanted = wanted
        self.before_read: Callable[[], None] = lambda: None  # called before each read by `present` and `blocks`

    def skip_to_last(self, count: int, *, with_times: bool = False) -> None:
        """Skip all but the last `count` lines. With `with_times`, read back to find the time of the first line kept."""
        self._log.skip_to_last_lines(count)
        for limit_bytes in TIMED_BYTES if with_times else ():
            reader = LineReader(self._global_rank)
            lines = [line for chunk in self._log.before(limit_bytes) for line in reader.lines(*chunk)]
            stamped = [self._clock.stamped(line) for line in lines]
            if any(line.dated for line in stamped):
                return

    def present(self) -> Iterator[Line]:
        """Yield all finished lines up to the current end of the log."""
        for chunk in self._present():
            yield from self.lines(*chunk)

    def with_partial(self) -> Iterator[Line]:
        """Yield all finished lines up to the current end of the log, and then an unfinished last line."""
        yield from self.present()
        yield from self.rest()

    def with_partial_from(self, marks: Collection[bytes]) -> Iterator[Line]:
        """Find the first of `marks` in the log, and yield all lines from about one chunk before it to the end."""
        longest = max(map(len, marks))
        is_found, last_offset, last = False, 0, b""
        for offset, chunk in self._present():
            if not is_found:
                text = last[-longest:] + chunk
                is_found = any(mark in text for mark in marks)
                if is_found:
                    yield from self.lines(last_offset, last)
                last_offset, last = offset, chunk
            if is_found:
                yield from self.lines(offset, chunk)
        yield from self.rest()

    def blocks(self) -> Iterator[bytes]:
        """Yield the log up to its current end in blocks of lines. A block without a newline is part of a long line."""
        reader = LineReader(self._global_rank, MAX_PIECE_BYTES)
        for chunk in self._present():
            for _, block in reader.blocks(*chunk):
                yield block
        if unfinished := reader.rest().rstrip(OVERWRITES):
            yield unfinished

    def read(self, limit_bytes: int) -> tuple[int, bytes]:
        """Read up to `limit_bytes` new bytes of one attempt without blocking. Return their offset and the bytes."""
        position = self._log.position
        _, behind, _ = attempt_at(position, self._starts)
        return self._log.read(int(min(limit_bytes, behind - position)))

    def of_attempt(self, attempt: int, offset: int, chunk: bytes) -> bytes:
        """Return the part of a chunk that was written before the end of `attempt`. The rest is read again later."""
        self._note_mark(offset, chunk)
        _, behind, now = attempt_at(offset, self._starts)
        end = offset if now is not None and now > attempt else int(min(behind, offset + len(chunk)))
        if end < offset + len(chunk):
            self._log.position = end
        return chunk[: end - offset]

    def _note_mark(self, offset: int, chunk: bytes) -> None:
        """Record the offset of a new attempt's mark in a chunk, since the attempt's start event may arrive later."""
        _, _, attempt = attempt_at(offset, self._starts)
        for number in range((attempt or 0) + 1, self._all_starts.attempt + 1):  # a rank may be missing in some attempts
            mark = mark_of(number)
            at = 0 if chunk.startswith(mark) and self._reader.partial is None else chunk.find(b"\n" + mark) + 1
            if at > 0 or chunk.startswith(mark):
                self._all_starts.note(self._global_rank, offset + at, number)
                return

    @property
    def unread_bytes(self) -> int:
        return self._log.unread_bytes

    @property
    def attempt(self) -> int:
        """The attempt that wrote the next unread text, or -1 if it is unknown."""
        attempt = attempt_at(self._log.position, self._starts)[2]
        return -1 if attempt is None else attempt

    def lines(self, offset: int, chunk: bytes) -> list[Line]:
        """Return the lines that end in a chunk from `read`. Call this once for each chunk, in order."""
        return self._stamped(self._reader.lines(offset, chunk))

    def rest(self) -> list[Line]:
        """Return the unfinished last line, or an empty list if there is none."""
        return self._stamped(self._reader.last_line())

    @property
    def partial(self) -> PartialLine | None:
        return self._reader.partial

    def skip_to_last_bytes(self, keep_bytes: int, keep_lines: int | None = None) -> int:
        """Skip to the last `keep_lines` lines, at most `keep_bytes` bytes long. Return the number of bytes skipped."""
        return self._log.skip_to_last(keep_bytes, keep_lines)

    def close(self) -> None:
        self._log.close()

    def _present(self) -> Iterator[tuple[int, bytes]]:
        """Yield the unread chunks up to the size of the log at the time of the call."""
        end = self._log.end
        while self._log.position < end:
            self.before_read()
            offset, chunk = self._log.read(min(CHUNK_BYTES, end - self._log.position))
            if not chunk:
                return
            yield offset, chunk

    def _stamped(self, lines: list[Line]) -> list[Line]:
        stamped = list(map(self._clock.stamped, with_attempts(lines, self._starts)))
        return stamped if self._wanted is None else list(filter(self._wanted, stamped))


class AttemptPlaces:
    """The server and device of each rank in each attempt."""

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded
        self._allotments: dict[int, DeviceAssignment | None] = {}  # by attempt
        self._of_attempt: dict[int, Mapping[int, RankPlace]] = {}

    @property
    def change(self) -> bool:
        """True if a rank can be on different devices in different attempts."""
        return bool(self._recorded.devices)

    def note(self, attempt: int, allotment: DeviceAssignment | None) -> None:
        self._allotments[attempt] = allotment
        self._of_attempt.pop(attempt, None)

    def of(self, attempt: int | None) -> Mapping[int, RankPlace]:
        """Map each global rank to its server and device in an attempt. If `attempt` is None, use the first attempt."""
        number = attempt or 0
        if number not in self._of_attempt:
            places = self._recorded.places_in(self._allotments.get(number))
            self._of_attempt[number] = {place.global_rank: place for place in places}
        return self._of_attempt[number]

    def of_line(self, line: Line) -> RankPlace | None:
        """Return the server and device of the rank that wrote a line, or None if the line's attempt lacks this rank."""
        return self.of(line.attempt).get(line.global_rank)


class RankLogs:
    def __init__(
        self, run_dir: RunDir, global_ranks: Collection[int], near_ns: int, *, environment: bool = False,
        on_truncation: Callable[[int, Truncation], object] = lambda _rank, _truncation: None,
        places: AttemptPlaces | None = None, wanted: Callable[[Line], bool] | None = None, timed: bool = False,
    ) -> None:  # fmt: skip
        """Open the logs of these ranks. Logs that cannot be opened are left out.

        `near_ns` is roughly when the run took place, for times without a year. `environment`: read env.log of each rank
        instead of train.log. `on_truncation` is called with the global rank, and `places` is notified of each attempt.
        `wanted` selects lines, except for `RankLog.blocks` and `follower`. `timed`: lines without a time get their
        recorded arrival time.
        """
        self._on_truncation = on_truncation
        path_of = run_dir.env_log if environment else run_dir.train_log
        self._named = {
            rank: run_dir.scheduler_log if rank == SCHEDULER else path_of(rank) for rank in sorted(global_ranks)
        }
        self._left_out = {rank: why_unreadable(path) for rank, path in self._named.items()}
        self._growing = {
            rank: GrowingLog(path, partial(self._note_truncation, rank))
            for rank, path in self._named.items()
            if self._left_out[rank] is None
        }
        self._starts = AttemptStarts(written_anew=environment)
        arrivals = {rank: Arrivals(run_dir.arrivals(rank), log.path) for rank, log in self._growing.items() if timed}
        self.of_rank = {
            rank: RankLog(rank, log, self._starts, near_ns, wanted=wanted, arrivals=arrivals.get(rank))
            for rank, log in self._growing.items()
        }
        self._places = places
        self._watched: Changes | None = None
        self._events = EventReader(run_dir.events)

    @property
    def unreadable(self) -> dict[int, tuple[Path, str]]:
        """The path and error of each log that cannot be opened or read, by global rank."""
        reasons = self._left_out | {rank: log.trouble for rank, log in self._growing.items()}
        return {rank: (self._named[rank], reason) for rank, reason in sorted(reasons.items()) if reason is not None}

    @property
    def _changes(self) -> Changes:
        if self._watched is None:
            self._watched = Changes(self._growing)
        return self._watched

    def new_lines(self, *, ended: bool = False, at_once_bytes: int = AT_ONCE_BYTES) -> Iterator[list[Line]]:
        """Yield batches of new lines from the ranks until there are none. Does not block.

        Reads about `at_once_bytes` in all, shared equally among the logs. Text of an attempt comes before text of the
        next. `ended`: the run is over, so all logs are read without waiting for changes.
        """
        self.note_attempts()
        came_bytes, last_attempt = 0, -1
        due = self._changes.changed(ended=ended)
        limit_bytes = min(CHUNK_BYTES, max(MIN_BYTES, at_once_bytes // max(1, len(due))))
        turns = [(0, global_rank) for global_rank in due]
        if self._starts.attempt:  # ranks in earlier attempts first
            turns = sorted(((self.of_rank[each].attempt, each) for each in due), key=itemgetter(0))
        for attempt, global_rank in turns:
            if came_bytes and attempt > last_attempt:
                return
            last_attempt, log = attempt, self.of_rank[global_rank]
            known_attempt = log.attempt
            offset, chunk = log.read(limit_bytes)
            if not chunk:
                self._changes.nothing_new(global_rank)
                continue
            self._changes.later(global_rank)
            self.note_attempts()  # now, because the chunk may be the start of an attempt
            chunk = log.of_attempt(known_attempt, offset, chunk)
            yield log.lines(offset, chunk)
            came_bytes += len(chunk)
            if came_bytes >= max(at_once_bytes, len(due) * limit_bytes):
                return

    def look_at(self, global_rank: int) -> None:
        """Mark a log as changed, so that `new_lines` reads it to its current end."""
        self._changes.look_at(global_rank)

    def is_read(self, global_rank: int) -> bool:
        """Return True if `new_lines` has returned all lines of this log, as far as is known."""
        return not self._changes.has_changed(global_rank)

    def follower(self) -> Follower:
        """Return a `Follower` that reads new lines as unchanged bytes. Use it instead of `new_lines`."""
        return Follower(self._growing)

    def wait(self, seconds: float) -> None:
        self._changes.wait(seconds)

    def note_attempts(self) -> None:
        """Read new events, and record the offsets at which new attempts start in the logs."""
        for stamped in self._events.read():
            self._starts.apply(stamped.event)
            if isinstance(stamped.event, AttemptStarted):
                if self._places is not None:
                    self._places.note(stamped.event.number, stamped.event.allotment)
                if self._watched is not None:
                    for global_rank in self.of_rank:  # the previous attempt has written everything
                        self._changes.look_at(global_rank)

    def _note_truncation(self, global_rank: int, truncation: Truncation) -> None:
        starts = self._starts.of(global_rank)
        if starts:  # the log's present content was written by the last attempt
            starts[:] = [(0, starts[-1][1])]
        self._on_truncation(global_rank, truncation)

    def close(self) -> None:
        if self._watched is not None:
            self._watched.close()
        for log in self.of_rank.values():
            log.close()
