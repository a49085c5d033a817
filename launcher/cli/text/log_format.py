"""Format log lines for output: with prefixes and colours, or as JSON."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import TextIO

import click

from launcher.cli.text.log_prefix import Prefixes
from launcher.cli.text.style import ERROR, MATCH, WARNING, Look, screen_of
from launcher.core.frozen import frozen
from launcher.logs.collapse import Shown
from launcher.logs.levels import LEVEL_CHARS, LEVELS, level_at
from launcher.logs.lines import OVERWRITES, Line, shown, without_mark, without_marks
from launcher.logs.select import Matcher
from launcher.logs.terminal import (
    MAX_LINE_CHARS,
    certainly_printable,
    printable,
    printable_lines,
    shortened,
    without_colours,
)
from launcher.logs.tracebacks import Folded
from launcher.runs.record import RankPlace

NEWLINE = "\n"


@frozen
class LineOptions:
    prefix: str | None = None  # a template; None: the rank, if there are several
    timestamps: bool = False  # add the time to the prefix
    as_json: bool = False
    color: bool | None = None  # show colours; None: only on a terminal
    keeps_color: bool = False  # always keep the lines' own colours
    marked: tuple[Matcher, ...] = ()  # highlight matches if colours are shown


class Format:
    """Formats log lines as bytes that are safe to write to a stream."""

    def __init__(
        self, options: LineOptions, stream: TextIO, places: Collection[RankPlace], global_ranks: Collection[int], *,
        places_of: Callable[[int | None], Mapping[int, RankPlace]] | None = None,
    ) -> None:  # fmt: skip
        """Create a formatter. `places_of` returns an attempt's devices. It is None if devices never change."""
        self._encoding = stream.encoding or "utf-8"
        self._for_people = stream.isatty()
        self._is_utf8 = codecs.lookup(self._encoding).name == "utf-8"
        self._screen = screen_of(stream, options.color)
        self._keeps = options.keeps_color or self._screen.coloured
        self._style = LineStyle(options.marked) if self._screen.coloured else None
        template = ("[{global_rank}] " if len(global_ranks) > 1 else "") if options.prefix is None else options.prefix
        self._prefixes = Prefixes(template + "{time} " * options.timestamps, self._screen, places, places_of)
        self._beginnings = Beginnings() if self._for_people and not options.as_json else None
        self.as_json = options.as_json
        # Rank and offset of the text that continues a partial line, if stdout is not a terminal; the offset is -1 in blocks.
        self._begun: tuple[int, int] | None = None
        self._as_text: Callable[[Line | Shown], str] = _json if options.as_json else self._line

    @property
    def redraws(self) -> bool:
        return self._for_people and not self.as_json

    def prefix(self, global_rank: int) -> str:
        """Return the prefix of this rank's lines, or "" if the prefix differs between lines."""
        return self._prefixes.of_rank(global_rank)

    def of_long(self, line: Line) -> Line | None:
        """Shorten a very long line that goes to a terminal. Return None for later pieces of a shortened line."""
        return line if self._beginnings is None else self._beginnings.of_line(line)

    def lines(self, lines: Iterable[Line | Shown]) -> bytes:
        return self.encoded("".join(map(self._as_text, lines)))

    def block(self, global_rank: int, block: bytes) -> bytes:
        """Format complete lines of one rank, or a piece of a line that the next block continues."""
        if block.endswith(OVERWRITES):  # the next text overwrites this line
            if self._beginnings is not None:
                self._beginnings.forget(global_rank)
            return self.end() if self._begun == (global_rank, -1) else b""
        if self._beginnings is not None and not (block := self._beginnings.of_block(global_rank, block)):
            return b""
        if self._begun is None and block.endswith(b"\n"):
            return self._complete_lines(global_rank, block)
        before, text = b"", self._complete_lines(global_rank, block)
        if self._begun == (global_rank, -1):
            text = text.removeprefix(self.encoded(self.prefix(global_rank)))
        else:
            before = self.end()
        self._begun = (global_rank, -1) if self._continues(block, ends=block.endswith(b"\n")) else None
        return before + (text if self._begun is None else text[: -len(self.encoded("\n"))])

    def live(self, text: str) -> bytes:
        """Format output of a single rank as it is written, with carriage returns and unfinished lines."""
        self._begun = None if text.endswith("\n") else (0, -1)
        pieces = re.split(r"([\r\n])", text)
        return self.encoded("".join(each if each in "\r\n" else self.safe(printable(each)) for each in pieces))

    def end(self) -> bytes:
        """Return a newline if the last line is partial, else b""."""
        return self.encoded(self._end())

    def _complete_lines(self, global_rank: int, block: bytes) -> bytes:
        prefix = self.prefix(global_rank)
        if self._for_people or self._style or not self._is_utf8 or not certainly_printable(block):
            lines = printable_lines(block.decode("utf-8", errors="replace").removesuffix("\n"))
            if self._prefixes.names_rank:
                lines = [without_mark(line, global_rank) for line in lines]
            return self.encoded("".join([f"{prefix}{self.safe(line)}\n" for line in lines]))
        before = self.encoded(prefix)
        block = without_marks(block, global_rank) if self._prefixes.names_rank else block
        text = block.replace(b"\n", b"\n" + before) if prefix else block
        if not block.endswith(b"\n"):
            return before + text + b"\n"
        # Avoid copies: blocks of this size are allocated from and returned to the system each time.
        return b"".join((before, memoryview(text)[: len(text) - len(before)]))

    def error(self, error: Folded) -> bytes:
        found = error.traceback
        fields = {"type": found.type, "message": found.message, "where": found.where, "text": found.text}
        return self.encoded(json.dumps({"global_ranks": list(error.ranks), **fields}) + "\n")

    def safe(self, text: str) -> str:
        """Add colours to a text or remove them, as the stream requires, and shorten the text for a terminal."""
        text = text if self._keeps else without_colours(text)
        text = shortened(text) if self._for_people else text
        return text if self._style is None else self._style(text)

    def encoded(self, text: str) -> bytes:
        return text.encode(self._encoding, errors="replace")

    def _line(self, line: Line | Shown) -> str:
        if isinstance(line, Shown):
            prefix = self._prefixes.painted(line.ranks[0], line.prefix) if len(line.ranks) == 1 else line.prefix
            return f"{prefix}{self.safe(line.text)}\n"
        if self._begun is None and line.ends:  # nearly every line
            return f"{self._prefixes.of_line(line)}{self.safe(self._shown(line))}\n"
        goes_on = self._begun == (line.global_rank, line.offset)
        before = "" if goes_on else f"{self._end()}{self._prefixes.of_line(line)}"
        is_begun = self._continues(line.raw, ends=line.ends)
        self._begun = (line.global_rank, line.offset + len(line.raw)) if is_begun else None
        return f"{before}{self.safe(self._shown(line))}{'' if is_begun else NEWLINE}"

    def _shown(self, line: Line) -> str:
        return without_mark(shown(line), line.global_rank) if self._prefixes.names_rank else shown(line)

    def _continues(self, raw: bytes, *, ends: bool) -> bool:
        """Return True if the next text of the rank continues this line."""
        return not (ends or self._for_people or OVERWRITES in raw)

    def _end(self) -> str:
        begun, self._begun = self._begun, None
        return "" if begun is None else NEWLINE


