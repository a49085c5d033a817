"""The line that stands in a rank's log between what two attempts wrote; it belongs to the later one."""

from __future__ import annotations

import re

_START = b"--- attempt "
_MARK = re.compile(_START + rb"(\d{1,9}) ---")


def mark_of(attempt: int) -> bytes:
    """With its newline. Attempt 0 has none."""
    return _START + b"%d ---\n" % attempt


def marked_attempt(line: bytes) -> int | None:
    """The attempt that begins with `line`, which has no newline; None for any other line."""
    match = _MARK.fullmatch(line) if line.startswith(_START) else None
    return int(match[1]) if match else None
