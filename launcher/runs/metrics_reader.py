"""Read metrics.jsonl, once or repeatedly while it grows, and aggregate its steps."""

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

MAX_STRANGE = 100_000  # invalid lines, after which reading stops
MAX_LINE_BYTES = 65536  # of a line; a longer line is not a record
MAX_SKIPPED_BYTES = 256 << 20  # of longer lines, after which reading stops
TAIL_BYTES = 512  # the end of the last read data, usually a complete line with its time
MAX_VALUE_CHARS = 40  # of a value quoted in a message
PARTS = ("compute", "communication", "bubble", "data")  # of a step's time
KINDS: dict[str, type] = {
    "steps": StepMetrics, "validations": Validation, "saved": Saved, "stages": StageShares,
}  # fmt: skip
_COMMON = ("time_ns", "attempt", "step")
_OF_A_STEP = frozenset(StepMetrics.__dataclass_fields__).difference(_COMMON)
_OF_A_STEP_ALONE = frozenset({"loss", "tokens_per_s", "step_s"})  # other fields may also be in a validation
_OF_A_VALIDATION = frozenset({"validation_loss", "perplexity", "bleu"})
_COUNTS = ("memory_bytes", "peak_memory_bytes", "epoch")
_OF_STAGES = ("stage_busy", "stage_predicted")
_MEASURES = sorted(_OF_A_STEP.difference(_COUNTS, ("loss",)))
_EXPECTED: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(("loss", *_MEASURES, *_OF_A_VALIDATION), ((int, float), "a number")),
    **dict.fromkeys((*_COMMON, *_COUNTS), ((int,), "an integer")),
    **dict.fromkeys(_OF_STAGES, ((list,), "a list of numbers")),
    "saved": ((str,), "a string"),
}


def from_line(line: bytes) -> tuple[tuple[Record, ...], str | None]:
    """Parse a line of metrics.jsonl. Return the records in the line, and an error message or None.

    Unknown keys are ignored, and missing keys are None. Records of kinds from a later version are ignored. A loss that
    is present but not finite is NaN.
    """
    try:
        fields: Any = json.loads(line)
    except (ValueError, RecursionError):
        return (), "is not JSON"
    if not isinstance(fields, dict):
        return (), "is not a JSON object"
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
    if not measured and not isinstance(saved, str):  # measured values may have been NaN, which is written as null
        measured = (fields.keys() & _OF_A_STEP) or (fields.keys() & _OF_A_VALIDATION)
    is_validation = bool(measured & _OF_A_VALIDATION)
    numbers: dict[str, Any] = {name: real_number(fields.get(name)) for name in _MEASURES}
    numbers |= {name: integer(fields.get(name)) for name in _COUNTS}
    if measured & (_OF_A_STEP_ALONE if is_validation or isinstance(saved, str) else _OF_A_STEP):
        yield StepMetrics(time_ns, attempt, step, loss=_loss("loss", fields), **numbers)
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
    values = fields.get(name)
    numbers = [real_number(value) for value in values] if isinstance(values, list) else []
    return tuple(value for value in numbers if value is not None) if None not in numbers else ()


def _quoted(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[: MAX_VALUE_CHARS - 1]}…"


@frozen
class Metrics:
    """All records of a metrics.jsonl file, grouped by kind. Each group is in file order."""

    steps: tuple[StepMetrics, ...]
    validations: tuple[Validation, ...]
    saved: tuple[Saved, ...]
    stages: tuple[StageShares, ...] = ()
    strange: int = 0  # lines that are not records of this version, or have a value of the wrong type
    found: bool = True  # whether the file exists
    first_strange: str | None = None  # the first such line and its error: "line 3 has no schema"
    unreadable: str | None = None  # why an existing file cannot be read: "Permission denied"


