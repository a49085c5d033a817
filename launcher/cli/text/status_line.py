"""A line that is redrawn in place at the foot of a terminal."""

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
SPARE_COLUMNS = 2  # where a terminal writes ^C: in a full row it would wrap, and a half of it would stay
SETTLED_AFTER_S = 0.5
MIN_WHY_COLUMNS = 10  # columns; less of a failure says nothing


class StatusLine:
    """A line that is redrawn in place on a terminal. Elsewhere (`on_terminal` is False) do not call `show`.

    A terminal that takes nothing (Ctrl-S) is left as it is: no method blocks.
    """

    def __init__(self, stream: TextIO, *, alone: bool = True) -> None:
        """`alone`: no other process writes to the same terminal meanwhile; else nothing can be redrawn there."""
        self._stream = stream
        self._encoding = stream.encoding or "utf-8"
        self.on_terminal = alone and takes_escapes(stream)
        self._shown = ""
        self.visible = False  # on a terminal
        self._columns: int | None = None  # of the terminal, when it was looked at last
        self._resized_s = -math.inf  # when they were seen to have changed

    @property
    def width(self) -> int:
        """The columns that may be written to now."""
        columns = 0
        with suppress(OSError):  # of this stream's terminal: stdout may be somewhere else
            columns = os.get_terminal_size(self._stream.fileno()).columns
        return (columns or shutil.get_terminal_size().columns) - SPARE_COLUMNS

    def show(self, text: str, why: str = "") -> None:
        """Show `why` and `text`; `why` is cut first where the terminal is narrow.

        Colours of what is quoted go: the line is cut, and must not lose the end of a colour.
        """
        text, why = without_colours(text), without_colours(why)
        width = self.width
        if (not self._is_settled(width) and self.visible) or self._is_in_background():
            return
        room = width - columns_of(text)
        if columns_of(why) > room:
            why = f"{cut_to(why, room - len(CUT))}{CUT}" if room > MIN_WHY_COLUMNS else ""
        text = cut_to(why + text, width)
        if (text != self._shown or not self.visible) and self._takes_text():
            self._write(self._erasure() * self.visible + text)
            self.visible = bool(text)
            self._shown = text

    def erase(self) -> str:
        """Erase the line; where the terminal takes nothing now, return what to write before anything else."""
        if not self.visible:
            return ""
        self.visible = False
        erasure = self._erasure()
        if self._takes_text():
            self._write(erasure)
            return ""
        return erasure

    def _is_in_background(self) -> bool:
        """Return whether the terminal is another job's now: a shell's prompt, say, which a row would be drawn over."""
        try:
            return os.tcgetpgrp(self._stream.fileno()) != os.getpgrp()
        except OSError:  # it is no terminal of this session
            return False

    def _is_settled(self, width: int) -> bool:
        """Return whether the terminal has had this width for so long that it is the one that it has drawn the row with.

        While a window is dragged, a terminal may say how wide it is when it is no longer so (tmux does for 0.25 s).
        """
        if width != self._columns:
            self._resized_s = -math.inf if self._columns is None else time.monotonic()
            self._columns = width
        return time.monotonic() - self._resized_s >= SETTLED_AFTER_S

    def _erasure(self) -> str:
        """Return what erases the row: also where the terminal has become narrower, and has wrapped it.

        Rather a piece of it is left than a line of others erased above it.
        """
        width = self.width
        is_wrapped = self._is_settled(width) and bool(self._shown)
        above = (columns_of(self._shown) - 1) // max(1, width + SPARE_COLUMNS) if is_wrapped else 0
        return ERASED + f"\x1b[A{ERASED}" * above

    def _takes_text(self) -> bool:
        with suppress(OSError):
            return bool(select.select([], [self._stream.fileno()], [], 0)[1])
        return True  # it is no file

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            self._stream.write(text.encode(self._encoding, errors="replace").decode(self._encoding))
            self._stream.flush()
