"""Read rank tables that a command names, and write those that it makes."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from launcher.cli.launch.rank_tables import found_table, max_table_bytes, sample_hinted
from launcher.cli.text.columns import counted
from launcher.cli.text.stdout import say, write_out
from launcher.cli.text.style import screen_of
from launcher.core.atomic import write_text
from launcher.core.codec import encode
from launcher.core.errors import UnreadableError, UsageError
from launcher.core.records import Cluster
from launcher.core.text import printable
from launcher.rank_table import Problem, TableReport
from launcher.rank_table.profile import CHIPS, Profile
from launcher.rank_table.table_reader import parse_rank_table, read_bytes, read_stream

STDIN = "-"


def read_table(name: str, profile: Profile) -> TableReport:
    """Read and check the file `name`, or stdin where it is "-". Blocks until the end of the file.

    Raises:
        UnreadableError: it is missing, a directory, too large, or may not be read.
    """
    path = found_table(Path(name)) if name else Path()
    return parse_rank_table(read_named(name and str(path)), path, profile)


def read_named(name: str) -> bytes:
    """Return the bytes of the file `name`, or of stdin where it is "-". Blocks until the end of the file.

    Raises:
        UnreadableError: it is missing, a directory, too large, or may not be read.
    """
    if not name:  # a Path would be that of this directory
        raise UnreadableError("the name of the file is empty", hint="name the rank table (an empty variable?)")
    if name != STDIN:
        with sample_hinted(Path(name)):
            return read_bytes(Path(name), max_table_bytes())
    if sys.stdin is None:  # closed by the parent process
        raise UnreadableError("stdin is closed", hint="name a file, or redirect one")
    try:
        return read_stream(sys.stdin.buffer, "stdin", max_table_bytes())
    except OSError as error:
        raise UnreadableError(f"stdin cannot be read: {error.strerror}") from None


def problem_to_json(problem: Problem) -> dict[str, Any]:
    return {name: value for name, value in encode(problem).items() if name != "width"}


MODE = 0o640  # what the programs that read tables ask for, since addresses are private


def note(text: str) -> None:
    say(f"note: {text}")


def warn(text: str) -> None:
    say(f"warning: {text}")


def shown(report: TableReport) -> Cluster | None:
    """Return the report's cluster; None after its problems were written to stderr, where warnings are only counted."""
    if report.cluster is None:
        say(report.render(screen_of(sys.stderr).columns))
    elif report.warnings:
        codes = ", ".join(dict.fromkeys(warning.code for warning in report.warnings))
        name = printable(str(report.path))
        note(f"{name}: {len(report.warnings):,} of the warnings that `tlaunch validate` shows: {codes}")
    return report.cluster


def check_output(output: Path | None, *, force: bool) -> None:
    """Raise UsageError if `output` exists and may not be replaced; a pipe or a device never may."""
    if output is None or not os.path.lexists(output):
        return
    name = printable(str(output))
    if os.path.exists(output) and not os.path.isfile(output):  # noqa: PTH110, PTH113 - Path's own raise where these do not
        raise UsageError(f"{name} is not a regular file", hint="without --output the text goes to stdout")
    if not force:
        raise UsageError(f"{name} exists already", hint="--force replaces it")


def deliver(
    text: str, cluster: Cluster, format_name: str, output: Path | None, chip: str = "auto", *, force: bool
) -> None:
    """Hand the result over as `hand_over` does, after a note for each of HCCL's objections to a table for its hardware.

    The name of a file that HCCL would not take is such an objection too; elsewhere it is a warning.
    """
    from launcher.rank_table.convert import TARGETS  # most commands write no table

    if TARGETS[format_name].is_table and CHIPS[chip].is_ascend:
        report = parse_rank_table(text.encode(), output or Path("-"), Profile(chip=chip))
        refused = [*report.errors, *(warning for warning in report.warnings if warning.code == "RT406")]
        counts = Counter(problem.code for problem in refused)
        for problem in {problem.code: problem for problem in reversed(refused)}.values():
            times = "" if counts[problem.code] == 1 else f" ({counts[problem.code]:,} times)"
            note(f"HCCL would refuse the result: {problem.code}{times}: {problem.message}")
            if problem.hint:
                say(f"      hint: {problem.hint}")
    hand_over(text, cluster, format_name, output, force=force)


def hand_over(text: str, cluster: Cluster, format_name: str, output: Path | None, *, force: bool = True) -> None:
    """Write the text to stdout, or aside and renamed to `output`, and report that. Block until all is written.

    Raises:
        UsageError: `output` has come to exist since it was looked at, and `force` is false.
        UnreadableError: `output` cannot be written.
        OSError: stdout takes nothing.
    """
    if output is None:
        to_stdout(text)
        return
    put(output, text, force=force)
    size = f"{counted(len(cluster.servers), 'server')}, {counted(cluster.device_count, 'device')}"
    say(f"wrote {printable(str(output))}: {format_name}, {size}")


def to_stdout(text: str) -> None:
    """Write UTF-8 to stdout, whatever the terminal's encoding is. Block until all is written."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    write_out(text)


def put(output: Path, text: str, *, force: bool, mode: int = MODE) -> None:
    """Write the whole file or nothing; of a symbolic link, the file that it leads to.

    Raises:
        UsageError, UnreadableError: as `hand_over`.
    """
    try:
        target = Path(os.path.realpath(output))
        if target.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))  # noqa: TRY301 - reported as all others
        write_text(target, text, mode=mode, replace=force)
    except FileExistsError:
        raise UsageError(f"{printable(str(output))} exists already", hint="--force replaces it") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        message = f"{printable(str(output))} cannot be written: {reason}"
        raise UnreadableError(message, hint="--output names another place") from None
