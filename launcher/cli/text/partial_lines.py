"""Lines that ranks have begun and not ended (progress bars, prompts), as one row at the foot of a terminal."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import TextIO

from launcher.cli.text.log_format import Format
from launcher.cli.text.status_line import StatusLine
from launcher.core.text import ranges
from launcher.logs.lines import Begun, Line
from launcher.logs.terminal import printable, without_colours

SHOWN_AFTER_S = 0.3  # most lines that are seen half written are ended by then
REDRAWN_EVERY_S = 0.1
BETWEEN = "  "  # what different ranks say
BAR = re.compile(r"\|(?=[ ]*[#=>\u2581-\u258f]|[ ]{8})[ #=>.\u2581-\u258f-]{3,}\|")


class PartialLines:
    """Shows nothing where `stream` is no terminal. Close it at the end, or something is left on the screen."""

    def __init__(
        self, shape: Format, stream: TextIO, *, hidden: bool = False, before: Callable[[], object] = lambda: None
    ) -> None:
        """`before` is called before something is drawn, for whoever else draws there."""
        row = StatusLine(stream)
        self._row = row if shape.redraws and row.on_terminal and not hidden else None
        self._format, self._before = shape, before
        self._since_s: dict[tuple[int, int], float] = {}  # by global rank and line: when it was seen first
        self._told: set[tuple[int, int]] = set()  # of what `_text` is made
        self._text = ""
        self._next_s = 0.0

    @property
    def wanted(self) -> bool:
        """True where `show` has anything to do."""
        return self._row is not None

    def show(self, begun: Mapping[int, Begun]) -> bool:
        """Draw how lines stand, by global rank; nothing for none. Whether something is to be seen."""
        if self._row is None:
            return False
        now_s = time.monotonic()
        lines = {(global_rank, line.line_offset) for global_rank, line in begun.items()}
        self._since_s = {line: self._since_s.get(line, now_s) for line in lines}
        if now_s >= self._next_s or not self._told <= lines:
            self._next_s = now_s + REDRAWN_EVERY_S
            self._told = {line for line in lines if now_s - self._since_s[line] >= SHOWN_AFTER_S}
            self._text = self._words({global_rank: begun[global_rank] for global_rank, _ in self._told})
        if self._text:
            self._before()
        self._row.show(self._text)
        return self._row.visible

    def erase(self) -> str:
        """Before anything else is written to the terminal; as `StatusLine.erase`."""
        return "" if self._row is None else self._row.erase()

    def close(self) -> None:
        self.erase()

    def _words(self, begun: Mapping[int, Begun]) -> str:
        seen = {global_rank: _seen(line) for global_rank, line in sorted(begun.items())}
        said = {global_rank: text for global_rank, text in seen.items() if text.strip()}
        if len(said) == 1:
            [(global_rank, text)] = said.items()
            return f"{self._format.prefix(global_rank)}{text}".replace("\n", " ")
        return BETWEEN.join(f"[{ranges(alike)}] {text}" for alike, text in _folded(said))


def _seen(line: Begun) -> str:
    """Return a begun line as it is seen; a tab is as wide as a blank."""
    return without_colours(printable(line.state.decode(errors="replace"))).replace("\t", " ")


def _folded(said: Mapping[int, str]) -> list[tuple[list[int], str]]:
    """Return ranks, and what they say alike; bars are left out, whose lengths differ before their numbers do."""
    from launcher.logs.collapse import Alike, Kinds, folded  # one rank alone needs none of it

    kinds = Kinds()
    alike: dict[str, list[Alike]] = {}
    for global_rank, text in said.items():
        line = Alike(Line(global_rank, 0, BAR.sub(" ", text.strip()).encode(errors="replace")), kinds)
        alike.setdefault(line.kind.words, []).append(line)
    return [([each.global_rank for each in lines], folded(lines)) for lines in alike.values()]
