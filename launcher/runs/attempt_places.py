"""The places of a run's ranks, attempt by attempt: those of an elastic run are on other devices in another attempt."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.core.records import DeviceAssignment
from launcher.logs.lines import Line
from launcher.runs.record import RankPlace, Recorded


class AttemptPlaces:
    """Learns with `note` which devices attempts have."""

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded
        self._allotments: dict[int, DeviceAssignment | None] = {}  # by attempt
        self._of_attempt: dict[int, Mapping[int, RankPlace]] = {}

    @property
    def change(self) -> bool:
        """True where attempts may have different places."""
        return bool(self._recorded.devices)

    def note(self, attempt: int, allotment: DeviceAssignment | None) -> None:
        """Take note of what an attempt has that begins."""
        self._allotments[attempt] = allotment
        self._of_attempt.pop(attempt, None)

    def of(self, attempt: int | None) -> Mapping[int, RankPlace]:
        """Return the places of an attempt's ranks by global rank, the same mapping until more is known; None: the first."""
        number = attempt or 0
        if number not in self._of_attempt:
            places = self._recorded.places_in(self._allotments.get(number))
            self._of_attempt[number] = {place.global_rank: place for place in places}
        return self._of_attempt[number]

    def of_line(self, line: Line) -> RankPlace | None:
        """Return the place at which a rank has written a line; None where its attempt has no such rank."""
        return self.of(line.attempt).get(line.global_rank)
