"""The devices of a run's ranks in each attempt. In an elastic run they change from attempt to attempt."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.core.records import DeviceAssignment
from launcher.logs.lines import Line
from launcher.runs.record import RankPlace, Recorded


class AttemptPlaces:
    """The device of each rank, by attempt. `note` records the device assignment of a new attempt."""

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded
        self._allotments: dict[int, DeviceAssignment | None] = {}  # by attempt
        self._of_attempt: dict[int, Mapping[int, RankPlace]] = {}

    @property
    def change(self) -> bool:
        """True if ranks can be on other devices in another attempt."""
        return bool(self._recorded.devices)

    def note(self, attempt: int, allotment: DeviceAssignment | None) -> None:
        """Record the device assignment of an attempt that starts."""
        self._allotments[attempt] = allotment
        self._of_attempt.pop(attempt, None)

    def of(self, attempt: int | None) -> Mapping[int, RankPlace]:
        """Return the ranks' places in an attempt, by global rank. None means the first attempt.

        The same mapping is returned until `note` changes it.
        """
        number = attempt or 0
        if number not in self._of_attempt:
            places = self._recorded.places_in(self._allotments.get(number))
            self._of_attempt[number] = {place.global_rank: place for place in places}
        return self._of_attempt[number]

    def of_line(self, line: Line) -> RankPlace | None:
        """Return the place of the rank that wrote a line, or None if the line's attempt has no such rank."""
        return self.of(line.attempt).get(line.global_rank)
