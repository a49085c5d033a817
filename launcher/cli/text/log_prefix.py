"""Prefixes of log lines: the rank, or the fields of `--prefix`."""

from __future__ import annotations

import string
from collections.abc import Callable, Collection, Mapping
from datetime import datetime

from launcher.cli.text.style import OF_RANKS, Screen
from launcher.logs.lines import Line
from launcher.runs.record import RankPlace

Fields = Mapping[str, int | str]
PLACE_FIELDS = frozenset({"local_rank", "server", "device"})


class Prefixes:
    def __init__(
        self, template: str, screen: Screen, places: Collection[RankPlace],
        places_of: Callable[[int | None], Mapping[int, RankPlace]] | None = None,
    ) -> None:  # fmt: skip
        """Create prefixes for log lines. `places_of` returns the devices of an attempt, and is None if they never change."""
        self._template, self._screen = template, screen
        self.names_rank = any(name == "global_rank" for name, _ in prefix_fields(template))
        self._fields = _prefix_fields(places)
        self._places_of = places_of if shows_rank(template) else None
        self._fields_of: dict[int | None, tuple[Mapping[int, RankPlace], Mapping[int, Fields]]] = {}  # by attempt
        self._of_ranks: Mapping[int, str] | None = None  # by global rank; None if prefixes differ between lines
        if not shows_time(template) and self._places_of is None:
            self._of_ranks = {
                rank: self.painted(rank, template.format(**fields)) for rank, fields in self._fields.items()
            }

    def of_rank(self, global_rank: int) -> str:
        """Return the prefix of this rank's lines, or "" if the prefix differs between lines."""
        return self._of_ranks.get(global_rank, "") if self._of_ranks else ""

    def of_line(self, line: Line) -> str:
        """Return the prefix of a line, or "" if the device of the rank is unknown."""
        if self._of_ranks is not None:
            return self._of_ranks.get(line.global_rank, "")
        fields = self._fields_in(line.attempt).get(line.global_rank)
        if fields is None:
            return ""
        time = "-" if line.time_ns is None else datetime.fromtimestamp(line.time_ns / 1e9).strftime("%H:%M:%S")  # noqa: DTZ006
        return self.painted(line.global_rank, self._template.format(**fields, time=time))

    def painted(self, global_rank: int, text: str) -> str:
        return self._screen.paint(text, OF_RANKS[global_rank % len(OF_RANKS)])

    def _fields_in(self, attempt: int | None) -> Mapping[int, Fields]:
        if self._places_of is None:
            return self._fields
        places = self._places_of(attempt)
        known = self._fields_of.get(attempt)
        if known is None or known[0] is not places:
            known = self._fields_of[attempt] = places, _prefix_fields(places.values())
        return known[1]


def prefix_fields(template: str) -> list[tuple[str, str]]:
    """Return the name and format spec of each field. Raises ValueError for an invalid template."""
    return [(name, look or "") for _, name, look, _ in string.Formatter().parse(template) if name is not None]


def shows_time(template: str) -> bool:
    """Return True if a template contains the time. Raises ValueError for an invalid template."""
    return any(name == "time" for name, _ in prefix_fields(template))


def shows_rank(template: str) -> bool:
    """Return True if a template contains the rank's server or device. Raises ValueError for an invalid template."""
    return any(name in PLACE_FIELDS for name, _ in prefix_fields(template))


def _prefix_fields(places: Collection[RankPlace]) -> Mapping[int, Fields]:
    ordered = sorted(places, key=lambda each: each.global_rank, reverse=True)
    first_of = {place.server_index: place.global_rank for place in ordered}
    return {
        place.global_rank: {
            "global_rank": place.global_rank,
            "local_rank": place.global_rank - first_of[place.server_index],
            "server": place.server_id,
            "device": place.device_id,
        }
        for place in places
    }
