"""Lines of logs as text, each with what stands before it."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import TextIO

from launcher.cli.long_lines import Beginnings
from launcher.core.frozen import frozen
from launcher.logs.collapse import Shown
from launcher.logs.lines import Line, shown
from launcher.logs.raised import Folded
from launcher.logs.terminal import certainly_printable, printable_lines, shortened, without_colours
from launcher.runs.recorded import Place

GAP = "--"  # between lines that were left out, as grep writes it


@frozen
class Look:
    """What a person chose of how lines look."""

    prefix: str | None = None  # a template; None: the rank, if there are several
    as_json: bool = False
    color: bool | None = None  # None: on a terminal


class Format:
    """Makes bytes of lines, such as may be written to `stream`, whatever the lines hold."""

    def __init__(self, look: Look, stream: TextIO, places: Collection[Place], global_ranks: Collection[int]) -> None:
        self._encoding = stream.encoding or "utf-8"
        self._for_people = stream.isatty()
        self._is_utf8 = codecs.lookup(self._encoding).name == "utf-8"
        self._coloured = self._for_people if look.color is None else look.color
        self._prefixes = _prefixes(look.prefix, places, several=len(global_ranks) > 1)
        self._beginnings = Beginnings() if self._for_people and not look.as_json else None
        self.as_json = look.as_json
        self._as_text: Callable[[Line | Shown | None], str] = _json if look.as_json else self._line

    def of_long(self, line: Line) -> Line | None:
        """What of a line that was selected is to be shown: of one in many pieces a terminal gets the beginning."""
        return line if self._beginnings is None else self._beginnings.of_line(line)

    def lines(self, lines: Iterable[Line | Shown | None]) -> bytes:
        """None stands for lines that were left out."""
        return self.encoded("".join(map(self._as_text, lines)))

    def block(self, global_rank: int, block: bytes) -> bytes:
        """As `lines` does, for whole lines of one rank that nothing is known of; their prefix holds no time."""
        if self._beginnings is not None and not (block := self._beginnings.of_block(global_rank, block)):
            return b""
        prefix = self._prefixes.get(global_rank, "")
        if self._for_people or not self._is_utf8 or not certainly_printable(block):
            return self.encoded("".join([f"{prefix}{self.safe(line)}\n" for line in _lines_of(block)]))
        return _prefixed(block, prefix.encode("utf-8", errors="replace"))

    def error(self, error: Folded) -> bytes:
        """As JSON, whatever is shown otherwise."""
        found = error.traceback
        told = {"type": found.type, "message": found.message, "where": found.where, "text": found.text}
        return self.encoded(json.dumps({"global_ranks": list(error.ranks), **told}) + "\n")

    def safe(self, text: str) -> str:
        """What `printable` gave, with no more than may be shown."""
        text = text if self._coloured else without_colours(text)
        return shortened(text) if self._for_people else text

    def encoded(self, text: str) -> bytes:
        return text.encode(self._encoding, errors="replace")

    def _line(self, line: Line | Shown | None) -> str:
        if line is None:
            return f"{GAP}\n"
        if isinstance(line, Shown):
            return f"{self.safe(str(line))}\n"
        return f"{self._prefix(line)}{self.safe(shown(line))}\n"

    def _prefix(self, line: Line) -> str:
        prefix = self._prefixes.get(line.global_rank, "")
        return prefix.replace("{time}", _clock_time(line.time_ns)) if "{time}" in prefix else prefix


def _json(line: Line | Shown | None) -> str:
    if line is None:
        return ""
    fields: dict[str, object]
    if isinstance(line, Shown):
        fields = {"global_ranks": list(line.ranks), "text": without_colours(line.text)}
    else:
        text = line.raw.decode("utf-8", errors="replace")
        fields = {"global_rank": line.global_rank, "attempt": line.attempt, "time_ns": line.time_ns,
                  "offset": line.offset, "text": text}  # fmt: skip
    return json.dumps(fields) + "\n"


def _lines_of(block: bytes) -> list[str]:
    return printable_lines(block.decode("utf-8", errors="replace").removesuffix("\n"))


def _prefixed(block: bytes, prefix: bytes) -> bytes:
    """Every line of `block` with `prefix`, and a newline at its end."""
    lines = block.removesuffix(b"\n")
    return prefix + (lines.replace(b"\n", b"\n" + prefix) if prefix else lines) + b"\n"


def _prefixes(template: str | None, places: Collection[Place], *, several: bool) -> Mapping[int, str]:
    """By global rank; {time} is left to each line."""
    if template is None:
        template = "[{global_rank}] " if several else ""
    first_of: dict[int, int] = {}
    for place in sorted(places, key=lambda each: each.global_rank):
        first_of.setdefault(place.server_index, place.global_rank)
    return {
        place.global_rank: template.format(
            global_rank=place.global_rank,
            local_rank=place.global_rank - first_of[place.server_index],
            server=place.server_id,
            device=place.device_id,
            time="{time}",
        )
        for place in places
    }


def _clock_time(time_ns: int | None) -> str:
    return "-" if time_ns is None else datetime.fromtimestamp(time_ns / 1e9).strftime("%H:%M:%S")  # noqa: DTZ006 - local
