"""What a run has measured of itself: reads metrics.jsonl, once or again and again while it grows."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from launcher.core.frozen import frozen
from launcher.core.metrics import Record, Saved, StepMetrics, Validation, from_line

__all__ = ["Metrics", "MetricsReader", "Record", "Saved", "StepMetrics", "Validation", "read_metrics"]

LONGEST_BYTES = 65536  # of a line; what is longer is no record
REMEMBERED_BYTES = 512  # of what was read last: a whole line, as a rule, with its time


@frozen
class Metrics:
    """A whole file, each kind in the order of its lines."""

    steps: tuple[StepMetrics, ...]
    validations: tuple[Validation, ...]
    saved: tuple[Saved, ...]
    strange: int = 0  # lines that are no records of this version


class MetricsReader:
    """Gives the records of a growing metrics.jsonl, each once. Holds no file open.

    A last line that is not whole yet is left for later. A file that shrank, was replaced, or holds something else where
    the last record stood, is read anew.
    """

    def __init__(self, path: Path) -> None:
        self.strange = 0  # lines of the file that are no records of this version
        self._path = path
        self._begin()

    def _begin(self) -> None:
        self._offset = 0
        self._remembered = b""
        self.strange = 0

    def read(self) -> list[Record]:
        """What has come since the last call, in the order of its lines; nothing where there is no file."""
        return list(self.stream())

    def stream(self) -> Iterator[Record]:
        """As `read`, one by one: of a long file no more than a line is held in memory."""
        with suppress(OSError), open(self._path, "rb", opener=_without_waiting) as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                self._go_on(file)
                yield from self._new(file)

    def _go_on(self, file: BinaryIO) -> None:
        """To where the last reading ended, if this is still the same file."""
        file.seek(self._offset - len(self._remembered))
        if file.read(len(self._remembered)) != self._remembered:
            self._begin()
            file.seek(0)

    def _new(self, file: BinaryIO) -> Iterator[Record]:
        while line := file.readline(LONGEST_BYTES):
            if not line.endswith(b"\n") and len(line) < LONGEST_BYTES:
                return
            self._offset += len(line)
            self._remembered = line[-REMEMBERED_BYTES:]
            record = self._understood(line)
            if record is not None:
                yield record

    def _understood(self, line: bytes) -> Record | None:
        try:
            return from_line(line)
        except (ValueError, RecursionError):
            self.strange += bool(line.strip())
            return None


def read_metrics(path: Path) -> Metrics:
    """All that the file holds now; empty where there is none. Takes memory for every line: see `MetricsReader.stream`."""
    reader = MetricsReader(path)
    steps: list[StepMetrics] = []
    validations: list[Validation] = []
    saved: list[Saved] = []
    for record in reader.stream():
        match record:
            case StepMetrics():
                steps.append(record)
            case Validation():
                validations.append(record)
            case Saved():
                saved.append(record)
    return Metrics(tuple(steps), tuple(validations), tuple(saved), reader.strange)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
