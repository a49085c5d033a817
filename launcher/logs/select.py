r"""Select lines by rank, level, time and text.

A user's regular expression can run almost forever: `(a+)+$` on a few dozen characters, `.*.*=` on a line of 64 KiB.
Therefore a search may use at most `SEARCH_S` seconds of CPU time. If a line needs more, only its first `SHORT_CHARS`
are searched. An expression that is still too slow is refused with an error. After `MAX_SLOW` such lines, all lines at
least half as long are cut at once, or a log could take hours. A timer of this process (ITIMER_VIRTUAL, SIGVTALRM)
enforces the limit. It is set only if a search can be slow: in the main thread, for a long line or a complex expression.
In other threads no signal can interrupt a search. There, expressions with more than one repetition are refused, and
only the first `SHORT_CHARS` of a line are searched.
"""

from __future__ import annotations

import math
import re
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from time import localtime, strftime
from types import FrameType
from typing import TypeVar

from launcher.core.errors import UsageError
from launcher.core.text import UNITS_S, duration_s, ranges
from launcher.logs.levels import Levels
from launcher.logs.lines import Line
from launcher.logs.terminal import printable_parts, without_colours
from launcher.logs.times import SECOND_NS, time_in

SEARCH_S = 0.5
SHORT_CHARS = 500
MAX_SLOW = 10  # lines that may each take `SEARCH_S`

F = TypeVar("F")  # what was found: false if nothing
_REPEATS = re.compile(r"[*+?{]")


class Selector:
    """Selects lines by level, time and text. The lines of each rank must come in order, but ranks may alternate."""

    def __init__(
        self,
        *,
        level: int = 0,
        since_ns: int | None = None,
        until_ns: int | None = None,
        matches: Sequence[Matcher] = (),
        excludes: Sequence[Matcher] = (),
    ) -> None:
        """Select lines between two times with at least `level` that match any of `matches` and none of `excludes`.

        Raises UsageError if the first time is after the second.
        """
        if since_ns is not None and until_ns is not None and since_ns > until_ns:
            raise UsageError("--since is later than --until, so no line can match")
        self._level = level
        self._levels: defaultdict[int, Levels] = defaultdict(Levels)  # by global rank
        self._since_ns = since_ns
        self._until_ns = until_ns
        self._matches, self._excludes = matches, excludes
        self.matched = False  # whether any line did
        self.without_time: set[int] = set()  # ranks with lines that were omitted because their time is unknown
        self.dated: set[int] = set()  # ranks with a line that had a time
        self.undated: set[int] = set()  # ranks with a line before the first that had a time

    def accepts(self, line: Line) -> bool:
        """Return True if the line is selected. Raises UsageError if a regular expression takes too long."""
        if line.dated:
            self.dated.add(line.global_rank)
        elif line.time_ns is None:
            self.undated.add(line.global_rank)
        text = ""  # the parts of overwritten text (progress bars), separated by \r
        if self._level or self._matches or self._excludes:
            text = without_colours("\r".join(printable_parts(line.raw.decode("utf-8", errors="replace"))))
        if self._level and self._levels[line.global_rank].of(line, text) < self._level:
            return False
        if self._since_ns is not None or self._until_ns is not None:
            if line.time_ns is None:
                self.without_time.add(line.global_rank)
                return False
            early = self._since_ns is not None and line.time_ns < self._since_ns
            if early or (self._until_ns is not None and line.time_ns > self._until_ns):
                return False
        parts = text.split("\r")
        if any(excludes(part) for excludes in self._excludes for part in parts):
            return False
        if not self._matches:
            return True
        is_match = any(matches(part) for matches in self._matches for part in parts)
        self.matched |= is_match
        return is_match

    @property
    def searches(self) -> bool:
        return bool(self._matches)

    @property
    def cut_short(self) -> int:
        """The number of long lines that were searched only at the beginning, to save time, and did not match there."""
        return sum(each.cut_short for each in (*self._matches, *self._excludes))


# --- ranks ---


def ranks_of(expression: str, known: Collection[int]) -> frozenset[int]:
    """Parse ranks such as `0,3-5` or `all`. Raise UsageError for other text, or a rank that is not in `known`."""
    if expression.strip() == "all":
        return frozenset(known)
    chosen: set[int] = set()
    for part in map(str.strip, expression.split(",")):
        match = re.fullmatch(r"(\d{1,9})(?: ?- ?(\d{1,9}))?", part, re.ASCII)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            hint = "give ranks as 0,3-5 or all"
            raise UsageError(f"{part!r} in {expression!r} is not a rank or a range of ranks", hint=hint)
        first, last = int(match[1]), int(match[2] or match[1])
        found = {rank for rank in known if first <= rank <= last}
        if len(found) != last - first + 1:
            missing = f"rank {first} is not one" if first == last else f"ranks {first}-{last} are not all"
            raise UsageError(f"{missing} of this run's ranks, {ranges(known)}")
        chosen |= found
    return frozenset(chosen)


