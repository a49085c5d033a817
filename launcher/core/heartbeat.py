"""The heartbeat of a rank: a small file that the rank rewrites after every step.

Any program may use it. The file's path is in TLAUNCH_HEARTBEAT_FILE. Rewriting or touching the file means that the rank
makes progress. It may contain one JSON object with more information; all keys are optional:

    {"step": 12, "last_step": 400, "busy_s": 0.41, "pid": 4711, "loss": 3.2, "tokens_per_s": 5100.0,
     "device_memory_bytes": 73400320}

    step                  current training step, from any start value; increases
    last_step             the final step of the training
    busy_s                seconds that this rank worked on the step, without waiting for other ranks. It distinguishes
                          a slow rank from ranks that wait for it. Leave it out if unknown.
    pid                   the process that measured `busy_s`; its time waiting for a core is subtracted. By default, or
                          if it is in another session: the process that tlaunch started, which may be a shell.
    loss                  of the last step
    tokens_per_s          of all ranks together
    device_memory_bytes   peak memory of this rank on its accelerator

With --hang-timeout, a rank that has reported a step must rewrite or touch the file at least that often. This also
applies while it saves, validates or waits for other ranks. Before its first step, output and CPU time count as
progress too.

The file may be rewritten in place, replaced (`echo '{"step": 3}' > "$TLAUNCH_HEARTBEAT_FILE"`) or renamed into place.
Text after the object is ignored.
"""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from launcher.core.codec import integer, real_number
from launcher.core.env import TLAUNCH_HEARTBEAT_FILE
from launcher.core.frozen import frozen
from launcher.core.regular_files import open_regular

MAX_BYTES = 4096
TRIES = 3  # maximum number of reads
LINE_BYTES = 256


@frozen
class Beat:
    step: int | None = None
    busy_s: float | None = None
    loss: float | None = None
    tokens_per_s: float | None = None
    device_memory_bytes: int | None = None
    last_step: int | None = None


@frozen
class Heartbeat:
    """The content of a heartbeat file, and the time when it was written (nanoseconds since 1970)."""

    time_ns: int
    beat: Beat
    pid: int | None = None


def beat(environment: Mapping[str, str], values: Beat) -> None:
    """Write the numeric values to this rank's heartbeat file, if it has one. Never raises or blocks."""
    path = environment.get(TLAUNCH_HEARTBEAT_FILE)
    if not path:
        return
    numbers = {name: plain(value) for name, value in vars(values).items() if value is not None}
    if numbers.get("busy_s") is not None:
        numbers["pid"] = os.getpid()
    line = json.dumps({name: value for name, value in numbers.items() if value is not None}).encode()
    # Padded to a fixed length, so threads that write at the same time do not truncate each other's text.
    line = line.ljust(LINE_BYTES - 1) + b"\n"
    with suppress(OSError, ValueError):
        # Overwrite first and truncate afterwards, so a reader never finds an empty file. It is also faster: some file
        # systems flush a file that is emptied and filled again to disk, which costs fifty times more.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
        try:
            os.write(descriptor, line)
            os.ftruncate(descriptor, len(line))
        finally:
            os.close(descriptor)


def touch(environment: Mapping[str, str]) -> None:
    """Report progress without changing the values of the last heartbeat. Never raises."""
    path = environment.get(TLAUNCH_HEARTBEAT_FILE)
    if not path:
        return
    try:
        os.utime(path)
    except FileNotFoundError:
        beat(environment, Beat())
    except (OSError, ValueError):
        pass


def read_heartbeat(path: Path) -> Heartbeat | None:
    """Return the last heartbeat, or None if there is none. Never blocks, because it only reads a regular file."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            beat, pid = _read(file)
            return Heartbeat(os.fstat(file.fileno()).st_mtime_ns, beat, pid)
    except OSError:
        return None


def _read(file: BinaryIO) -> tuple[Beat, int | None]:
    """Read the heartbeat and the pid in the file. Retry if the file is incomplete while the rank rewrites it."""
    for _ in range(TRIES):
        file.seek(0)
        # Read to the end: a single read may stop at the old end of a file that is being rewritten.
        text = (file.read(MAX_BYTES) or b"").decode(errors="replace").lstrip()
        with suppress(ValueError, RecursionError):
            fields, _ = json.JSONDecoder().raw_decode(text)
            if isinstance(fields, dict):
                beat = Beat(
                    step=integer(fields.get("step")),
                    busy_s=real_number(fields.get("busy_s")),
                    loss=real_number(fields.get("loss"), finite=False),
                    tokens_per_s=real_number(fields.get("tokens_per_s")),
                    device_memory_bytes=integer(fields.get("device_memory_bytes")),
                    last_step=integer(fields.get("last_step")),
                )
                return beat, integer(fields.get("pid"))
    return Beat(), None


def plain(value: Any) -> float | None:
    """Convert a number of any library, such as a torch scalar, to int or float. Return None for other values."""
    if type(value) is float:
        return value
    with suppress(Exception):
        value = value.item()  # for torch, numpy, MindSpore; torch warns if float() gets a tensor that requires grad
    with suppress(Exception):
        return integer(operator.index(value))
    with suppress(Exception):
        return float(value)
    return None
