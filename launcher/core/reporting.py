"""Functions for training programs to report progress: `from tlaunch import beat, metric`.

    for step, batch in enumerate(batches, start=1):
        loss = train(batch)
        beat(step, last_step=len(batches), loss=loss)    # on every rank: for `tlaunch status`, `top`, --hang-timeout
        metric(step, loss=loss, tokens_per_s=speed)      # rank 0 writes, other ranks ignore it: for `tlaunch report`

Without tlaunch both do nothing. They never raise: values that are not numbers are left out, and write errors are
ignored. They keep no state and write each file at once, so forked processes, threads and restarts may call them at
any time.
"""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from launcher.core import heartbeat
from launcher.core.codec import integer
from launcher.core.env import TLAUNCH_ATTEMPT, TLAUNCH_HEARTBEAT_FILE, TLAUNCH_RUN_DIR
from launcher.core.metrics import SCHEMA, append_fields
from launcher.core.run_dir import RunDir

WHOLE = frozenset({"epoch", "memory_bytes", "peak_memory_bytes"})  # keys with integer values


def beat(
    step: Any = None, *, last_step: Any = None, loss: Any = None, busy_s: Any = None, tokens_per_s: Any = None,
    device_memory_bytes: Any = None,
) -> None:  # fmt: skip
    """Report that this rank makes progress. Call it after every step, on every rank.

    Values may be numbers of any library, such as tensors with one element. `busy_s` is the time in seconds that this
    rank worked on the step, without waiting for other ranks. Without arguments, it reports only that the rank is
    alive.
    """
    with suppress(Exception):
        values = heartbeat.Beat(step, busy_s, loss, tokens_per_s, device_memory_bytes, last_step)
        if all(value is None for value in vars(values).values()):
            heartbeat.touch(os.environ)
        elif os.environ.get(TLAUNCH_HEARTBEAT_FILE):
            heartbeat.beat(os.environ, values)


def metric(step: Any, **values: Any) -> None:
    """Record measurements of a step. Only rank 0 writes them; the call has no effect on other ranks.

    `tlaunch report` and `top` show loss, learning_rate, tokens_per_s (of all ranks together), step_s, memory_bytes,
    epoch, gradient_norm, validation_loss, perplexity and bleu. Other names are only stored in the file.
    """
    with suppress(Exception):
        run_dir = os.environ.get(TLAUNCH_RUN_DIR)
        number = heartbeat.plain(step)
        if not run_dir or os.environ.get("RANK", "0") != "0" or number is None:
            return
        plain = {name: heartbeat.plain(value) for name, value in values.items()}
        fields = {
            name: int(value) if name in WHOLE else value
            for name, value in plain.items()
            if value is not None and (name not in WHOLE or math.isfinite(value))
        }
        attempt = integer(int(os.environ.get(TLAUNCH_ATTEMPT) or 0))
        known = {"schema": SCHEMA, "time_ns": time.time_ns(), "attempt": attempt, "step": int(number)}
        append_fields(RunDir(Path(run_dir)).metrics, {**known, **fields, **known})
