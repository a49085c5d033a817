"""Reads metrics.jsonl, once or again and again while it grows, and sums up steps."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from launcher.core.codec import integer, real_number
from launcher.core.frozen import frozen
from launcher.core.metrics import SCHEMA, Record, Saved, StageShares, StepMetrics, Validation
from launcher.core.regular_files import open_regular

__all__ = [
    "Metrics", "MetricsReader", "Record", "Saved", "StageShares", "StepMetrics", "Validation", "from_line", "median_of",
    "metrics_of", "part_shares", "read_metrics",
]  # fmt: skip

MAX_STRANGE = 100_000  # lines, after which nothing more is read
MAX_LINE_BYTES = 65536  # of a line; what is longer is no record
TAIL_BYTES = 512  # of what was read last: a whole line, as a rule, with its time
MAX_VALUE_CHARS = 40  # characters of one that is quoted
PARTS = ("compute", "communication", "bubble", "data")  # of a step's time
_COMMON = ("time_ns", "attempt", "step")
_OF_A_STEP = frozenset(StepMetrics.__dataclass_fields__).difference(_COMMON)
_OF_A_STEP_ALONE = frozenset({"loss", "tokens_per_s", "step_s"})  # the others may stand beside a validation's as well
_OF_A_VALIDATION = frozenset({"validation_loss", "perplexity", "bleu"})
_COUNTS = ("memory_bytes", "peak_memory_bytes", "epoch")
_OF_STAGES = ("stage_busy", "stage_predicted")
_MEASURES = sorted(_OF_A_STEP.difference(_COUNTS, ("loss",)))
_EXPECTED: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(("loss", *_MEASURES, *_OF_A_VALIDATION), ((int, float), "a number")),
    **dict.fromkeys((*_COMMON, *_COUNTS), ((int,), "a whole number")),
    **dict.fromkeys(_OF_STAGES, ((list,), "a list of numbers")),
    "saved": ((str,), "a text"),
}


def from_line(line: bytes) -> tuple[tuple[Record, ...], str | None]:
    """Return the records of a line (a step, a validation, shares of stages, what was saved); and what is wrong with it, or None.

    Unknown keys are left out, missing ones None; of kinds of a later version there is nothing. A loss that stands in its
    line and is not finite is NaN.
    """
    try:
        fields: Any = json.loads(line)
    except (ValueError, RecursionError):
        return (), "is no JSON"
    if not isinstance(fields, dict):
        return (), "is no JSON object"
    if fields.get("schema") != SCHEMA:
        return (), f"has schema {_quoted(fields['schema'])}, not {SCHEMA}" if "schema" in fields else "has no schema"
    wrong = next((f"has no {name}" for name in _COMMON if name not in fields), None)
    for name, (kinds, expected) in _EXPECTED.items() if wrong is None else ():
        value = fields.get(name)
        if type(value) not in kinds and (value is not None or name in _COMMON):
            wrong = f"has {name} {_quoted(value)}, which is not {expected}"
            break
    time_ns, attempt, step = (integer(fields.get(name)) for name in _COMMON)
    if time_ns is None or attempt is None or step is None:
        return (), wrong or "has a number that is too large"
    return tuple(_records(time_ns, attempt, step, fields)), wrong


def _records(time_ns: int, attempt: int, step: int, fields: dict[str, Any]) -> Iterator[Record]:
    saved = fields.get("saved")
    measured = {name for name, value in fields.items() if value is not None} & (_OF_A_STEP | _OF_A_VALIDATION)
    if not measured and not isinstance(saved, str):  # what was measured may have been NaN
        measured = (fields.keys() & _OF_A_STEP) or (fields.keys() & _OF_A_VALIDATION)
    is_validation = bool(measured & _OF_A_VALIDATION)
    numbers: dict[str, Any] = {name: real_number(fields.get(name)) for name in _MEASURES}
    numbers |= {name: integer(fields.get(name)) for name in _COUNTS}
    if measured & (_OF_A_STEP_ALONE if is_validation or isinstance(saved, str) else _OF_A_STEP):
        yield StepMetrics(
            time_ns,
            attempt,
            step,
            loss=_loss("loss", fields),
            **numbers,
        )
    if is_validation:
        loss = _loss("validation_loss", fields)
        perplexity, bleu = (real_number(fields.get(name)) for name in ("perplexity", "bleu"))
        yield Validation(time_ns, attempt, step, loss, perplexity, bleu)
    if busy := _shares("stage_busy", fields):
        yield StageShares(time_ns, attempt, step, busy, _shares("stage_predicted", fields))
    if isinstance(saved, str):
        yield Saved(time_ns, attempt, step, saved)


def _loss(name: str, fields: dict[str, Any]) -> float | None:
    value = fields.get(name)
    is_written = name in fields and (value is None or type(value) in {int, float})
    return math.nan if is_written and real_number(value) is None else real_number(value)


def _shares(name: str, fields: dict[str, Any]) -> tuple[float, ...]:
    """Return a list of numbers; nothing where it is none, or holds anything else."""
    values = fields.get(name)
    numbers = [real_number(value) for value in values] if isinstance(values, list) else []
    return tuple(value for value in numbers if value is not None) if None not in numbers else ()


def _quoted(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[: MAX_VALUE_CHARS - 1]}…"


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
    stages: tuple[StageShares, ...] = ()


class MetricsReader:
    """Reads the records of a growing metrics.jsonl, each once. Holds no file open.

    A last line that is not whole yet is left for later. A file that shrank, was replaced, or holds something else where
    the last record stood, is read anew.
    """

    def __init__(self, path: Path, *, last_bytes: int | None = None) -> None:
        """`last_bytes`: read only so much of the end of a longer file, from the first whole line in it."""
        self.found = False  # at the last call: a file that may be opened
        self.unreadable: str | None = None  # at the last call: why, where there is something: "Permission denied"
        self.strange = 0  # lines of the file that are no records of this version, or hold a value of a wrong type
        self.first_strange: str | None = None  # which line, and why: "line 3 has no schema"
        self.beginnings = 0  # how often a file was begun, the first one included; not those that were empty
        self._path = path
        self._last_bytes = last_bytes
        self._offset = 0
        self._lines: int | None = 0  # that were begun; None where the beginning of the file was not read
        self._remembered = b""
        self._is_within = False  # what is read next is the rest of a line that is no record

    def _begin(self, file: BinaryIO) -> None:
        if self._remembered or not self.beginnings:  # else nothing was read of the one that was begun last
            self.beginnings += 1
        self.strange = 0
        self.first_strange = None
        self._remembered = b""
        size_bytes = file.seek(0, os.SEEK_END)
        # From the byte before, which may end a line.
        self._offset = 0 if self._last_bytes is None else max(0, size_bytes - self._last_bytes - 1)
        self._is_within = self._offset > 0
        self._lines = None if self._is_within else 0
        file.seek(self._offset)

    def read(self) -> list[Record]:
        """Return what has come since the last call, in the order of its lines; nothing where there is no file."""
        self.found, self.unreadable = False, None
        records: list[Record] = []
        try:
            with os.fdopen(open_regular(self._path), "rb") as file:
                self.found = True
                file.seek(self._offset - len(self._remembered))
                if not self._remembered or file.read(len(self._remembered)) != self._remembered:
                    self._begin(file)  # it is another file
                while (line := file.readline(MAX_LINE_BYTES)).endswith(b"\n") or len(line) == MAX_LINE_BYTES:
                    records += self._records_of(line)
                    if self.strange > MAX_STRANGE:
                        break
        except FileNotFoundError:
            pass
        except OSError as error:
            self.unreadable = error.strerror
        return records

    def _records_of(self, line: bytes) -> Sequence[Record]:
        """Return the records of the next line; none of a piece of one that is too long."""
        is_whole = line.endswith(b"\n")
        self._offset += len(line)
        self._remembered = line[-TAIL_BYTES:]
        is_rest, self._is_within = self._is_within, not is_whole
        if is_rest:
            return ()
        if self._lines is not None:
            self._lines += 1
        if not is_whole:
            self._found_strange(f"is longer than {MAX_LINE_BYTES:,} bytes")
            return ()
        records, wrong = from_line(line)
        if wrong and line.strip():
            self._found_strange(wrong)
        return records

    def _found_strange(self, why: str) -> None:
        self.strange += 1
        if self.first_strange is None:
            self.first_strange = f"{'a line' if self._lines is None else f'line {self._lines:,}'} {why}"


def read_metrics(path: Path) -> Metrics:
    """Return all that the file holds now; empty where there is none."""
    reader = MetricsReader(path)
    return metrics_of(reader.read(), reader)


def metrics_of(records: Sequence[Record], reader: MetricsReader) -> Metrics:
    """Return all records that `reader` has given, by their kinds, with what it says of their file."""
    return Metrics(
        tuple(record for record in records if isinstance(record, StepMetrics)),
        tuple(record for record in records if isinstance(record, Validation)),
        tuple(record for record in records if isinstance(record, Saved)),
        reader.strange,
        reader.found,
        reader.first_strange,
        reader.unreadable,
        tuple(record for record in records if isinstance(record, StageShares)),
    )


def part_shares(steps: Sequence[StepMetrics]) -> dict[str, float]:
    """Return which share of their time `steps` spent on each of `PARTS`, where that was measured."""
    shares = {}
    for part in PARTS:
        known = [(getattr(step, f"{part}_s"), step.step_s) for step in steps]
        pairs = [(spent, seconds) for spent, seconds in known if spent is not None and seconds is not None]
        whole = sum(seconds for _, seconds in pairs)
        share = sum(spent for spent, _ in pairs) / whole if whole else math.nan
        if math.isfinite(share):  # of any program: numbers may be too large to be added
            shares[part] = share
    return shares


def median_of(steps: Sequence[StepMetrics], field: str) -> float | None:
    """Return the median of a field over the steps that have it; None where none has."""
    known = [value for step in steps if (value := getattr(step, field)) is not None]
    return statistics.median(known) if known else None
