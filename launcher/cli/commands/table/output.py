"""What the commands that make tables share: showing problems, notes, and handing the result over."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections import Counter
from pathlib import Path

import click

from launcher.cli.text.columns import counted
from launcher.cli.text.stdout import say, write_out
from launcher.core.atomic import write_text
from launcher.core.errors import UnreadableError, UsageError
from launcher.core.records import Cluster
from launcher.core.text import printable
from launcher.rank_table import Profile, TableReport, parse_rank_table
from launcher.rank_table.convert import TARGETS
from launcher.rank_table.profile import CHIPS

MODE = 0o640  # what the programs that read tables ask for: addresses are nobody else's business


def note(text: str) -> None:
    say(f"note: {text}")


def warn(text: str) -> None:
    say(f"warning: {text}")


def shown(report: TableReport) -> Cluster | None:
    """Return the report's cluster; None after its problems were written to stderr, where warnings are only counted."""
    if report.cluster is None:
        click.echo(report.render(), err=True)
    elif report.warnings:
        codes = ", ".join(dict.fromkeys(warning.code for warning in report.warnings))
        name = printable(str(report.path))
        note(f"{name}: {len(report.warnings):,} of the warnings that `tlaunch validate` shows: {codes}")
    return report.cluster


def check_output(output: Path | None, *, force: bool) -> None:
    """Before anything is read: a file, or a link to none, is replaced only where that was asked for.

    Raises:
        UsageError: `output` exists and may not be replaced; a pipe or a device never may.
    """
    if output is None or not os.path.lexists(output):
        return
    name = printable(str(output))
    if os.path.exists(output) and not os.path.isfile(output):  # noqa: PTH110, PTH113 - Path's own raise where these do not
        raise UsageError(f"{name} is no regular file", hint="without --output the text goes to stdout")
    if not force:
        raise UsageError(f"{name} exists already", hint="--force replaces it")


def deliver(
    text: str, cluster: Cluster, format_name: str, output: Path | None, chip: str = "auto", *, force: bool = True
) -> None:
    """Hand the result over, and say what HCCL would to it, if it is a table for hardware that HCCL is for.

    Raises:
        UnreadableError: `output` cannot be written.
    """
    if TARGETS[format_name].is_table and CHIPS[chip].is_ascend:
        _say_what_hccl_would(text, output or Path("-"), chip)
    hand_over(text, cluster, format_name, output, force=force)


def hand_over(text: str, cluster: Cluster, format_name: str, output: Path | None, *, force: bool = True) -> None:
    """To stdout, or aside and renamed to `output`, which is then announced. Blocks until all is written.

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
    click.echo(f"wrote {printable(str(output))}: {format_name}, {size}", err=True)


def to_stdout(text: str) -> None:
    """Write to stdout as to a file, whatever the terminal's encoding is. Blocks until all is written."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    write_out(text)


def put(output: Path, text: str, *, force: bool, mode: int = MODE) -> None:
    """Whole or not at all. A symbolic link stays one, and what it leads to is written.

    Raises:
        UsageError, UnreadableError: as `hand_over`.
    """
    try:
        target = Path(os.path.realpath(output))
        if target.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))  # noqa: TRY301 - told as all others
        write_text(target, text, mode=mode, replace=force)
    except FileExistsError:
        raise UsageError(f"{printable(str(output))} exists already", hint="--force replaces it") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        message = f"{printable(str(output))} cannot be written: {reason}"
        raise UnreadableError(message, hint="--output names another place") from None


def _say_what_hccl_would(text: str, path: Path, chip: str) -> None:
    """Errors as HCCL has them, one line per code, and its opinion of the file's name, which is a warning elsewhere."""
    report = parse_rank_table(text.encode(), path, Profile(chip=chip))
    refused = [*report.errors, *(warning for warning in report.warnings if warning.code == "RT406")]
    counts = Counter(problem.code for problem in refused)
    for problem in {problem.code: problem for problem in reversed(refused)}.values():
        times = "" if counts[problem.code] == 1 else f" ({counts[problem.code]:,} times)"
        note(f"HCCL would refuse the result: {problem.code}{times}: {problem.message}")
        if problem.hint:
            click.echo(f"      hint: {problem.hint}", err=True)
