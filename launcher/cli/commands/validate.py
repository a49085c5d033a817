"""`tlaunch validate`: check rank tables and report every problem with its line."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from launcher.cli.commands.table.table_files import STDIN, problem_to_json, read_table
from launcher.cli.launch.rank_tables import max_table_bytes
from launcher.cli.options.run import consumer_option, max_table_size_option, table_chip_option
from launcher.cli.options.types import complete_files
from launcher.cli.text.columns import counted
from launcher.cli.text.stdout import say, write_out
from launcher.cli.text.style import ERROR, STRONG, WARNING, Screen, screen_of
from launcher.core.codec import json_text
from launcher.core.errors import EXIT_FAILURE, EXIT_OK, EXIT_USAGE, TlaunchError, UnreadableError, UsageError
from launcher.core.frozen import frozen
from launcher.core.text import printable, shell_word
from launcher.rank_table import TableReport
from launcher.rank_table.catalogue import Severity
from launcher.rank_table.detect import looks_like_table, mentions_ids, named_like_table
from launcher.rank_table.diagnostics import count_problems, render_each
from launcher.rank_table.fix import fix_table
from launcher.rank_table.profile import Profile
from launcher.rank_table.table_reader import parse_rank_table, read_bytes, read_head

EPILOG = """\b
Examples:
  tlaunch validate rank_tables/rank_table_8pcs.json
  tlaunch validate --chip 910 --strict tables/
  generate_my_table | tlaunch validate --json -

