"""One line that is redrawn in place: how a run stands, or what its ranks have begun to write."""

from __future__ import annotations

import os
import select
import shutil
import time
from contextlib import suppress
from typing import TextIO

from launcher.cli.text.columns import columns_of, cut_to
from launcher.logs.terminal import without_colours

# Where the status cannot be redrawn in place, it is repeated at most this often.
STATUS_EVERY_S = 1.0
ERASED = "\r\x1b[K"
CUT = "…; "
SPARE_COLUMNS = 2  # where a terminal writes ^C: in a full row it would wrap, and a half of it would stay
MIN_WHY_COLUMNS = 10  # columns; less of a failure tells nothing


class StatusLine:
    """Redrawn in place on a terminal, printed when it changes elsewhere.

    A terminal that takes nothing (Ctrl-S) is left as it is; nobody waits for it.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._encoding = stream.encoding or "utf-8"
        self.on_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = ""
        self.visible = False  # on a terminal
        self._next_s = 0.0

    def hurry(self) -> None:
        """Show what comes next without waiting for the interval to pass."""
        self._next_s = 0.0

    def show(self, text: str, why: str = "") -> None:
        """Show `why` and `text`; `why` is cut first where the terminal is narrow.

        Colours of what is quoted go: the line is cut, and must not lose the end of a colour.
        """
        text, why = without_colours(text), without_colours(why)
        if self.on_terminal:
            width = self._terminal_columns() - SPARE_COLUMNS
            text = cut_to(_cut(why, width - columns_of(text)) + text, width)
            if (text != self._shown or not self.visible) and self._takes_text():
                self._write(ERASED * self.visible + text)
                self.visible = bool(text)
                self._shown = text
            return
        text = why + text
        if text and text != self._shown and time.monotonic() >= self._next_s:
            self._write(text + "\n")
            self._shown = text
            self._next_s = time.monotonic() + STATUS_EVERY_S

    def erase(self) -> str:
        """Take it away. Where the terminal takes nothing now: what is to be written before anything else that comes there."""
        if not self.visible:
            return ""
        self.visible = False
        if self._takes_text():
            self._write(ERASED)
            return ""
        return ERASED

    def _takes_text(self) -> bool:
        with suppress(OSError):
            return bool(select.select([], [self._stream.fileno()], [], 0)[1])
        return True  # it is no file

    def _terminal_columns(self) -> int:
        """Return the width of this stream's terminal: stdout may be somewhere else."""
        with suppress(OSError):
            if columns := os.get_terminal_size(self._stream.fileno()).columns:
                return columns
        return shutil.get_terminal_size().columns

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            self._stream.write(text.encode(self._encoding, errors="replace").decode(self._encoding))
            self._stream.flush()


def _cut(why: str, width: int) -> str:
    if columns_of(why) <= width:
        return why
    return f"{cut_to(why, width - len(CUT))}{CUT}" if width > MIN_WHY_COLUMNS else ""
