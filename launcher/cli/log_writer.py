"""Lines of logs to stdout, each with what stands before it."""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime

from launcher.cli.console import Outlet
from launcher.cli.log_options import LogOptions
from launcher.core.ranges import ranges
from launcher.logs.collapse import Shown
from launcher.logs.lines import Line, shown
from launcher.logs.raised import Folded
from launcher.logs.terminal import certainly_printable, printable_lines, shortened, without_colours
from launcher.runs.recorded import Place

GAP = "--"  # between lines that were left out, as grep writes it


class Writer:
    """Lines to stdout, with what stands before them. Blocks as long as stdout takes nothing.

    Raises (`write`):
        OSError: stdout takes nothing any more; BrokenPipeError: its reader has gone.
    """

    def __init__(self, options: LogOptions, places: Collection[Place], global_ranks: Collection[int]) -> None:
        self._stdout = Outlet(sys.stdout)
        self._for_people = sys.stdout.isatty()
        self._is_utf8 = codecs.lookup(sys.stdout.encoding or "utf-8").name == "utf-8"
        self._coloured = self._for_people if options.color is None else options.color
        self._prefixes = _prefixes(options, places, several=len(global_ranks) > 1)
        self._as_text: Callable[[Line | Shown | None], str] = self._json if options.as_json else self._line

    def write(self, lines: Iterable[Line | Shown | None]) -> None:
        batch: list[str] = []
        for line in lines:
            batch.append(self._as_text(line))
            if len(batch) >= 1000:
                self._put(batch)
        self._put(batch)

    def write_blocks(self, global_rank: int, blocks: Iterable[bytes]) -> None:
        """As `write` does, for whole lines of one rank that nothing is known of; their prefix holds no time."""
        prefix = self._prefixes.get(global_rank, "")
        raw_prefix = prefix.encode("utf-8", errors="replace")
        for block in blocks:
            if self._for_people or not self._is_utf8 or not certainly_printable(block):
                self._put([f"{prefix}{self._safe(line)}\n" for line in _lines_of(block)])
            else:
                self._put_bytes(_prefixed(block, raw_prefix))

    def write_errors(self, errors: Collection[Folded]) -> None:
        """What was raised, each once, with the ranks that raised it."""
        for number, error in enumerate(errors):
            told = [f"ranks {ranges(error.ranks)}:" if len(error.ranks) > 1 else f"rank {error.ranks[0]}:"]
            told += [f"  {self._safe(line)}" for line in printable_lines(error.traceback.text)]
            self._put([*(["\n"] if number else []), *(f"{line}\n" for line in told)])
        if not errors:
            self._put(["no traceback in these logs\n"])

    def _put(self, batch: list[str]) -> None:
        if batch:
            self._stdout.put("".join(batch))
            batch.clear()
            self._stdout.push(float("inf"))

    def _put_bytes(self, block: bytes) -> None:
        self._stdout.put_bytes(block)
        self._stdout.push(float("inf"))

    def _line(self, line: Line | Shown | None) -> str:
        if line is None:
            return f"{GAP}\n"
        if isinstance(line, Shown):
            return f"{self._safe(str(line))}\n"
        return f"{self._prefix(line)}{self._safe(shown(line))}\n"

    def _safe(self, text: str) -> str:
        text = text if self._coloured else without_colours(text)
        return shortened(text) if self._for_people else text

    def _prefix(self, line: Line) -> str:
        prefix = self._prefixes.get(line.global_rank, "")
        return prefix.replace("{time}", _clock_time(line.time_ns)) if "{time}" in prefix else prefix

    @staticmethod
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


def _prefixes(options: LogOptions, places: Collection[Place], *, several: bool) -> Mapping[int, str]:
    """By global rank; {time} is left to each line."""
    template = options.prefix if options.prefix is not None else "[{global_rank}] " if several else ""
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
