"""The line in a rank's log between the output of two attempts; it belongs to the later one."""

from __future__ import annotations

import re

_START = b"--- attempt "
_MARK = re.compile(_START + rb"(\d{1,9}) ---")


def mark_of(attempt: int) -> bytes:
    """Return the line that begins `attempt`, its newline included. Attempt 0 is not marked."""
    return _START + b"%d ---\n" % attempt


def marked_attempt(line: bytes) -> int | None:
    """Return the attempt that begins with `line` (without a newline), or None for any other line."""
    match = _MARK.fullmatch(line) if line.startswith(_START) else None
    return int(match[1]) if match else None
