"""Every error that a person can cause, in one tree; each class owns its exit code.

TlaunchError                1   something failed that no other class names
├── UsageError              2   options, configuration or values that make no sense
├── UnreadableError         2   a file or directory that is missing, unreadable or unwritable
└── RefusedError            3   what was read is well understood, and refused
    ├── RefusedTableError   3   a rank table that HCCL or a launcher could not use
    └── RefusedLayoutError  3   dp·mp·pp, micro batches or model sizes that do not fit

A failed run has no class here: its exit code is the failing rank's own, or 128 + signal.
"""

from __future__ import annotations

from typing import Any

from launcher.core.text import printable

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_REFUSED = 3
EXIT_HUNG = 124  # as `timeout` says it
EXIT_INTERRUPTED = 130


class TlaunchError(Exception):
    """An error that a user can mend: `message` says what was read and why it is wrong, `hint` what to do about it."""

    exit_code = EXIT_FAILURE
    is_reported = False  # whether another process has printed it
    has_lines = False  # whether line ends of message and hint are their own, and not those of a name that they show

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """Return the message, then each hint on a line of its own. No file name in either can look like another line."""
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
    problems: tuple[Any, ...] = ()  # of launcher.rank_table, for output as data; empty where no rule found them


class RefusedLayoutError(RefusedError):
    pass


def exit_code_of(status: int) -> int:
    """Return the exit code that a shell reports for a `status` as in `subprocess`: -15 (killed by 15) gives 143."""
    return 128 - status if status < 0 else status
