"""Colours for log lines: search matches, and levels from WARNING up."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

import click

from launcher.cli.text.style import ERROR, MATCH, WARNING, Look
from launcher.logs.levels import LEVEL_CHARS, LEVELS, level_at
from launcher.logs.select import Matcher
from launcher.logs.terminal import without_colours

# Parts of the names of levels from WARNING up, in lower case. A fast check, since most lines contain none of them.
_GRAVE = ("warn", "err", "crit", "fatal", "terminate called")
_GLOG = re.compile(r"[WEFC]\d{3}")

Span = tuple[int, int, Look]

_COLOUR = re.compile(r"(\x1b\[[0-9;:]*m)")

_RESET = "\x1b[0m"


class LineStyle:
    """A function that colours log lines."""

    def __init__(self, matchers: Sequence[Matcher] = ()) -> None:
        self._matchers = matchers

    def __call__(self, text: str) -> str:
        """Return a printable line with colours. Raises UsageError if a regular expression takes too long."""
        plain = without_colours(text) if "\x1b" in text else text
        marks = list(_joined(span for matcher in self._matchers for span in matcher.spans(plain)))
        # A line that has colours keeps them.
        found = level_at(plain) if plain is text and _may_be_grave(plain[:LEVEL_CHARS]) else None
        if found is not None and found[0] >= LEVELS["WARNING"]:
            level, start, end = found
            if not any(begin < end and start < stop for begin, stop, _ in marks):
                marks = sorted(
                    [*marks, (start, end, ERROR if level >= LEVELS["ERROR"] else WARNING)], key=itemgetter(0)
                )
        return painted(text, marks) if marks else text


def _may_be_grave(beginning: str) -> bool:
    lowered = beginning.lower()
    return any(word in lowered for word in _GRAVE) or _GLOG.search(beginning) is not None


def _joined(spans: Iterable[tuple[int, int]]) -> Iterator[Span]:
    """Merge overlapping spans, and yield them in order."""
    start = end = 0
    for begin, stop in sorted(spans):
        if begin > end:
            yield from [(start, end, MATCH)] * (end > start)
            start = begin
        end = max(end, stop)
    yield from [(start, end, MATCH)] * (end > start)


def painted(text: str, spans: Sequence[Span]) -> str:
    """Return `text` with each span in its colours.

    Spans are ascending and disjoint; their positions do not count escape sequences in `text`. The text's own colours are
    suspended within a span.
    """
    parts, own, begin = [], "", 0
    left = list(reversed(spans))
    for number, piece in enumerate(_COLOUR.split(text)):
        if number % 2:
            own = "" if piece in {_RESET, "\x1b[m"} else own + piece
            parts.append(piece)
            continue
        at, behind = begin, begin + len(piece)
        while left and left[-1][0] < behind:
            start, stop, look = left[-1]
            start, end = max(start, at), min(stop, behind)
            parts += [piece[at - begin : start - begin], _RESET if own else ""]
            parts += [click.style(piece[start - begin : end - begin], **look), own]
            at = end
            if stop > behind:
                break
            left.pop()
        parts.append(piece[at - begin :])
        begin = behind
    return "".join(parts)
