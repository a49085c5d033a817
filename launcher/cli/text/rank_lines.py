"""Lines of ranks on stdout, as fast as it takes them."""

from __future__ import annotations

import errno
import math
import sys
import time
from collections.abc import Callable

from launcher.cli.text.log_stream import Feed
from launcher.cli.text.stdout import StreamWriter

END_PATIENCE_S = 2.0  # a run that was stopped, or failed, waits no longer for whoever reads stdout


class RankLines:
    """Writes what a feed gives to stdout; where that has no reader, nothing is read of the logs either."""

    def __init__(self, feed: Feed, erase: Callable[[], str], complain: Callable[[str], None]) -> None:
        """`erase` clears the terminal's last row, and returns what is to be written first; `complain` gets a reason."""
        self._feed = feed
        self._erase = erase
        self._complain = complain
        self._stdout = StreamWriter(sys.stdout)

    @property
    def forgotten(self) -> bool:
        """True where stdout has lost its reader."""
        return self._stdout.forgotten

    @property
    def is_within_line(self) -> bool:
        """True where a line may be half shown."""
        return bool(self._stdout.pending)

    def show(self, until_s: float, *, ended: bool = False) -> bool:
        """Show new lines as fast as stdout takes them; return whether some may be left."""
        try:
            while not self._stdout.forgotten:
                if not self._stdout.push(until_s) or time.monotonic() >= until_s:
                    return True
                if (text := self._feed.next_text(ended=ended)) is None:
                    return False
                if text:
                    owed = self._erase()
                    self._stdout.put_bytes(owed.encode() + text if sys.stdout.isatty() else text)
        except OSError as error:
            self._forget(error)
        return False

    def show_rest(self, *, in_haste: bool) -> None:
        """Show all that is left once nothing runs any more; `in_haste`: as much as stdout takes in `END_PATIENCE_S`."""
        patience_s = END_PATIENCE_S if in_haste else math.inf
        late = self.show(time.monotonic() + patience_s, ended=True)
        if late and not self._stdout.pending:  # it took all that came: we have been held up ourselves
            late = self.show(time.monotonic() + patience_s, ended=True)
        if late:
            self._forget(TimeoutError(errno.ETIMEDOUT, f"to show the rest took more than {END_PATIENCE_S:g} s"))

    def _forget(self, error: OSError) -> None:
        """Write to stdout no more, and warn of anything but a reader that has left (`| head`)."""
        self._stdout.forget()
        if not isinstance(error, BrokenPipeError):
            self._complain(str(error.strerror))
