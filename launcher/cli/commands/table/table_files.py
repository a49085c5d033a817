"""Read and write rank tables for commands."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path
from typing import Any

from launcher.cli.launch.rank_tables import found_table, max_table_bytes, sample_hinted
from launcher.cli.text.columns import counted
from launcher.cli.text.stdout import say, write_out
from launcher.core.atomic import write_text
from launcher.core.codec import encode
from launcher.core.errors import UnreadableError, UsageError
from launcher.core.records import Cluster
from launcher.core.text import printable
from launcher.rank_table import Problem, TableReport
from launcher.rank_table.profile import Profile
from launcher.rank_table.table_reader import parse_rank_table, read_bytes, read_stream

STDIN = "-"


def read_table(name: str, profile: Profile) -> TableReport:
    """Read and check a rank table. The name "-" means stdin."""
    path = found_table(Path(name)) if name else Path()
    return parse_rank_table(read_named(name and str(path)), path, profile)


def read_named(name: str) -> bytes:
    """Read a file and return its content. The name "-" means stdin.

    Raises UnreadableError if it is missing, a directory, too large, or not readable.
    """
    if not name:  # Path("") is the current directory
        raise UnreadableError("the file name is empty", hint="give a rank table; check for an empty shell variable")
    if name != STDIN:
        with sample_hinted(Path(name)):
            return read_bytes(Path(name), max_table_bytes())
    if sys.stdin is None:  # closed by the parent process
        raise UnreadableError("stdin is closed", hint="give a file name, or redirect a file to stdin")
    try:
        return read_stream(sys.stdin.buffer, "stdin", max_table_bytes())
    except OSError as error:
        raise UnreadableError(f"stdin cannot be read: {error.strerror}") from None


def problem_to_json(problem: Problem) -> dict[str, Any]:
    return {name: value for name, value in encode(problem).items() if name != "width"}


MODE = 0o640  # required by programs that read tables, since addresses are private


def note(text: str) -> None:
    say(f"note: {text}")


def warn(text: str) -> None:
    say(f"warning: {text}")


def check_output(output: Path | None, *, force: bool) -> None:
    """Raise UsageError if `output` is not a regular file, or if it exists and `force` is not set."""
    if output is None or not os.path.lexists(output):
        return
    name = printable(str(output))
    if os.path.exists(output) and not os.path.isfile(output):  # noqa: PTH110, PTH113 - Path's methods may raise
        raise UsageError(f"{name} is not a regular file", hint="remove --output to write to stdout")
    if not force:
        raise UsageError(f"{name} already exists", hint="use --force to replace it")


def hand_over(text: str, cluster: Cluster, format_name: str, output: Path | None, *, force: bool) -> None:
    """Write the table to stdout, or write it atomically to `output` and report the path.

    Raises UsageError if `output` has been created since `check_output` and `force` is false, and UnreadableError or
    OSError if the file or stdout cannot be written.
    """
    if output is None:
        to_stdout(text)
        return
    put(output, text, force=force)
    size = f"{counted(len(cluster.servers), 'server')}, {counted(cluster.device_count, 'device')}"
    say(f"wrote {printable(str(output))}: {format_name}, {size}")


def to_stdout(text: str) -> None:
    """Write UTF-8 to stdout, independent of the terminal's encoding. Blocks until everything is written."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    write_out(text)


def put(output: Path, text: str, *, force: bool, mode: int = MODE) -> None:
    """Write a file atomically. If `output` is a symbolic link, its target is replaced."""
    try:
        target = Path(os.path.realpath(output))
        if target.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))  # noqa: TRY301 - handled below
        write_text(target, text, mode=mode, replace=force)
    except FileExistsError:
        raise UsageError(f"{printable(str(output))} already exists", hint="use --force to replace it") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        message = f"{printable(str(output))} cannot be written: {reason}"
        raise UnreadableError(message, hint="choose another file with --output") from None