def _json(line: Line | Shown) -> str:
    fields: dict[str, object]
    if isinstance(line, Shown):
        fields = {"global_ranks": list(line.ranks), "text": without_colours(line.text)}
    else:
        text = line.raw.decode("utf-8", errors="replace")
        fields = {"global_rank": line.global_rank, "attempt": line.attempt, "time_ns": line.time_ns,
                  "offset": line.offset, "text": text}  # fmt: skip
        if not line.ends:
            fields["ends"] = False
    return json.dumps(fields) + "\n"


MARK = "… and more"
KEPT_CHARS = 900  # with a prefix and MARK still shorter than MAX_LINE_CHARS


class Beginnings:
    """A filter that shortens long log lines of several ranks to their beginnings."""

    def __init__(self) -> None:
        self._goes_on_at: dict[int, int] = {}  # by global rank: offset of the next piece of a cut line
        self._goes_on: set[int] = set()  # ranks whose last block ended within a cut line

    def of_line(self, line: Line) -> Line | None:
        """Return the line, or only the beginning of a long line. Return None for later pieces of a long line."""
        goes_on = self._goes_on_at.pop(line.global_rank, None) == line.offset
        if not _is_cut(line.raw, goes_on=goes_on, ends=line.ends):
            return line
        if not line.ends:
            self._goes_on_at[line.global_rank] = line.offset + len(line.raw)
        return None if goes_on else replace(line, raw=_cut(line.raw))

    def forget(self, global_rank: int) -> None:
        self._goes_on.discard(global_rank)

    def of_block(self, global_rank: int, block: bytes) -> bytes:
        """Return the part of a block to show. A block is several lines or a piece of a line."""
        goes_on = global_rank in self._goes_on
        self._goes_on.discard(global_rank)
        if goes_on:
            rest, newline, following = block.partition(b"\n")
            if newline and _is_cut(rest, goes_on=True, ends=True):
                return following
        if block.endswith(b"\n") or not _is_cut(block, goes_on=goes_on, ends=False):
            return block
        self._goes_on.add(global_rank)
        return b"" if goes_on else _cut(block)


