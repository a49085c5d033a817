"""The hierarchy of errors that a user can fix. Each class has its exit code.

TlaunchError                1   any other failure
├── UsageError              2   invalid options, configuration or values
├── UnreadableError         2   a file or directory that is missing, unreadable or unwritable
└── RefusedError            3   valid input that tlaunch refuses
    ├── RefusedTableError   3   a rank table that HCCL or a launcher cannot use
    └── RefusedLayoutError  3   dp·mp·pp, micro batches or model sizes that do not fit

A failed run has no class: its exit code is the failing rank's, or 128 + signal.
"""

from __future__ import annotations

from typing import Any

from launcher.core.text import printable

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_REFUSED = 3
EXIT_TIMED_OUT = 124  # as for `timeout`: a rank hung, or a time limit was reached
EXIT_INTERRUPTED = 130


class TlaunchError(Exception):
    """An error that the user can fix. `message` describes the problem, and `hint` says what to do."""

    exit_code = EXIT_FAILURE
    is_reported = False  # True if another process has printed it
    instead: tuple[tuple[str, ...], tuple[str, ...]] | None = None  # COMMAND as typed, and the one to write; not masked
    has_lines = False  # True if message and hint may have several lines; otherwise line breaks are escaped

    def __init__(self, message: str, *, hint: str | None = None, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if exit_code is not None:
            self.exit_code = exit_code

    def __str__(self) -> str:
        message = self.message if self.has_lines else printable(self.message)
        hints = () if self.hint is None else self.hint.split("\n") if self.has_lines else (self.hint,)
        return "\n".join((message, *(f"hint: {printable(hint)}" for hint in hints)))


class UsageError(TlaunchError):
    exit_code = EXIT_USAGE


class UnreadableError(TlaunchError):
    exit_code = EXIT_USAGE


class RefusedError(TlaunchError):
    exit_code = EXIT_REFUSED


class RefusedTableError(RefusedError):
    has_lines = True
    problems: tuple[Any, ...] = ()  # for machine-readable output (launcher.rank_table); empty if no rule applies


class RefusedLayoutError(RefusedError):
    pass


def exit_code_of(status: int) -> int:
    """Convert a return code of `subprocess` to a shell's exit code: -15 (killed by signal 15) becomes 143."""
    return 128 - status if status < 0 else status
