"""metrics.jsonl: the measurements of a training, one JSON object a line.

    {"schema": 1, "time_ns": N, "attempt": A, "step": S, ...}

with more keys for each of four kinds of records:

    a step          epoch, loss, learning_rate, tokens_per_s, step_s, memory_bytes, peak_memory_bytes, padding_share,
                    data_s, compute_s, communication_s, bubble_s, model_flops, utilisation
    a validation    validation_loss, perplexity, bleu
    a pipeline      stage_busy, stage_predicted: lists of shares, one for each stage
    a file kept     saved: "model"

One line may hold several of them. Keys that are null do not make a record of their kind, unless there are no others.

`time_ns` is the wall clock (nanoseconds since 1970), `attempt` is TLAUNCH_ATTEMPT, `step` counts the optimizer steps
of the whole training. Numbers that are not finite are null. Lines are only ever appended, each with one write(2) to a
file opened O_APPEND, so that several processes may add theirs. A line that is torn by a crash or a full disk is ended
by the next writer, and is not read.

Any program may write such a file into its run directory (TLAUNCH_RUN_DIR); all keys of the second list are optional.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path

from launcher.core.codec import finite
from launcher.core.frozen import frozen

SCHEMA = 1


@frozen
class StepMetrics:
    """A step, or the mean of all steps since the line before; `time_ns`, `step`, `epoch` and `learning_rate` are the last one's."""

    time_ns: int
    attempt: int
    step: int
    loss: float | None = None
    learning_rate: float | None = None
    tokens_per_s: float | None = None  # of all ranks together
    step_s: float | None = None
    memory_bytes: int | None = None  # the most on the accelerator so far; without one, what the process holds now
    epoch: int | None = None
    peak_memory_bytes: int | None = None  # the most so far, on the accelerator or of the process
    padding_share: float | None = None  # of all positions that the rank that writes computes, source and target
    # What `step_s` went into, on the rank that writes; on accelerators only the first is known.
    data_s: float | None = None
    compute_s: float | None = None
    communication_s: float | None = None  # in collectives: to wait for other ranks, and to transfer
    bubble_s: float | None = None  # to wait for the neighbours in the pipeline
    model_flops: float | None = None  # of a step, on all ranks together; padding and recomputation count nothing
    utilisation: float | None = None  # share of the ranks' peak that `model_flops` in `step_s` are


@frozen
class Validation:
    time_ns: int
    attempt: int
    step: int  # after which it was made
    validation_loss: float | None = None
    perplexity: float | None = None
    bleu: float | None = None  # of translations of some validation sentences


@frozen
class StageShares:
    """The shares of the steps that the pipeline stages worked, in the order of the stages: measured, and predicted before."""

    time_ns: int
    attempt: int
    step: int  # up to which it was measured
    stage_busy: tuple[float, ...]
    stage_predicted: tuple[float, ...] = ()


@frozen
class Saved:
    """Something of the training is on disk from now on."""

    time_ns: int
    attempt: int
    step: int
    saved: str  # what: "model"


Record = StepMetrics | Validation | StageShares | Saved


def to_line(record: Record) -> bytes:
    """Return the line of a record, its newline included; null for NaN and infinities, which JSON does not have."""
    return _line({"schema": SCHEMA, **vars(record)})


def _line(fields: Mapping[str, object]) -> bytes:
    return json.dumps(finite(fields), allow_nan=False).encode() + b"\n"


def append(path: Path, record: Record) -> None:
    """Add the line of a record, as `append_fields` does.

    Raises:
        OSError: no directory, no room, ...
    """
    append_fields(path, {"schema": SCHEMA, **vars(record)})


def append_fields(path: Path, fields: Mapping[str, object]) -> None:
    """Add a line, in one write; a torn line before it is ended first. The file is made, its directory is not.

    Raises:
        OSError: no directory, no room, ...
    """
    line = _line(fields)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line
        if os.write(descriptor, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))  # the next write would say so
    finally:
        os.close(descriptor)
