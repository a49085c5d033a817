"""What the commands that look at tables share: reading what was named, and saying what was found."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.core.errors import UnreadableError

if TYPE_CHECKING:
    from launcher.rank_table import Problem, TableReport
    from launcher.rank_table.profile import Profile

STDIN = "-"
PIECE_BYTES = 1 << 20


def read_table(name: str, profile: Profile) -> TableReport:
    """Read and check the file `name`, or stdin where it is "-". Blocks until the end of the file.

    Raises:
        UnreadableError: it is missing, a directory, too large, or may not be read.
    """
    from launcher.rank_table.read import parse_rank_table, read_rank_table

    if name == STDIN:
        return parse_rank_table(_read_stdin(), Path(STDIN), profile)
    return read_rank_table(Path(name), profile)


def _read_stdin() -> bytes:
    from launcher.rank_table.files import LARGEST_TABLE_BYTES

    data = bytearray()
    try:
        with open(0, "rb", closefd=False) as stdin:  # not sys.stdin: it is None where stdin was closed
            while piece := stdin.read(PIECE_BYTES):
                data += piece
                if len(data) > LARGEST_TABLE_BYTES:
                    raise UnreadableError(f"stdin gives more than {LARGEST_TABLE_BYTES // 1024**2} MiB")
    except OSError as error:
        raise UnreadableError(f"stdin cannot be read: {error.strerror}") from None
    return bytes(data)


def problem_to_json(problem: Problem) -> dict[str, Any]:
    return {
        "code": problem.code,
        "severity": problem.severity.value,
        "message": problem.message,
        "hint": problem.hint,
        "pointer": problem.pointer,
        "line": problem.line,
        "column": problem.column,
    }


def counted(count: int, noun: str) -> str:
    """In words: "1 server", "16,384 devices"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def rank_ranges(global_ranks: list[int]) -> str:
    """Ascending ranks, shortened.

    >>> rank_ranges([0, 1, 2, 3, 8, 10, 11])
    '0-3,8,10-11'
    """
    runs: list[list[int]] = []
    for rank in global_ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def wants_colour(wanted: bool | None) -> bool:
    """As `--color` or `--no-color` say; without them only on a terminal, and never where NO_COLOR is set."""
    if wanted is not None:
        return wanted
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
