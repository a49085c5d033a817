"""What ranks write, as text ready to be shown while they write it: for `tlaunch logs --follow` and the console of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from launcher.cli.text.log_format import Format
from launcher.logs.follow import Follower
from launcher.logs.lines import Begun


class Feed(Protocol):
    """Text of several ranks, bounded in memory however slowly it is taken. Close it at the end."""

    def next_text(self, *, ended: bool = False) -> bytes | None:
        """Some new lines; None if there are none at the moment. Does not block.

        With `ended` nobody writes any more: an unfinished last line counts, and no line waits for others.
        """

    def begun(self) -> Mapping[int, Begun]:
        """What was read of lines that are not ended, by global rank."""

    def rank_ended(self, global_rank: int) -> None:
        """Nothing is waited for any more from this rank."""

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
