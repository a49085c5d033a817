"""The logs of a run's ranks as lines: all that there is, the last ones, and what comes as they grow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from operator import itemgetter
from pathlib import Path

from launcher.core.events import AttemptStarted, Event, RankStarted, SchedulerStarted
from launcher.core.run_dir import RunDir, mark_of
from launcher.logs.follow import Changes, Follower
from launcher.logs.line_times import Arrivals
from launcher.logs.lines import OVERWRITES, Line, LineReader, PartialLine, attempt_at, with_attempts
from launcher.logs.log_file import CHUNK_BYTES, GrowingLog, Truncation, opened
from launcher.logs.times import Clock
from launcher.runs.attempt_places import AttemptPlaces
from launcher.runs.event_reader import EventReader

SCHEDULER = -1  # stands for MindSpore's scheduler where logs are known by their ranks


class AttemptStarts:
    """The starts of attempts in the logs of all ranks. An attempt after the first starts at its mark."""

    def __init__(self, *, written_anew: bool = False) -> None:
        """`written_anew`: an attempt replaces what the one before has written."""
        self.attempt = 0  # the one that was started last
        self._written_anew = written_anew
        self._of_rank: dict[int, list[tuple[int, int]]] = {}

    def of(self, global_rank: int) -> list[tuple[int, int]]:
        """Offsets, ascending, and the attempts that begin there. The list grows as more becomes known."""
        return self._of_rank.setdefault(global_rank, [])

    def apply(self, event: Event) -> None:
        match event:
            case AttemptStarted(number=number):
                self.attempt = number
            case SchedulerStarted(log_offset=offset):
                mark_bytes = len(mark_of(self.attempt)) if self.attempt else 0
                self.note(SCHEDULER, max(0, offset - mark_bytes), self.attempt)
            case RankStarted(global_rank=global_rank, log_offset=offset):
                mark_bytes = len(mark_of(self.attempt)) if self.attempt else 0
                self.note(global_rank, 0 if self._written_anew else max(0, offset - mark_bytes), self.attempt)
            case _:
                pass

    def note(self, global_rank: int, offset: int, attempt: int) -> None:
        """Take note that `attempt`, or a later one, wrote what begins at `offset`."""
        starts = self.of(global_rank)
        if starts and starts[-1][0] > offset:  # its log was emptied: what it wrote since is all that stands before
            starts[:] = [(0, starts[-1][1])]
        if starts and starts[-1][0] == offset:  # it wrote nothing
            starts.pop()
        starts.append((offset, attempt))


MAX_PIECE_BYTES = 1 << 20  # of a line that is shown in pieces by `blocks`
AT_ONCE_BYTES = 1 << 20  # of all logs together, before the caller has a turn
TIMED_BYTES = (8 << 10, 64 << 10, 256 << 10)  # in which the time of a line that carries none is looked for
MIN_BYTES = 512  # of one log


def why_unreadable(log: Path) -> str | None:
    """Return why a log cannot be read; None where it can, or does not exist yet. Does not block."""
    try:
        with opened(log):
            return None
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.strerror


class RankLog:
    """The lines of one rank in their order, with times and attempts. Close it at the end."""

    def __init__(
        self, global_rank: int, log: GrowingLog, starts: AttemptStarts, near_ns: int, *,
        wanted: Callable[[Line], bool] | None = None, arrivals: Arrivals | None = None,
    ) -> None:  # fmt: skip
        """Begin at the start of `log`. `near_ns`: about when the rank ran, for lines with a time without a year.

        `wanted`: as in `RankLogs`. `arrivals`: of the lines that carry no time.
        """
        self._global_rank = global_rank
        self._log = log
        self._all_starts, self._starts = starts, starts.of(global_rank)
        self._reader = LineReader(global_rank)
        self._clock = Clock(near_ns, arrivals)
        self._wanted = wanted
        self.before_read: Callable[[], None] = lambda: None  # called before each read of `present` and `blocks`

    def skip_to_last(self, count: int, *, with_times: bool = False) -> None:
        """Skip all but the last `count` lines. Call it first.

        `with_times`: look at lines before them, for the time of those that carry none themselves.
        """
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

    def whole(self) -> Iterator[Line]:
        """Yield the lines that `present` yields, and an unfinished last one too."""
        yield from self.present()
        yield from self.rest()

    def whole_from(self, marks: Collection[bytes]) -> Iterator[Line]:
        """Yield what `whole` yields from the chunk before the first of `marks` on; nothing if there is none.

        To search a chunk is much cheaper than to make its lines.
        """
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
        """Yield what `whole` yields, in blocks of whole lines with newlines; pieces and an unfinished line have none."""
        reader = LineReader(self._global_rank, MAX_PIECE_BYTES)
        for chunk in self._present():
            for _, block in reader.blocks(*chunk):
                yield block
        if unfinished := reader.rest().rstrip(OVERWRITES):
            yield unfinished

    def read(self, limit_bytes: int) -> tuple[int, bytes]:
        """Read new bytes of one attempt, at most `limit_bytes`; return them with the offset of the first.

        Does not block.
        """
        position = self._log.position
        _, behind, _ = attempt_at(position, self._starts)
        return self._log.read(int(min(limit_bytes, behind - position)))

    def of_attempt(self, attempt: int, offset: int, chunk: bytes) -> bytes:
        """Return what of a chunk that was just read belongs to `attempt` or an earlier one; the rest is read again."""
        self._note_mark(offset, chunk)
        _, behind, now = attempt_at(offset, self._starts)
        end = offset if now is not None and now > attempt else int(min(behind, offset + len(chunk)))
        if end < offset + len(chunk):
            self._log.position = end
        return chunk[: end - offset]

    def _note_mark(self, offset: int, chunk: bytes) -> None:
        """Look for the mark of an attempt that has begun: the event that says where it begins may come later."""
        _, _, attempt = attempt_at(offset, self._starts)
        for number in range((attempt or 0) + 1, self._all_starts.attempt + 1):  # a rank may have no part in some
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
        """The attempt that wrote what is to be read next; -1 if that is unknown."""
        attempt = attempt_at(self._log.position, self._starts)[2]
        return -1 if attempt is None else attempt

    def lines(self, offset: int, chunk: bytes) -> list[Line]:
        """Return the lines that end in what `read` returned. Call it once for each chunk, in their order."""
        return self._stamped(self._reader.lines(offset, chunk))

    def rest(self) -> list[Line]:
        """Return the start of a line whose end was never written."""
        return self._stamped(self._reader.last_line())

    @property
    def begun(self) -> PartialLine | None:
        """The unfinished line, as far as it was read; None if there is none."""
        return self._reader.partial

    def skip_to_last_bytes(self, keep_bytes: int, keep_lines: int | None = None) -> int:
        """Skip all but the last unread bytes, at most `keep_lines` whole lines; return how many bytes were skipped."""
        return self._log.skip_to_last(keep_bytes, keep_lines)

    def close(self) -> None:
        self._log.close()

    def _present(self) -> Iterator[tuple[int, bytes]]:
        """Yield unread chunks up to the current end of the log, so that it ends while ranks keep writing."""
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


class RankLogs:
    def __init__(
        self, run_dir: RunDir, global_ranks: Collection[int], near_ns: int, *, environment: bool = False,
        on_truncation: Callable[[int, Truncation], object] = lambda _rank, _truncation: None,
        places: AttemptPlaces | None = None, wanted: Callable[[Line], bool] | None = None, timed: bool = False,
    ) -> None:  # fmt: skip
        """Open the logs; those that cannot be opened are left out.

        `environment`: env.log of each rank instead of train.log. `on_truncation` is called with the global rank. `places`
        is told of each attempt. Only lines that are `wanted` are given, but `RankLog.blocks` and `follower` give all. `timed`:
        lines that carry no time have that of their arrival, where it was noted.
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
        """Path and reason, by global rank, of logs that are left out or could not be read the last time."""
        reasons = self._left_out | {rank: log.trouble for rank, log in self._growing.items()}
        return {rank: (self._named[rank], reason) for rank, reason in sorted(reasons.items()) if reason is not None}

    @property
    def _changes(self) -> Changes:
        """The watch over all logs, made when something is followed for the first time."""
        if self._watched is None:
            self._watched = Changes(self._growing)
        return self._watched

    def new_lines(self, *, ended: bool = False, at_once_bytes: int = AT_ONCE_BYTES) -> Iterator[list[Line]]:
        """Yield new lines, some of each rank; nothing once there are none. Does not block.

        Gives about `at_once_bytes` at most of all logs together, and of each of them its share. What an attempt has
        written comes before anything of the next. `ended`: nothing writes any more, and no change is waited for.
        """
        self.note_attempts()
        came_bytes, last_attempt = 0, -1
        due = self._changes.changed(ended=ended)
        limit_bytes = min(CHUNK_BYTES, max(MIN_BYTES, at_once_bytes // max(1, len(due))))
        turns = [(0, global_rank) for global_rank in due]
        if self._starts.attempt:  # those first that are behind
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
            self.note_attempts()  # now: what was just read may be the first of an attempt
            chunk = log.of_attempt(known_attempt, offset, chunk)
            yield log.lines(offset, chunk)
            came_bytes += len(chunk)
            if came_bytes >= max(at_once_bytes, len(due) * limit_bytes):
                return

    def look_at(self, global_rank: int) -> None:
        """Read this log to its current end, changed or not; `is_read` returns true once that is done."""
        self._changes.look_at(global_rank)

    def is_read(self, global_rank: int) -> bool:
        """Return whether `new_lines` has given all that is known to have come."""
        return not self._changes.has_changed(global_rank)

    def follower(self) -> Follower:
        """Return a follower that gives what is unread as it is, instead of `new_lines`."""
        return Follower(self._growing)

    def wait(self, seconds: float) -> None:
        """Sleep until something may have been written, at most that long."""
        self._changes.wait(seconds)

    def note_attempts(self) -> None:
        """Read from the events where attempts that have begun since the last call begin in each log."""
        for stamped in self._events.read():
            self._starts.apply(stamped.event)
            if isinstance(stamped.event, AttemptStarted):
                if self._places is not None:
                    self._places.note(stamped.event.number, stamped.event.allotment)
                if self._watched is not None:
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
