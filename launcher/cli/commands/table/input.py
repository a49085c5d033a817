"""What the commands that look at tables share: reading what was named, and saying what was found."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from launcher.cli.launch.samples import found_table, max_table_bytes, sample_hinted
from launcher.core.codec import encode
from launcher.core.errors import UnreadableError
from launcher.rank_table import Problem, TableReport
from launcher.rank_table.profile import Profile
from launcher.rank_table.read import parse_rank_table, read_bytes, read_stream

STDIN = "-"


def read_table(name: str, profile: Profile) -> TableReport:
    """Read and check the file `name`, or stdin where it is "-". Blocks until the end of the file.

    Raises:
        UnreadableError: it is missing, a directory, too large, or may not be read.
    """
    _check_named(name)
    path = found_table(Path(name))
    return parse_rank_table(read_named(str(path)), path, profile)


def read_named(name: str) -> bytes:
    """Return the bytes of the file `name`, or of stdin where it is "-". Blocks until the end of the file.

    Raises:
        UnreadableError: it is missing, a directory, too large, or may not be read.
    """
    _check_named(name)
    if name == STDIN:
        return _read_stdin(max_table_bytes())
    with sample_hinted(Path(name)):
        return read_bytes(Path(name), max_table_bytes())


def _check_named(name: str) -> None:
    if not name:  # a Path would be that of this directory
        raise UnreadableError("the name of the file is empty", hint="name the rank table (an empty variable?)")


def _read_stdin(max_bytes: int) -> bytes:
    if sys.stdin is None:  # closed by whoever started us
        raise UnreadableError("stdin is closed", hint="name a file, or redirect one")
    try:
        return read_stream(sys.stdin.buffer, "stdin", max_bytes)
    except OSError as error:
        raise UnreadableError(f"stdin cannot be read: {error.strerror}") from None


def problem_to_json(problem: Problem) -> dict[str, Any]:
    return {name: value for name, value in encode(problem).items() if name != "width"}
