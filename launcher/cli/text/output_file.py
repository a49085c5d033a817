"""Write output files that the user has named."""

from __future__ import annotations

import os
from pathlib import Path

from launcher.core.atomic import replacing
from launcher.core.errors import UnreadableError, UsageError
from launcher.logs.terminal import escaped

_BEGINNING_BYTES = 1 << 16


def check_replaceable(name: str, mark: str, kind: str, *, hint: str) -> None:
    """Raise UsageError if the file `name` has content, but not `mark` near its beginning. `kind` has the mark."""
    if not os.path.isfile(name):  # noqa: PTH113 - as below
        return
    try:
        with open(name, "rb") as file:  # noqa: PTH123 - as below
            beginning = file.read(_BEGINNING_BYTES)
    except OSError as error:
        raise UnreadableError(f"{escaped(name)} exists and cannot be read: {error.strerror}", hint=hint) from None
    if beginning and mark.encode() not in beginning:
        raise UsageError(f"{escaped(name)} exists and is not {kind}", hint=hint)


def put(name: str, content: bytes, *, hint: str) -> None:
    """Write a file, following symbolic links.

    Raises UsageError with `hint` if `name` exists but is not a regular file, and UnreadableError if writing fails.
    """
    shown, target = escaped(os.fsdecode(name)), Path(os.path.realpath(name))
    if os.path.exists(target) and not os.path.isfile(target):  # noqa: PTH110, PTH113 - Path's methods may raise
        raise UsageError(f"{shown} is not a regular file", hint=hint)
    try:
        with replacing(target) as aside:
            aside.write_bytes(content)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UnreadableError(f"{shown} cannot be written: {reason}") from None