Exit codes: 0 every table is valid (warnings are allowed, but not with --strict); 1 a table is invalid; 2 wrong usage,
or any file that cannot be read. `tlaunch table explain CODE` explains a code.
"""
MAX_REPAIRED_BYTES = 1 << 20  # of a table whose possible repairs are counted
HEAD_BYTES = 1 << 16  # of a large file in a directory: enough to recognise a rank table
NOT_SEARCHED = frozenset({"node_modules", "bower_components", "site-packages", "dist-packages", "__pycache__"})
MAX_OTHERS = 8  # listed files that are not rank tables; more are only counted


@frozen
class Checked:
    """A file and the result of checking it. Either `report` or `error` is set."""

    name: str
    report: TableReport | None
    error: TlaunchError | None = None

    def exit_code(self, *, strict: bool) -> int:
        if self.report is None:
            return EXIT_USAGE
        return EXIT_OK if passes(self.report, strict=strict) else EXIT_FAILURE


@click.command(epilog=EPILOG)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array with one element per file.")
@click.option("--strict", is_flag=True, help="Count warnings as errors.")
@table_chip_option
@consumer_option
@max_table_size_option
@click.option("-q", "--quiet", is_flag=True, help="Print errors and warnings only.")
@click.option(
    "--color/--no-color", "colour", default=None, help="Use colour.  [default: on a terminal, unless NO_COLOR is set]"
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", shell_complete=complete_files)
def validate(
    files: tuple[str, ...],
    *,
    chip: str,
    consumer: str,
    as_json: bool,
    strict: bool,
    quiet: bool,
    colour: bool | None,
) -> int:
    """Check rank tables as HCCL does.

    FILE may be - for stdin, or a directory: every *.json below it is checked that has the keys or the name of a rank table
    (rank_table*, hccl*) or is not valid JSON. Other files are listed as skipped; hidden directories and those of installed
    packages are ignored.
    """
    if files.count(STDIN) > 1:
        raise UsageError("`-` is given twice, but stdin can be read only once")
    screen = screen_of(sys.stdout, colour)
    others: list[Path] = []
    profile = Profile(chip=chip, consumer=consumer)
    checked = check_all(files, profile, others)
    elements, exit_code = [], EXIT_OK
    for each in checked:
        exit_code = max(exit_code, each.exit_code(strict=strict))
        if each.error is not None:
            say(f"error: {each.error}")
        if as_json:
            elements.append(to_json(each, strict=strict))
        elif each.report is not None:
            write_out(_text(each.report, screen, strict=strict, quiet=quiet))
            if each.name != STDIN and not passes(each.report, strict=strict):
                for line in _repairable(each.report, profile):
                    write_out(f"{screen.prose(line)}\n")
    if as_json:
        write_out(json_text(elements))
    if others and not quiet:
        are = "file is not a rank table" if len(others) == 1 else "files are not rank tables"
        say(f"{len(others):,} other *.json {are}: {_names(others)}")
    return exit_code


def check_all(names: Sequence[str], profile: Profile, others: list[Path]) -> Iterator[Checked]:
    """Check files one by one. Files in a directory are checked in the order of their paths.

    Files in a directory that are not rank tables are added to `others`.
    """
    for name in names:
        if os.path.isdir(name):  # noqa: PTH112 - Path.is_dir raises if a name is too long
            yield from _check_directory(name, profile, others)
        else:
            try:
                yield Checked(name, read_table(name, profile))
            except UnreadableError as error:
                yield Checked(name, None, error)


def passes(report: TableReport, *, strict: bool) -> bool:
    return report.valid and not (strict and report.problems)


def to_json(checked: Checked, *, strict: bool) -> dict[str, Any]:
    """Return the result for one file as a JSON object, with a key `error` only if the file cannot be read."""
    report = checked.report
    return {
        "path": checked.name,
        "format": None if report is None or report.format is None else report.format.value,
        "valid": report is not None and passes(report, strict=strict),
        "servers": 0 if report is None else report.servers,
        "devices": 0 if report is None else report.devices,
        "problems": [] if report is None else [problem_to_json(problem) for problem in report.problems],
        **({"error": str(checked.error)} if report is None else {}),
    }


def _text(report: TableReport, screen: Screen, *, strict: bool, quiet: bool) -> str:
    """Return the problems with their source lines, then a summary. Return "" if --quiet suppresses all of it."""

    def style(place: str, kind: str, severity: Severity) -> tuple[str, str]:
        return screen.paint(place, STRONG), screen.paint(kind, ERROR if severity.value == "error" else WARNING)

    parts = list(render_each(report.problems, report.document, str(report.path), style, columns=screen.columns))
    name, count = printable(str(report.path)), count_problems(report.problems)
    if not report.valid:
        parts.append(f"{name}: {count}")
    elif strict and report.problems:
        parts.append(f"{name}: {count}, but --strict allows none")
    elif not quiet:
        kind = "" if report.format is None else f" {report.format.value}"
        size = f"{counted(report.servers, 'server')}, {counted(report.devices, 'device')}"
        parts.append(f"{name}: valid{kind} table: {size}{f', {count}' if report.problems else ''}")
    return "".join(f"{screen.prose(part)}\n" for part in parts)


def _repairable(report: TableReport, profile: Profile) -> Iterator[str]:
    """Yield a line with the number of repairable problems and the command that repairs them."""
    text = report.document.text.encode(errors="surrogateescape")
    if len(text) > MAX_REPAIRED_BYTES:  # this would take longer than the check
        return
    fixed = fix_table(text, report.path, profile)
    found: Counter[tuple[str | None, int]] = Counter((problem.code, problem.line) for problem in report.problems)
    repaired = Counter((repair.code, repair.line) for repair in fixed.repairs)
    count, of_all = (found & repaired).total(), found.total()
    if count:
        options = [f"--chip {profile.chip} "] if profile.chip != "auto" else []
        options += [f"--for {profile.consumer} "] if profile.consumer != "hccl" else []
        command = f"tlaunch table fix {''.join(options)}--write {shell_word(str(report.path))}"
        yield f"{count:,} of {of_all:,} can be repaired by `{command}`"


def _check_directory(directory: str, profile: Profile, others: list[Path]) -> Iterator[Checked]:
    closed: list[OSError] = []
    paths: list[Path] = []
    for folder, folders, names in os.walk(directory, onerror=closed.append):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in NOT_SEARCHED]
        paths += [Path(folder, name) for name in names if name.endswith(".json")]
    paths.sort()
    for error in closed:
        name = str(error.filename)
        yield Checked(name, None, UnreadableError(f"{name} cannot be read: {error.strerror}"))
    passed_over = []
    for path in paths:
        checked = _check_found(path, profile)
        if checked is None:
            passed_over.append(path)
        else:
            yield checked
    if len(passed_over) < len(paths) or closed:
        others.extend(passed_over)
    else:
        only = f"{counted(len(paths), 'other *.json file')}: {_names(paths)}"
        held = f"no rank table, only {only}" if paths else "no *.json file"
        nothing = UnreadableError(f"{directory} contains {held}", hint="name the rank tables")
        yield Checked(directory, None, nothing)


def _check_found(path: Path, profile: Profile) -> Checked | None:
    """Check a file that was found in a directory. Return None if it is not a rank table."""
    if os.path.exists(path) and not os.path.isfile(path):  # noqa: PTH110, PTH113 - never raise; skip pipes
        return None
    try:
        data = read_bytes(path, max_table_bytes())
    except UnreadableError as error:
        is_large = False
        with suppress(OSError):
            is_large = path.stat().st_size > max_table_bytes()
        is_other = is_large and not named_like_table(path.name) and not mentions_ids(read_head(path, HEAD_BYTES))
        return None if is_other else Checked(str(path), None, error)
    report = parse_rank_table(data, path, profile)
    meant = named_like_table(path.name) or looks_like_table(data, report.document)
    return Checked(str(path), report) if meant else None


def _names(paths: Sequence[Path]) -> str:
    more = len(paths) - MAX_OTHERS
    return ", ".join(map(str, paths[:MAX_OTHERS])) + (f" and {more:,} more" if more > 0 else "")
