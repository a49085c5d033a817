"""Which lines of a log stand in a Python traceback, told line by line as they come."""

from __future__ import annotations

from launcher.logs.traceback_blocks import HEADER, prefix_of, without_prefix


class TracebackLines:
    """Follows the lines of one rank, in their order."""

    def __init__(self) -> None:
        self._header: str | None = None  # the last line, if it is one: the next one tells what all of them begin with
        self._prefix: str | None = None  # of the traceback that goes on

    def put(self, text: str) -> int | None:
        """Where the traceback's own text begins in this line, behind what torch puts before each; None outside of one.

        A traceback goes from its header to the first line that is not indented, which tells the exception.
        """
        if self._header is not None:
            self._prefix = prefix_of(self._header, text)
            self._header = None
        header = text.find(HEADER)
        if header >= 0 and text.endswith(HEADER):
            self._header = text
            return header
        if self._prefix is None:
            return None
        begins = len(self._prefix)
        body = without_prefix(self._prefix, text)
        if not body:
            self._prefix = None
            return None
        if not body[0].isspace():
            self._prefix = None
        return begins