class MetricsReader:
    """Reads metrics.jsonl while it grows, and returns each record once. No file stays open between calls.

    An incomplete last line is left for the next call. The file is read again from the start if it shrank, was replaced,
    or its last record changed.
    """

    def __init__(self, path: Path, *, last_bytes: int | None = None) -> None:
        """Prepare to read the file from its start, or only its last `last_bytes` bytes if given."""
        self.found = False  # whether the last call could open the file
        self.unreadable: str | None = None  # why the last call could not read an existing file: "Permission denied"
        self.strange = 0  # lines that are not records of this version, or have a value of the wrong type
        self.first_strange: str | None = None  # the first such line and its error: "line 3 has no schema"
        self.beginnings = 0  # how often reading started at the beginning of a file that was not empty
        self._path = path
        self._last_bytes = last_bytes
        self._offset = 0
        self._lines: int | None = 0  # lines so far; None if the beginning of the file was not read
        self._remembered = b""
        self._is_within = False  # the next bytes are the rest of a line that is too long
        self._skipped_bytes = 0  # of lines that are too long

    def _begin(self, file: BinaryIO) -> None:
        if self._remembered or not self.beginnings:  # otherwise nothing was read of the previous file
            self.beginnings += 1
        self.strange, self.first_strange, self._remembered = 0, None, b""
        self._skipped_bytes = 0
        size_bytes = file.seek(0, os.SEEK_END)
        # Start one byte earlier, because it may end a line.
        self._offset = 0 if self._last_bytes is None else max(0, size_bytes - self._last_bytes - 1)
        self._is_within = self._offset > 0
        self._lines = None if self._is_within else 0
        file.seek(self._offset)

    def read(self) -> list[Record]:
        """Return the records written since the last call, in file order. Return nothing if the file is missing."""
        self.found, self.unreadable = False, None
        records: list[Record] = []
        try:
            with os.fdopen(open_regular(self._path), "rb") as file:
                self.found = True
                file.seek(self._offset - len(self._remembered))
                if not self._remembered or file.read(len(self._remembered)) != self._remembered:
                    self._begin(file)  # another file
                while (line := file.readline(MAX_LINE_BYTES)).endswith(b"\n") or len(line) == MAX_LINE_BYTES:
                    records += self._records_of(line)
                    if self.strange > MAX_STRANGE or self._skipped_bytes > MAX_SKIPPED_BYTES:
                        break
        except FileNotFoundError:
            pass
        except OSError as error:
            self.unreadable = error.strerror
        return records

    def _records_of(self, line: bytes) -> Sequence[Record]:
        is_whole = line.endswith(b"\n")
        self._offset += len(line)
        self._remembered = line[-TAIL_BYTES:]
        is_rest, self._is_within = self._is_within, not is_whole
        if is_rest or not is_whole:
            self._skipped_bytes += len(line)
        if is_rest:
            return ()
        if self._lines is not None:
            self._lines += 1
        records, wrong = from_line(line) if is_whole else ((), f"is longer than {MAX_LINE_BYTES:,} bytes")
        if wrong and (line.strip() or not is_whole):
            self.strange += 1
            where = "a line" if self._lines is None else f"line {self._lines:,}"
            self.first_strange = self.first_strange or f"{where} {wrong}"
        return records


def read_metrics(path: Path) -> Metrics:
    """Return all records of a metrics.jsonl file. The result is empty if the file is missing."""
    reader = MetricsReader(path)
    return metrics_of(reader.read(), reader)


def metrics_of(records: Sequence[Record], reader: MetricsReader) -> Metrics:
    """Group records by kind, and add the errors that `reader` has found."""
    by_kind: dict[str, Any] = {
        name: tuple(record for record in records if isinstance(record, kind)) for name, kind in KINDS.items()
    }
    return Metrics(
        **by_kind,
        strange=reader.strange,
        found=reader.found,
        first_strange=reader.first_strange,
        unreadable=reader.unreadable,
    )


def part_shares(steps: Sequence[StepMetrics]) -> dict[str, float]:
    """Return the fraction of step time that was spent on each of `PARTS`, for the parts that were measured."""
    shares = {}
    for part in PARTS:
        known = [(getattr(step, f"{part}_s"), step.step_s) for step in steps]
        pairs = [(spent, seconds) for spent, seconds in known if spent is not None and seconds is not None]
        whole = sum(seconds for _, seconds in pairs)
        share = sum(spent for spent, _ in pairs) / whole if whole else math.nan
        if math.isfinite(share):  # a user's program may write numbers whose sum overflows
            shares[part] = share
    return shares


def mean_of(steps: Sequence[StepMetrics], field: str) -> float | None:
    """Return the mean of a field over the steps that have it, or None if no step has it."""
    known = _known(steps, field)
    return statistics.fmean(known) if known else None


def median_of(steps: Sequence[StepMetrics], field: str) -> float | None:
    """Return the median of a field over the steps that have it, or None if no step has it."""
    known = _known(steps, field)
    return statistics.median(known) if known else None


def _known(steps: Sequence[StepMetrics], field: str) -> list[float]:
    return [value for step in steps if (value := getattr(step, field)) is not None]
