"""Lines that ranks have begun and not ended (progress bars, prompts), as one row at the foot of a terminal."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import TextIO

from launcher.cli.log_format import Format
from launcher.cli.status_line import StatusLine
from launcher.core.ranges import ranges
from launcher.logs.lines import Begun, Line
from launcher.logs.terminal import printable

SHOWN_AFTER_S = 0.3  # most lines that are seen half written are ended by then
REDRAWN_EVERY_S = 0.1
BETWEEN = "  "  # what different ranks say
BAR = re.compile(r"\|[ #=>.\u2581-\u258f-]*\|")


class Unfinished:
    """Shows nothing where `stream` is no terminal. Close it at the end, or something is left on the screen."""

    def __init__(
        self, shape: Format, stream: TextIO, *, hidden: bool = False, before: Callable[[], None] = lambda: None
    ) -> None:
        """`before` is called before something is drawn, for whoever else draws there."""
        self._format, self._before = shape, before
        self._row = StatusLine(stream) if shape.redraws and not hidden else None
        self._since_s: Mapping[tuple[int, int], float] = {}  # by global rank and offset: when it was seen first
        self._next_s = 0.0

    @property
    def wanted(self) -> bool:
        """Whether `show` has anything to do."""
        return self._row is not None

    def show(self, begun: Mapping[int, Begun]) -> bool:
        """Draw how lines stand, by global rank; nothing for none. Whether something is to be seen."""
        if self._row is None:
            return False
        now_s = time.monotonic()
        self._since_s = {
            (rank, line.offset): self._since_s.get((rank, line.offset), now_s) for rank, line in begun.items()
        }
        if begun and now_s < self._next_s:
            return self._row.visible
        self._next_s = now_s + REDRAWN_EVERY_S
        lasting = {
            rank: line for rank, line in begun.items() if now_s - self._since_s[rank, line.offset] >= SHOWN_AFTER_S
        }
        if text := self._text(lasting):
            self._before()
        self._row.show(text)
        return self._row.visible

    def erase(self) -> None:
        """Before anything else is written to the terminal."""
        if self._row is not None:
            self._row.erase()

    close = erase

    def _text(self, begun: Mapping[int, Begun]) -> str:
        shown = {rank: line.state for rank, line in begun.items() if not line.state.isspace()}
        if len(shown) < 2:
            parts = [f"{self._format.prefix(rank)}{printable(_decoded(state))}" for rank, state in shown.items()]
        else:
            parts = [f"[{ranges(alike)}] {text}" for alike, text in _folded(shown)]
        return BETWEEN.join(parts).replace("\t", " ")  # however wide a tab would be here


def _folded(states: Mapping[int, bytes]) -> list[tuple[list[int], str]]:
    """Ranks, and what they say alike; bars are left out, whose lengths differ before their numbers do."""
    from launcher.logs.alike import Alike, Kinds, folded  # one rank alone needs none of it

    kinds = Kinds()
    alike: dict[str, list[Alike]] = {}
    for global_rank, state in states.items():
        said = Alike(Line(global_rank, 0, BAR.sub(" ", _decoded(state)).encode()), kinds)
        alike.setdefault(said.kind.words, []).append(said)
    return [([each.global_rank for each in lines], folded(lines)) for lines in alike.values()]


def _decoded(state: bytes) -> str:
    return state.decode(errors="replace")
