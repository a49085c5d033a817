"""What a run has measured of itself: reads metrics.jsonl, once or again and again while it grows."""

from __future__ import annotations

import os
import stat
from collections import deque
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
    found: bool = True  # whether there is such a file


class MetricsReader:
    """Gives the records of a growing metrics.jsonl, each once. Holds no file open.

    A last line that is not whole yet is left for later. A file that shrank, was replaced, or holds something else where
    the last record stood, is read anew.
    """

    def __init__(self, path: Path, *, last_bytes: int | None = None) -> None:
        """`last_bytes`: of a file that is longer only its end is read, from the first whole line in it."""
        self.found = False  # at the last call
        self.strange = 0  # lines of the file that are no records of this version
        self.beginnings = 0  # how often a file was begun, the first one included
        self._path = path
        self._last_bytes = last_bytes
        self._offset = 0
        self._remembered = b""
        self._is_within = False  # what is read next is the rest of a line that is no record
        self._waiting: deque[Record] = deque()  # of a line that was read

    def _begin(self, file: BinaryIO) -> None:
        self.beginnings += 1
        self.strange = 0
        self._waiting.clear()
        size_bytes = file.seek(0, os.SEEK_END)
        # From the byte before, which may end a line.
        self._offset = 0 if self._last_bytes is None else max(0, size_bytes - self._last_bytes - 1)
        self._is_within = self._offset > 0
        file.seek(self._offset)

    def read(self) -> list[Record]:
        """What has come since the last call, in the order of its lines; nothing where there is no file."""
        return list(self.stream())

    def stream(self) -> Iterator[Record]:
        """As `read`, one by one: of a long file no more than a line is held in memory."""
        self.found = False
        with suppress(OSError), open(self._path, "rb", opener=_without_waiting) as file:
            self.found = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            if self.found:
                self._go_on(file)
                yield from self._new(file)

    def _go_on(self, file: BinaryIO) -> None:
        """To where the last reading ended, if this is still the same file."""
        file.seek(self._offset - len(self._remembered))
        if not self._remembered or file.read(len(self._remembered)) != self._remembered:
            self._begin(file)

    def _new(self, file: BinaryIO) -> Iterator[Record]:
        while self._waiting or self._read_on(file):
            if self._waiting:
                yield self._waiting.popleft()

    def _read_on(self, file: BinaryIO) -> bool:
        """A line, or a piece of one that is too long; False at the end."""
        line = file.readline(LONGEST_BYTES)
        is_whole = line.endswith(b"\n")
        if not is_whole and len(line) < LONGEST_BYTES:
            return False
        self._offset += len(line)
        self._remembered = line[-REMEMBERED_BYTES:]
        is_rest, self._is_within = self._is_within, not is_whole
        if is_whole and not is_rest:
            self._waiting.extend(self._understood(line))
        elif not is_rest:
            self.strange += 1
        return True

    def _understood(self, line: bytes) -> tuple[Record, ...]:
        try:
            return from_line(line)
        except (ValueError, RecursionError):
            self.strange += bool(line.strip())
            return ()


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
    return Metrics(tuple(steps), tuple(validations), tuple(saved), reader.strange, reader.found)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
