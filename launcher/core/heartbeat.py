"""The heartbeat of a rank: a small file that it rewrites after every step.

Any program may take part. The file's path is in TLAUNCH_HEARTBEAT_FILE. Rewriting (or touching) it says "I am getting
on"; one JSON object in it, all of whose keys are optional, says more:

    {"step": 12, "last_step": 400, "busy_s": 0.41, "pid": 4711, "loss": 3.2, "tokens_per_s": 5100.0,
     "device_memory_bytes": 73400320}

    step                  of the training, counted from wherever the program likes; it grows
    last_step             after which the training is over
    busy_s                seconds that this rank itself worked for the step, its waiting for others left out: only so
                          can a slow rank be distinguished from those that wait. Leave it out where that is not known.
    pid                   of the process that worked so long: what it waited for a core is taken off. Without it, or where
                          it is of another session, that is the process that tlaunch started, which may be a shell.
    loss                  of the last step
    tokens_per_s          of all ranks together
    device_memory_bytes   the most that this rank has held on its accelerator

From its first step on, a rank is held to its beats: where --hang-timeout is given, it must rewrite or touch the file in
that time, also while it saves, validates or waits for others on purpose. Until then what it prints and the CPU time
that it uses count as well.

The file may be rewritten in place, written anew (`echo '{"step": 3}' > "$TLAUNCH_HEARTBEAT_FILE"`) or renamed into its
place. What stands after the object is not read.
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
TRIES = 3  # of reading
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
    """A beat with the time at which it was written (wall clock, nanoseconds since 1970), and who says to have worked."""

    time_ns: int
    beat: Beat
    pid: int | None = None


def beat(environment: Mapping[str, str], values: Beat) -> None:
    """Rewrite this rank's file, if it has one. Never raises and never blocks for long: it is a courtesy.

    Numbers of other libraries (a tensor of one element) are written as plain ones; what is no number is left out.
    """
    path = environment.get(TLAUNCH_HEARTBEAT_FILE)
    if not path:
        return
    numbers = {name: plain(value) for name, value in vars(values).items() if value is not None}
    if numbers.get("busy_s") is not None:
        numbers["pid"] = os.getpid()
    line = json.dumps({name: value for name, value in numbers.items() if value is not None}).encode()
    # As long as others, as a rule: of threads that write at the same time none cuts off what another has written.
    line = line.ljust(LINE_BYTES - 1) + b"\n"
    with suppress(OSError, ValueError):
        # Over the old text, whose end is cut off afterwards and is not read until then: so a reader never finds
        # nothing. File systems would also write a file to the disk that is emptied and filled again, and that costs
        # fifty times as much.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
        try:
            os.write(descriptor, line)
            os.ftruncate(descriptor, len(line))
        finally:
            os.close(descriptor)


def touch(environment: Mapping[str, str]) -> None:
    """Say "I am getting on" and leave the last beat as it is. Never raises; costs about a microsecond."""
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
    """Return the last beat, or None before the first. Values that are not numbers are left out.

    Anything but a regular file, such as a pipe without a writer, counts as no beat, and is not waited for.
    """
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            beat, pid = _read(file)
            return Heartbeat(os.fstat(file.fileno()).st_mtime_ns, beat, pid)
    except OSError:
        return None


def _read(file: BinaryIO) -> tuple[Beat, int | None]:
    """Return the beat and the pid in the file. A file that is being rewritten may be torn: it is read again."""
    for _ in range(TRIES):
        file.seek(0)
        # Up to its end: one read alone may stop where the file ended before it was rewritten.
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
    """Return a number of any library as Python's own, or None if it is not a number. Never raises."""
    if type(value) is float:
        return value
    with suppress(Exception):
        value = value.item()  # of torch, numpy, MindSpore; torch warns where float() meets a loss with a gradient
    with suppress(Exception):
        return integer(operator.index(value))
    with suppress(Exception):
        return float(value)
    return None
