"""Reads the files that a failed rank leaves: failure.json of the hook, and the last traceback in train.log.

A failing program wrote these files, so they may have any content and length, and be truncated. No function raises, and
time and memory are bounded. Secrets are masked, because everyone with access to the run can read its verdict.
"""

from __future__ import annotations

from contextlib import suppress
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
MAX_CHILDREN = 4  # tracebacks of a rank's child processes
_MAX_NS = 1 << 63


@frozen
class FailureRecord:
    """The content of failure.json, which the hook inside a rank writes (launcher/preload/failure.py)."""

    time_ns: int | None  # wall clock of the exception, nanoseconds since 1970; None: out of range
    pid: int
    kind: str  # "exception", "exit" or "os_exit"
    type: str | None = None
    message: str = ""
    where: str | None = None  # "train.py:88 in step"
    traceback: str | None = None
    status: int = 1
    thread: str = "MainThread"


def read_failure(path: Path, pid: int | None = None) -> FailureRecord | None:
    """Read failure.json. Return None if it is missing or invalid, or if a process other than `pid` wrote it."""
    record = None
    with suppress(OSError, ValueError):
        fields = read_json(path, RECORD_BYTES)
        record = _record(fields) if isinstance(fields, dict) else None
    return None if record is None or pid not in {None, record.pid} else record


def log_tail(log: Path, offset: int, limit_bytes: int = TAIL_BYTES) -> str:
    """Return the last `limit_bytes` bytes of a log, starting no earlier than `offset`, with secrets masked."""
    return masked_text(_end_of(log, offset, limit_bytes).decode(errors="replace"))


def last_traceback(log: Path, offset: int) -> FoundTraceback | None:
    """Return the last traceback that a log contains after `offset`, even if the program handled the exception.

    Tracebacks of the main thread are preferred. Only the last `TAIL_BYTES` of the log are searched.
    """
    found = traceback_in(_end_of(log, offset, TAIL_BYTES))
    return found and _masked(found)


def tracebacks_of_children(log: Path, offset: int) -> tuple[FoundTraceback, ...]:
    """Return up to `MAX_CHILDREN` tracebacks that precede the last traceback in a log."""
    return tuple(map(_masked, tracebacks_above(_end_of(log, offset, TAIL_BYTES))[-MAX_CHILDREN:]))


def _masked(found: FoundTraceback) -> FoundTraceback:
    return replace(found, message=masked_text(found.message), text=masked_text(found.text))


def _end_of(log: Path, offset: int, limit_bytes: int) -> bytes:
    with suppress(OSError):
        return tail(log, offset, limit_bytes)
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
