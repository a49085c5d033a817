"""A status line that is redrawn in place on a terminal."""

from __future__ import annotations

import math
import os
import select
import shutil
import time
from contextlib import suppress
from typing import TextIO

from launcher.cli.text.columns import columns_of, cut_to
from launcher.cli.text.style import takes_escapes
from launcher.logs.terminal import without_colours

ERASED = "\r\x1b[K"
CUT = "…; "
SPARE_COLUMNS = 2  # for the terminal's ^C, which would wrap in a full row
SETTLED_AFTER_S = 0.5
MIN_WHY_COLUMNS = 10  # a shorter excerpt of a failure is useless


class StatusLine:
    """A line that is redrawn in place on a terminal. Call `show` only if `on_terminal` is True.

    No method blocks: while the terminal is stopped (Ctrl-S), nothing is written.
    """

    def __init__(self, stream: TextIO, *, alone: bool = True) -> None:
        """Create a status line. It is drawn only if no other process writes to the terminal (`alone` is true)."""
        self._stream = stream
        self._encoding = stream.encoding or "utf-8"
        self.on_terminal = alone and takes_escapes(stream)
        self._shown = ""
        self.visible = False  # on a terminal
        self._columns: int | None = None  # the terminal's last known width
        self._resized_s = -math.inf  # when the width last changed

    @property
    def width(self) -> int:
        """The usable width: the terminal's current width minus SPARE_COLUMNS."""
        columns = 0
        with suppress(OSError):  # of this stream's terminal; shutil would ask stdout
            columns = os.get_terminal_size(self._stream.fileno()).columns
        return (columns or shutil.get_terminal_size().columns) - SPARE_COLUMNS

    def show(self, text: str, why: str = "") -> None:
        """Show `why` and then `text`. If they do not fit, `why` is shortened first.

        Colours are removed, because shortening could cut off the end of a colour.
        """
        text, why = without_colours(text), without_colours(why)
        width = self.width
        if not self._is_settled(width) and self.visible:
            return
        with suppress(OSError):  # not this session's terminal
            if os.tcgetpgrp(self._stream.fileno()) != os.getpgrp():
                return  # another job, such as the shell, is in the foreground
        room = width - columns_of(text)
        if columns_of(why) > room:
            why = f"{cut_to(why, room - len(CUT))}{CUT}" if room > MIN_WHY_COLUMNS else ""
        text = cut_to(why + text, width)
        if (text != self._shown or not self.visible) and self._takes_text():
            self._write(self._erasure() * self.visible + text)
            self.visible = bool(text)
            self._shown = text

    def erase(self) -> str:
        """Erase the line. If the terminal is stopped, return the escape sequence to write later instead."""
        if not self.visible:
            return ""
        self.visible = False
        erasure = self._erasure()
        if self._takes_text():
            self._write(erasure)
            return ""
        return erasure

    def _is_settled(self, width: int) -> bool:
        """Return True if the terminal's width is stable. During a resize, tmux reports an outdated width."""
        if width != self._columns:
            self._resized_s = -math.inf if self._columns is None else time.monotonic()
            self._columns = width
        return time.monotonic() - self._resized_s >= SETTLED_AFTER_S

    def _erasure(self) -> str:
        """Return the text that erases the line, including any part that has wrapped on a narrower terminal.

        If in doubt, it erases too little, so that lines above are never erased.
        """
        width = self.width
        is_wrapped = self._is_settled(width) and bool(self._shown)
        above = (columns_of(self._shown) - 1) // max(1, width + SPARE_COLUMNS) if is_wrapped else 0
        return ERASED + f"\x1b[A{ERASED}" * above

    def _takes_text(self) -> bool:
        with suppress(OSError):
            return bool(select.select([], [self._stream.fileno()], [], 0)[1])
        return True  # the stream has no descriptor

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            self._stream.write(text.encode(self._encoding, errors="replace").decode(self._encoding))
            self._stream.flush()
