"""Reads metrics.jsonl, once or again and again while it grows."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from launcher.core.frozen import frozen
from launcher.core.metrics import SCHEMA, Record, Saved, StepMetrics, Validation, from_line

__all__ = ["Metrics", "MetricsReader", "Record", "Saved", "StepMetrics", "Validation", "read_metrics"]

MAX_LINE_BYTES = 65536  # of a line; what is longer is no record
TAIL_BYTES = 512  # of what was read last: a whole line, as a rule, with its time
MAX_VALUE_CHARS = 40  # characters of one that is quoted
_COMMON = ("time_ns", "attempt", "step")
_NUMBERS = ("loss", "learning_rate", "tokens_per_s", "step_s", "validation_loss", "perplexity")
_WHOLE_NUMBERS = ("memory_bytes", "epoch")
# Quick looks at a line, which is parsed a second time only where it may hold such a thing.
_MAY_BE_WRONG = re.compile(
    rb'"(?:%b|%b|saved)"\s*:\s*["\[{tf]|"(?:%b)"\s*:\s*-?(?:\d+[.eE]|[NI])|"saved"\s*:\s*[-\dNI]'
    % tuple("|".join(names).encode() for names in (_NUMBERS, _WHOLE_NUMBERS, _WHOLE_NUMBERS))
)
_HAS_LOSS = re.compile(rb'"loss"\s*:\s*[-\dnNI]')
_HAS_VALIDATION = re.compile(rb'"validation_loss"\s*:\s*[-\dnNI]')


@frozen
class Metrics:
    """The records of a whole file, each kind in the order of its lines."""

    steps: tuple[StepMetrics, ...]
    validations: tuple[Validation, ...]
    saved: tuple[Saved, ...]
    strange: int = 0  # lines that are no records of this version, or hold a value of a wrong type
    found: bool = True  # whether there is such a file
    first_strange: str | None = None  # which line, and why: "line 3 has no schema"
    unreadable: str | None = None  # why it cannot be read, where there is something: "Permission denied"


class MetricsReader:
    """Reads the records of a growing metrics.jsonl, each once. Holds no file open.

    A last line that is not whole yet is left for later. A file that shrank, was replaced, or holds something else where
    the last record stood, is read anew.
    """

    def __init__(self, path: Path, *, last_bytes: int | None = None, keep_nan: bool = False) -> None:
        """Read nothing yet.

        `last_bytes`: only so much of the end of a longer file is read, from the first whole line in it.
        `keep_nan`: a loss that stands in its line and is not finite is NaN; None only where the line has no loss.
        """
        self.found = False  # at the last call: a file that may be opened
        self.unreadable: str | None = None  # at the last call: why, where there is something: "Permission denied"
        self.strange = 0  # lines of the file that are no records of this version, or hold a value of a wrong type
        self.first_strange: str | None = None  # which line, and why: "line 3 has no schema"
        self.beginnings = 0  # how often a file was begun, the first one included; not those of which nothing was read
        self._path = path
        self._last_bytes = last_bytes
        self._keep_nan = keep_nan
        self._offset = 0
        self._lines: int | None = 0  # that were begun; None where the beginning of the file was not read
        self._remembered = b""
        self._is_within = False  # what is read next is the rest of a line that is no record
        self._waiting: deque[Record] = deque()  # of a line that was read

    def _begin(self, file: BinaryIO) -> None:
        if self._remembered or not self.beginnings:  # else nothing was read of the one that was begun last
            self.beginnings += 1
        self.strange = 0
        self.first_strange = None
        self._remembered = b""
        self._waiting.clear()
        size_bytes = file.seek(0, os.SEEK_END)
        # From the byte before, which may end a line.
        self._offset = 0 if self._last_bytes is None else max(0, size_bytes - self._last_bytes - 1)
        self._is_within = self._offset > 0
        self._lines = None if self._is_within else 0
        file.seek(self._offset)

    def read(self) -> list[Record]:
        """Return what has come since the last call, in the order of its lines; nothing where there is no file."""
        return list(self.stream())

    def stream(self) -> Iterator[Record]:
        """Yield what `read` returns, holding no more than a line in memory."""
        self.found, self.unreadable = False, None
        try:
            with open(self._path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
                self.found = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
                if self.found:
                    file.seek(self._offset - len(self._remembered))
                    if not self._remembered or file.read(len(self._remembered)) != self._remembered:
                        self._begin(file)  # it is another file
                    while self._waiting or self._read_on(file):
                        if self._waiting:
                            yield self._waiting.popleft()
                else:
                    self.unreadable = "it is no regular file"
        except FileNotFoundError:
            pass
        except OSError as error:
            self.unreadable = error.strerror

    def _read_on(self, file: BinaryIO) -> bool:
        """Read a line, or a piece of one that is too long; return False at the end."""
        line = file.readline(MAX_LINE_BYTES)
        is_whole = line.endswith(b"\n")
        if not is_whole and len(line) < MAX_LINE_BYTES:
            return False
        self._offset += len(line)
        self._remembered = line[-TAIL_BYTES:]
        is_rest, self._is_within = self._is_within, not is_whole
        if not is_rest and self._lines is not None:
            self._lines += 1
        if is_whole and not is_rest:
            self._waiting.extend(self._understood(line))
        elif not is_rest:
            self._found_strange(f"is longer than {MAX_LINE_BYTES:,} bytes")
        return True

    def _understood(self, line: bytes) -> tuple[Record, ...]:
        try:
            records = from_line(line)
        except (ValueError, RecursionError):
            if line.strip():
                self._found_strange(_why_no_record(line) if self.first_strange is None else "")
            return ()
        if _MAY_BE_WRONG.search(line):
            fields = json.loads(line)
            wrong = (
                _wrong(fields, _NUMBERS, "a number")
                or _wrong(fields, _WHOLE_NUMBERS, "a whole number")
                or _wrong(fields, ["saved"], "a text")
            )
            if wrong:
                self._found_strange(wrong)
        return tuple(_with_nan(record, line) for record in records) if self._keep_nan else records

    def _found_strange(self, why: str) -> None:
        self.strange += 1
        if self.first_strange is None:
            self.first_strange = f"{'a line' if self._lines is None else f'line {self._lines:,}'} {why}"


def read_metrics(path: Path, *, keep_nan: bool = False) -> Metrics:
    """Return all that the file holds now; empty where there is none. Every line takes memory: see `MetricsReader.stream`."""
    reader = MetricsReader(path, keep_nan=keep_nan)
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
    return Metrics(
        tuple(steps),
        tuple(validations),
        tuple(saved),
        reader.strange,
        reader.found,
        reader.first_strange,
        reader.unreadable,
    )


def _with_nan(record: Record, line: bytes) -> Record:
    match record:
        case StepMetrics(loss=None) if _HAS_LOSS.search(line):
            return replace(record, loss=math.nan)
        case Validation(validation_loss=None) if _HAS_VALIDATION.search(line):
            return replace(record, validation_loss=math.nan)
    return record


def _why_no_record(line: bytes) -> str:
    """Return what is wrong with a line that `from_line` refused."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return "is no JSON"
    if not isinstance(fields, dict):
        return "is no JSON object"
    if fields.get("schema") != SCHEMA:
        return f"has schema {_quoted(fields['schema'])}, not {SCHEMA}" if "schema" in fields else "has no schema"
    missing = [name for name in _COMMON if name not in fields]
    return (
        f"has no {missing[0]}"
        if missing
        else _wrong(fields, _COMMON, "a whole number") or "has a number that is too large"
    )


def _wrong(fields: dict[str, Any], names: Iterable[str], expected: str) -> str | None:
    kinds = {"a number": (int, float), "a whole number": (int,), "a text": (str,)}[expected]
    for name in names:
        value = fields.get(name)
        if type(value) not in kinds and (value is not None or name in _COMMON):
            return f"has {name} {_quoted(value)}, which is not {expected}"
    return None


def _quoted(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[: MAX_VALUE_CHARS - 1]}…"
