"""The files that a rank leaves about its failure: the hook's failure.json, and the last traceback in train.log.

Everything here reads files that a failing program wrote: any bytes, any length, perhaps cut off. Nothing raises, and
time and memory are bounded. Secrets are masked, since verdicts are for all who may read the run.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.core.codec import integer, read_json
from launcher.core.frozen import frozen
from launcher.logs.log_file import tail
from launcher.logs.tracebacks import TRACEBACK_CHARS, FoundTraceback, traceback_in, tracebacks_above
from launcher.preload.masking import masked_text

TAIL_BYTES = 256 << 10
MESSAGE_CHARS = 8000
RECORD_BYTES = 1 << 20
MAX_CHILDREN = 4  # tracebacks of processes that a rank has started
_MAX_NS = 1 << 63


@frozen
class FailureRecord:
    """failure.json, written by the hook inside the rank (launcher/preload/failure.py)."""

    time_ns: int | None  # wall clock, nanoseconds since 1970, of the exception itself; None: no such time can be
    pid: int
    kind: str  # "exception", "exit" or "os_exit"
    type: str | None = None
    message: str = ""
    where: str | None = None  # "train.py:88 in step"
    traceback: str | None = None
    status: int = 1
    thread: str = "MainThread"


def read_failure(path: Path, pid: int | None = None) -> FailureRecord | None:
    """Return the record; None where the file is missing or holds rubbish, or (with `pid`) another process wrote it."""
    try:
        fields = read_json(path, RECORD_BYTES)
        record = _record(fields) if isinstance(fields, dict) else None
    except (OSError, ValueError):
        return None
    return None if record is None or pid not in {None, record.pid} else record


def log_tail(log: Path, offset: int, limit_bytes: int = TAIL_BYTES) -> str:
    """Return the last `limit_bytes` of a log, nothing from before `offset` (bytes). Empty where it cannot be read."""
    return masked_text(_end_of(log, offset, limit_bytes).decode(errors="replace"))


def last_traceback(log: Path, offset: int) -> FoundTraceback | None:
    """Return the last traceback that a program printed after `offset` (bytes), whether that ended the program or not.

    One of the main thread is preferred to those of other threads. Only the log's last `TAIL_BYTES` are looked at.
    """
    found = traceback_in(_end_of(log, offset, TAIL_BYTES))
    return found and _masked(found)


def tracebacks_of_children(log: Path, offset: int) -> tuple[FoundTraceback, ...]:
    """Return up to `MAX_CHILDREN` tracebacks above the last one, the last of them last. Looks at as much of the log."""
    return tuple(map(_masked, tracebacks_above(_end_of(log, offset, TAIL_BYTES))[-MAX_CHILDREN:]))


def _masked(found: FoundTraceback) -> FoundTraceback:
    return replace(found, message=masked_text(found.message), text=masked_text(found.text))


def _end_of(log: Path, offset: int, limit_bytes: int) -> bytes:
    try:
        return tail(log, offset, limit_bytes)
    except OSError:
        return b""


def _record(fields: dict[str, Any]) -> FailureRecord | None:
    pid, status = integer(fields.get("pid")), integer(fields.get("status"))
    time_ns = fields.get("time_ns")
    if pid is None or isinstance(time_ns, bool) or not isinstance(time_ns, int | float):
        return None
    return FailureRecord(
        time_ns=int(time_ns) if 0 <= time_ns < _MAX_NS else None,
        pid=pid,
        kind=_text(fields.get("kind")) or "exception",
        type=_text(fields.get("type")),
        message=masked_text((_text(fields.get("message")) or "")[:MESSAGE_CHARS]),
        where=_text(fields.get("where")),
        traceback=masked_text((_text(fields.get("traceback")) or "")[-TRACEBACK_CHARS:]) or None,
        status=1 if status is None else status,
        thread=_text(fields.get("thread")) or "MainThread",
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