def _is_cut(raw: bytes, *, goes_on: bool, ends: bool) -> bool:
    """Return True if this piece belongs to a line that must be shortened."""
    return OVERWRITES not in raw and (goes_on or (not ends and len(raw) > MAX_LINE_CHARS))


def _cut(raw: bytes) -> bytes:
    beginning = raw[: 4 * KEPT_CHARS].decode(errors="replace")[:KEPT_CHARS]
    return f"{beginning}{MARK}".encode()


# Parts of the names of levels from WARNING up, in lower case. A fast check, since most lines contain none of them.
_GRAVE = ("warn", "err", "crit", "fatal", "terminate called")
_GLOG = re.compile(r"[WEFC]\d{3}")

Span = tuple[int, int, Look]

_COLOUR = re.compile(r"(\x1b\[[0-9;:]*m)")

_RESET = "\x1b[0m"


class LineStyle:
    """Colours log lines: matches of regular expressions, and the levels of warnings and errors."""

    def __init__(self, matchers: Sequence[Matcher] = ()) -> None:
        self._matchers = matchers

    def __call__(self, text: str) -> str:
        """Add colours to a printable line. Raises UsageError if a regular expression takes too long."""
        plain = without_colours(text) if "\x1b" in text else text
        marks = list(_joined(span for matcher in self._matchers for span in matcher.spans(plain)))
        beginning = plain[:LEVEL_CHARS]
        is_grave = any(word in beginning.lower() for word in _GRAVE) or _GLOG.search(beginning) is not None
        # A line that has colours keeps them.
        found = level_at(plain) if plain is text and is_grave else None
        if found is not None and found[0] >= LEVELS["WARNING"]:
            level, start, end = found
            if not any(begin < end and start < stop for begin, stop, _ in marks):
                marks.append((start, end, ERROR if level >= LEVELS["ERROR"] else WARNING))
                marks.sort(key=itemgetter(0))
        return painted(text, marks) if marks else text


def _joined(spans: Iterable[tuple[int, int]]) -> Iterator[Span]:
    """Yield the spans in order, with overlapping spans merged."""
    start = end = 0
    for begin, stop in sorted(spans):
        if begin > end:
            yield from [(start, end, MATCH)] * (end > start)
            start = begin
        end = max(end, stop)
    yield from [(start, end, MATCH)] * (end > start)


def painted(text: str, spans: Sequence[Span]) -> str:
    """Return `text` with the colours of each span added.

    Spans must be ascending and disjoint. Their positions do not count escape sequences in `text`. Within a span, the
    colours that `text` already has are suspended.
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
