"""What the commands that make tables share: showing problems, notes, and handing the result over."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from launcher.core.errors import UsageError

if TYPE_CHECKING:
    from launcher.core.records import Cluster
    from launcher.rank_table import TableReport

MODE = 0o640  # what the programs that read tables ask for


def note(text: str) -> None:
    click.echo(f"note: {text}", err=True)


def shown(report: TableReport) -> Cluster | None:
    """The report's cluster; None after its problems were written to stderr. Warnings alone are only counted there."""
    if report.cluster is None:
        click.echo(report.render(), err=True)
    elif report.warnings:
        codes = ", ".join(dict.fromkeys(warning.code for warning in report.warnings))
        note(f"{report.path}: {len(report.warnings):,} of the warnings that `tlaunch validate` shows: {codes}")
    return report.cluster


def check_chip(chip: str) -> str:
    """Raises UsageError where no hardware has this name."""
    from launcher.rank_table import CHIPS

    if chip not in CHIPS:
        raise UsageError(f"--chip {chip[:40]} is not known", hint=f"one of {', '.join(CHIPS)}")
    return chip


def check_output(output: Path | None, *, force: bool) -> None:
    """Before anything is read: a file is replaced only where that was asked for."""
    if output is None or not output.exists():
        return
    if not output.is_file():
        raise UsageError(f"{output} is no regular file", hint="without --output the text goes to stdout")
    if not force:
        raise UsageError(f"{output} exists already", hint="--force replaces it")


def deliver(text: str, cluster: Cluster, format_name: str, output: Path | None) -> None:
    """To stdout, or aside and renamed to `output`; and what HCCL would say to it, if it is a table."""
    from launcher.core.atomic import write_text
    from launcher.rank_table.targets import TARGETS

    if TARGETS[format_name].is_table:
        _say_what_hccl_would(text, output or Path("-"))
    if output is None:
        click.echo(text.encode(), nl=False)
        return
    write_text(output, text, mode=MODE)
    servers, devices = len(cluster.servers), cluster.device_count
    click.echo(f"wrote {output}: {format_name}, {servers:,} servers, {devices:,} devices", err=True)


def _say_what_hccl_would(text: str, path: Path) -> None:
    """Errors as HCCL has them, one line per code, and its opinion of the file's name, which is a warning elsewhere."""
    from launcher.rank_table import parse_rank_table

    report = parse_rank_table(text.encode(), path)
    refused = [*report.errors, *(warning for warning in report.warnings if warning.code == "RT406")]
    counts = Counter(problem.code for problem in refused)
    for problem in {problem.code: problem for problem in reversed(refused)}.values():
        times = "" if counts[problem.code] == 1 else f" ({counts[problem.code]:,} times)"
        note(f"HCCL would refuse the result: {problem.code}{times}: {problem.message}")
        if problem.hint:
            click.echo(f"      hint: {problem.hint}", err=True)