# --- times ---


def moment(text: str, now_ns: int, *, is_end: bool = False) -> int:
    """Parse a time, a date, or a duration before now such as `10m`. Return nanoseconds since 1970.

    A time of day means its last occurrence; at the end of a span (`is_end`) today's, even if it is still to come.
    Raises UsageError for any other text.
    """
    if (before_s := duration_s(text.removeprefix("-"))) is not None:
        return now_ns - round(before_s * SECOND_NS)
    of_day = re.match(r"\d\d:\d\d", text) is not None
    days = [strftime("%Y-%m-%d ", localtime(now_ns / SECOND_NS - back_s)) for back_s in (0, UNITS_S["d"])]
    key = "time="
    for day in days if of_day else [""]:
        for whole in (f"{key}{day}{text}", f"{key}{day}{text}:00", f"{key}{day}{text} 00:00:00"):
            found = time_in(whole, now_ns)
            if not found or (found.start, found.end) != (len(key), len(whole)):
                continue
            if found.time_ns <= now_ns or is_end or not of_day:
                return found.time_ns
    hint = "give a time, such as 2026-11-21T12:00:00, 2026-11-21 or 12:00, or a duration: 10m means 10 minutes ago"
    raise UsageError(f"{text!r} is not a time", hint=hint)


# --- text ---


class Matcher:
    """A user's regular expression whose search time is limited, as described in the module's docstring."""

    def __init__(self, pattern: str, *, ignores_case: bool = False) -> None:
        """Compile `pattern`. Raises UsageError if it is not a regular expression."""
        try:
            self._compiled = re.compile(pattern, re.IGNORECASE if ignores_case else 0)
        except (re.error, RecursionError, OverflowError) as error:
            raise UsageError(f"{pattern!r} is not a regular expression: {error}") from error
        self._repeats = len(_REPEATS.findall(pattern))
        self.cut_short = 0  # texts without a match in their beginning, whose rest was not searched
        self._slow = 0  # texts that took too long
        self._longest: float = math.inf  # texts up to this length are searched as a whole

    @property
    def groups(self) -> frozenset[str]:
        return frozenset(self._compiled.groupindex)

    def __call__(self, text: str) -> bool:
        """Return True if `text` matches. Raises UsageError if the search takes too long."""
        return self.first(text) is not None

    def first(self, text: str) -> re.Match[str] | None:
        """Return the first match in `text`, or None. Raises UsageError if the search takes too long."""
        return self._bounded(self._compiled.search, text)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return the start and end of each non-empty match in `text`. Raises UsageError if the search takes too long."""
        return self._bounded(
            lambda *searched: [match.span() for match in self._compiled.finditer(*searched) if match[0]], text
        )

    def _bounded(self, look: Callable[..., F], text: str) -> F:
        if len(text) > self._longest:
            return self._in_beginning(look, text)
        if not self._repeats or (self._repeats == 1 and len(text) <= SHORT_CHARS):
            return look(text)
        if threading.current_thread() is not threading.main_thread():
            if self._repeats > 1:
                raise self.refused("may take too long")
            found = look(text, 0, SHORT_CHARS)
            self.cut_short += not found and len(text) > SHORT_CHARS
            return found
        try:
            before = signal.signal(signal.SIGVTALRM, _give_up)
            try:
                signal.setitimer(signal.ITIMER_VIRTUAL, SEARCH_S)
                return look(text)
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
                signal.signal(signal.SIGVTALRM, before)
        except _TooLongError:
            if len(text) <= SHORT_CHARS:
                raise self.refused("takes too long to match a line of the log") from None
            self._slow += 1
            if self._slow >= MAX_SLOW:
                self._longest = max(SHORT_CHARS, min(self._longest, len(text)) // 2)
            return self._in_beginning(look, text)

    def _in_beginning(self, look: Callable[..., F], text: str) -> F:
        found = self._bounded(look, text[:SHORT_CHARS])
        self.cut_short += not found
        return found

    def refused(self, why: str) -> UsageError:
        """Return the error for a regular expression that cannot be used. `why` is the reason, for the message."""
        hint = "repeat less: a `*` or `+` inside or next to another can match one text in too many ways"
        return UsageError(f"the regular expression {self._compiled.pattern!r} {why}", hint=hint)


class _TooLongError(Exception):
    pass


def _give_up(_signal: int, _frame: FrameType | None) -> None:
    raise _TooLongError
