"""metrics.jsonl: measurements of a training run, one JSON object per line.

    {"schema": 1, "time_ns": N, "attempt": A, "step": S, ...}

The other keys depend on the kind of record:

    a step          epoch, loss, learning_rate, tokens_per_s, step_s, memory_bytes, peak_memory_bytes, padding_share,
                    data_s, compute_s, communication_s, bubble_s, model_flops, utilisation, gradient_norm, clipped_share
    a validation    validation_loss, perplexity, bleu
    a pipeline      stage_busy, stage_predicted: lists of shares, one per stage
    a saved file    saved: "model"

One line may hold several records. A kind whose keys are all null is absent, unless the line has no other record.

`time_ns` is the wall clock (nanoseconds since 1970), `attempt` is TLAUNCH_ATTEMPT, and `step` counts optimizer steps
from the start of training. Numbers that are not finite are null. Each line is appended by one write(2) to a file opened
with O_APPEND, so several processes may write. If a crash or a full disk leaves an incomplete line, the next writer
terminates it and readers skip it.

Any program may write this file into its run directory (TLAUNCH_RUN_DIR). `schema`, `time_ns`, `attempt` and `step` are
required; all other keys are optional.
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
    """Metrics of one step, or averages over the steps since the previous record.

    `time_ns`, `step`, `epoch` and `learning_rate` are values of the last step.
    """

    time_ns: int
    attempt: int
    step: int
    loss: float | None = None
    learning_rate: float | None = None
    tokens_per_s: float | None = None  # of all ranks together
    step_s: float | None = None
    memory_bytes: int | None = None  # peak on the accelerator; without an accelerator, the process's current memory
    epoch: int | None = None
    peak_memory_bytes: int | None = None  # peak of the accelerator, or of the process
    padding_share: float | None = None  # of all source and target positions that the writing rank computes
    # The breakdown of `step_s` on the writing rank; only the first is known on accelerators.
    data_s: float | None = None
    compute_s: float | None = None
    communication_s: float | None = None  # in collectives, including waits for other ranks
    bubble_s: float | None = None  # waiting for neighbouring pipeline stages
    model_flops: float | None = None  # per step, of all ranks together, without padding and recomputation
    utilisation: float | None = None  # `model_flops` / `step_s` as a share of the ranks' peak
    gradient_norm: float | None = None  # of the full model, before clipping
    clipped_share: float | None = None  # of the steps: those with a clipped gradient; None: gradients are not clipped


@frozen
class Validation:
    time_ns: int
    attempt: int
    step: int  # the last step before it
    validation_loss: float | None = None
    perplexity: float | None = None
    bleu: float | None = None  # of translations of some validation sentences


@frozen
class StageShares:
    """The measured and predicted share of time that each pipeline stage was busy, in stage order."""

    time_ns: int
    attempt: int
    step: int  # the last step of the measurement
    stage_busy: tuple[float, ...]
    stage_predicted: tuple[float, ...] = ()


@frozen
class Saved:
    time_ns: int
    attempt: int
    step: int
    saved: str  # the kind of file: "model"


Record = StepMetrics | Validation | StageShares | Saved


def to_line(record: Record) -> bytes:
    return _line({"schema": SCHEMA, **vars(record)})


def _line(fields: Mapping[str, object]) -> bytes:
    return json.dumps(finite(fields), allow_nan=False).encode() + b"\n"


def append(path: Path, record: Record) -> None:
    append_fields(path, {"schema": SCHEMA, **vars(record)})


def append_fields(path: Path, fields: Mapping[str, object]) -> None:
    """Append `fields` as a new line of JSON, even if the last line is incomplete. Raises OSError."""
    line = _line(fields)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line
        if os.write(descriptor, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))  # as the next write would
    finally:
        os.close(descriptor)
