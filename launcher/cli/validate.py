"""`tlaunch validate`: every problem of every table, each at its line."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from launcher.cli.profile_options import chip_option, consumer_option
from launcher.core.errors import EXIT_FAILURE, EXIT_OK, EXIT_USAGE, TlaunchError, UnreadableError, UsageError

if TYPE_CHECKING:
    from launcher.rank_table import TableReport
    from launcher.rank_table.profile import Profile

EPILOG = """\b
Examples:
  tlaunch validate rank_tables/rank_table_8pcs.json
  tlaunch validate --chip 910 --strict tables/
  generate_my_table | tlaunch validate --json -

\b
Exit codes: 0 every table is valid (warnings are allowed, but not with --strict); 1 a table is invalid; 2 wrong usage,
or a file that cannot be read, whatever the others are. `tlaunch table explain CODE` says more about a code.
"""

INDENT = 2


@dataclass(frozen=True)
class Settings:
    """How a report is judged and shown."""

    strict: bool
    quiet: bool
    colour: bool


@dataclass(frozen=True)
class Checked:
    """One file and what came of it. Invariant: exactly one of `report` and `error` is there."""

    name: str
    report: TableReport | None
    error: TlaunchError | None = None

    def exit_code(self, *, strict: bool) -> int:
        if self.report is None:
            return EXIT_USAGE
        return EXIT_OK if passes(self.report, strict=strict) else EXIT_FAILURE


@click.command(epilog=EPILOG)
@click.option("--json", "as_json", is_flag=True, help="One array, one element per file.")
@click.option("--strict", is_flag=True, help="Count warnings as errors.")
@chip_option
@consumer_option
@click.option("-q", "--quiet", is_flag=True, help="Errors and warnings only, no line for a clean file.")
@click.option("--color/--no-color", "colour", default=None, help="[default: on a terminal, unless NO_COLOR is set]")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.pass_context
def validate(
    context: click.Context, /, files: tuple[str, ...], *, chip: str, consumer: str, as_json: bool, **options: Any
) -> None:
    """Check rank tables as HCCL does, and say why at the line.

    FILE may be - for stdin, or a directory, of which every *.json below it is checked.
    """
    from launcher.cli.reports import STDIN, wants_colour
    from launcher.rank_table.profile import Profile

    if files.count(STDIN) > 1:
        raise UsageError("- is given twice, but stdin can be read only once")
    settings = Settings(options["strict"], options["quiet"], wants_colour(options["colour"]))
    checked = check_all(files, Profile(chip=chip, consumer=consumer))
    context.exit(_show_json(checked, settings) if as_json else _show_text(checked, settings))


def check_all(names: Sequence[str], profile: Profile) -> Iterator[Checked]:
    """Each file when its turn comes, those of directories in the order of their paths. Blocks while reading."""
    for name in names:
        if os.path.isdir(name):  # noqa: PTH112 - Path.is_dir raises where a name is too long
            yield from _check_directory(name, profile)
        else:
            yield _check(name, profile)


def passes(report: TableReport, *, strict: bool) -> bool:
    return report.valid and not (strict and report.problems)


def to_json(checked: Checked, *, strict: bool) -> dict[str, Any]:
    """One element of what `--json` prints. `error` is there only for a file that cannot be read."""
    from launcher.cli.reports import problem_to_json

    report = checked.report
    if report is None:
        return {
            "path": checked.name,
            "format": None,
            "valid": False,
            "servers": 0,
            "devices": 0,
            "problems": [],
            "error": str(checked.error),
        }
    return {
        "path": checked.name,
        "format": None if report.format is None else report.format.value,
        "valid": passes(report, strict=strict),
        "servers": report.servers,
        "devices": report.devices,
        "problems": [problem_to_json(problem) for problem in report.problems],
    }


def to_text(report: TableReport, settings: Settings) -> str:
    """The problems with their source lines, then one line that sums up; empty where --quiet leaves nothing to say."""
    shown, _, count = report.render().rpartition("\n")
    if not report.valid:
        closing = count
    elif settings.strict and report.problems:
        closing = f"{count}, and --strict allows none"
    else:
        closing = "" if settings.quiet else _all_well(report)
    problems = _coloured(shown, str(report.path)) if settings.colour else shown
    return _on_its_line("".join(f"{part}\n" for part in (problems, closing) if part), str(report.path))


def _check(name: str, profile: Profile) -> Checked:
    from launcher.cli.reports import read_table

    try:
        return Checked(name, read_table(name, profile))
    except UnreadableError as error:
        return Checked(name, None, error)


def _check_directory(directory: str, profile: Profile) -> Iterator[Checked]:
    closed: list[OSError] = []
    paths = sorted(
        Path(folder, name)
        for folder, _, names in os.walk(directory, onerror=closed.append)
        for name in names
        if name.endswith(".json")
    )
    for error in closed:
        name = str(error.filename)
        yield Checked(name, None, UnreadableError(f"{name} cannot be read: {error.strerror}"))
    for path in paths:
        yield _check(str(path), profile)
    if not paths and not closed:
        nothing = UnreadableError(f"{directory} holds no *.json file", hint="name the tables themselves")
        yield Checked(directory, None, nothing)


def _show_json(all_checked: Iterable[Checked], settings: Settings) -> int:
    from launcher.cli.console import write_out

    elements, exit_code = [], EXIT_OK
    for checked in all_checked:
        exit_code = max(exit_code, checked.exit_code(strict=settings.strict))
        _say_unreadable(checked)
        elements.append(to_json(checked, strict=settings.strict))
    write_out(json.dumps(elements, indent=INDENT) + "\n")
    return exit_code


def _show_text(all_checked: Iterable[Checked], settings: Settings) -> int:
    """Each file as soon as it was checked."""
    from launcher.cli.console import write_out

    exit_code = EXIT_OK
    for checked in all_checked:
        exit_code = max(exit_code, checked.exit_code(strict=settings.strict))
        _say_unreadable(checked)
        if checked.report is not None:
            write_out(to_text(checked.report, settings))
    return exit_code


def _say_unreadable(checked: Checked) -> None:
    if checked.error is not None:
        with suppress(OSError):  # a full disk behind stderr must not keep the other files from being checked
            print(f"error: {checked.error}", file=sys.stderr, flush=True)


def _all_well(report: TableReport) -> str:
    from launcher.cli.reports import counted
    from launcher.rank_table.diagnostics import count_problems

    kind = "" if report.format is None else f" {report.format.value}"
    size = f"{counted(report.servers, 'server')}, {counted(report.devices, 'device')}"
    warnings = f", {count_problems(report.problems)}" if report.problems else ""
    return f"{report.path}: valid{kind} table: {size}{warnings}"


def _on_its_line(text: str, name: str) -> str:
    """A file's name may hold anything; none of it may move a terminal's cursor."""
    from launcher.rank_table.faults import printable

    return text if name.isprintable() else text.replace(name, printable(name))


def _coloured(text: str, name: str) -> str:
    """The first line of each problem: its place bold, its severity red or yellow. Words say the same."""
    head = re.compile(rf"^({re.escape(name)}:\d+:\d+:) ((error|warning)\[\w+\])", re.MULTILINE)

    def styled(match: re.Match[str]) -> str:
        place, kind, severity = match.groups()
        colour = "red" if severity == "error" else "yellow"
        return f"{click.style(place, bold=True)} {click.style(kind, fg=colour, bold=True)}"

    return head.sub(styled, text)
