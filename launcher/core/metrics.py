"""metrics.jsonl: the measurements of a training, one JSON object a line.

    {"schema": 1, "time_ns": N, "attempt": A, "step": S, ...}

with more keys for each of three kinds of records:

    a step          epoch, loss, learning_rate, tokens_per_s, step_s, memory_bytes
    a validation    validation_loss, perplexity
    a file kept     saved: "model"

One line may hold several of them. Keys that are null do not make a record of their kind, unless there are no others.

`time_ns` is the wall clock (nanoseconds since 1970), `attempt` is TLAUNCH_ATTEMPT, `step` counts the optimizer steps
of the whole training. Numbers that are not finite are null. Lines are only ever appended, each with one write(2) to a
file opened O_APPEND, so that several processes may add theirs. A line that is torn by a crash or a full disk is ended
by whoever writes next, and read by nobody.

Any program may write such a file into its run directory (TLAUNCH_RUN_DIR); all keys of the second list are optional.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launcher.core.codec import real_number, whole_number
from launcher.core.frozen import frozen
from launcher.core.json_text import finite

SCHEMA = 1


@frozen
class StepMetrics:
    """A step, or the mean of all steps since the line before: its writer decides, and times are of the last of them."""

    time_ns: int
    attempt: int
    step: int
    loss: float | None = None
    learning_rate: float | None = None
    tokens_per_s: float | None = None  # of all ranks together
    step_s: float | None = None
    memory_bytes: int | None = None  # the most on the accelerator so far; without one, what the process holds now
    epoch: int | None = None


@frozen
class Validation:
    time_ns: int
    attempt: int
    step: int  # after which it was made
    validation_loss: float | None = None
    perplexity: float | None = None


@frozen
class Saved:
    """Something of the training is on disk from now on."""

    time_ns: int
    attempt: int
    step: int
    saved: str  # what: "model"


Record = StepMetrics | Validation | Saved

_COMMON = frozenset({"time_ns", "attempt", "step"})
_OF_A_STEP = frozenset(StepMetrics.__dataclass_fields__) - _COMMON
_OF_A_STEP_ALONE = frozenset({"loss", "tokens_per_s", "step_s"})  # the others may stand beside a validation's as well
_OF_A_VALIDATION = frozenset({"validation_loss", "perplexity"})


def to_line(record: Record) -> bytes:
    """Return the line of a record, its newline included; null for NaN and infinities, which JSON does not have."""
    return json.dumps(finite({"schema": SCHEMA, **vars(record)}), allow_nan=False).encode() + b"\n"


def from_line(line: bytes) -> tuple[Record, ...]:
    """Return the records of a line that `to_line` wrote: a step before a validation, and that before what was saved.

    Unknown keys are left out, missing ones None; of kinds of a later version there is nothing.

    Raises:
        ValueError: the line is no record, or one of another schema.
    """
    fields: Any = json.loads(line)
    if not isinstance(fields, dict) or fields.get("schema") != SCHEMA:
        raise ValueError(f"no metrics of schema {SCHEMA}: {line[:200]!r}")
    time_ns, attempt, step = (whole_number(fields.get(name)) for name in ("time_ns", "attempt", "step"))
    if time_ns is None or attempt is None or step is None:
        raise ValueError(f"time_ns, attempt and step are not all there: {line[:200]!r}")
    return tuple(_records(time_ns, attempt, step, fields))


def append(path: Path, record: Record) -> None:
    """Add a line, in one write; a torn line before it is ended first. The file is made, its directory is not.

    Raises:
        OSError: no directory, no room, ...
    """
    line = to_line(record)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line
        if os.write(descriptor, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))  # the next write would say so
    finally:
        os.close(descriptor)


def _records(time_ns: int, attempt: int, step: int, fields: dict[str, Any]) -> Iterator[Record]:
    saved = fields.get("saved")
    told = {name for name, value in fields.items() if value is not None} & (_OF_A_STEP | _OF_A_VALIDATION)
    if not told and not isinstance(saved, str):  # what was measured may have been NaN
        told = (fields.keys() & _OF_A_STEP) or (fields.keys() & _OF_A_VALIDATION)
    is_validation = bool(told & _OF_A_VALIDATION)
    if told & (_OF_A_STEP_ALONE if is_validation or isinstance(saved, str) else _OF_A_STEP):
        yield StepMetrics(
            time_ns,
            attempt,
            step,
            loss=real_number(fields.get("loss")),
            learning_rate=real_number(fields.get("learning_rate")),
            tokens_per_s=real_number(fields.get("tokens_per_s")),
            step_s=real_number(fields.get("step_s")),
            memory_bytes=whole_number(fields.get("memory_bytes")),
            epoch=whole_number(fields.get("epoch")),
        )
    if is_validation:
        numbers = (real_number(fields.get(name)) for name in ("validation_loss", "perplexity"))
        yield Validation(time_ns, attempt, step, *numbers)
    if isinstance(saved, str):
        yield Saved(time_ns, attempt, step, saved)
