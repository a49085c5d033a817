"""`tlaunch table diff`: check whether HCCL would accept the files of two nodes as the same table."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click

from launcher.cli.commands.table.table_files import STDIN, problem_to_json, read_table
from launcher.cli.options.run import max_table_size_option
from launcher.cli.options.types import IntRange, complete_files
from launcher.cli.text.columns import counted
from launcher.cli.text.stdout import say, write_out
from launcher.cli.text.style import ACTIVE, ADDED, ERROR, GOOD, PLAIN, REMOVED, Screen, screen_of
from launcher.core.codec import encode, json_text
from launcher.core.errors import EXIT_FAILURE, EXIT_OK, UnreadableError, UsageError
from launcher.core.text import printable
from launcher.rank_table import TableReport
from launcher.rank_table.diagnostics import count_problems
from launcher.rank_table.difference import Comparison, Difference, Kind, RankChange, compare
from launcher.rank_table.profile import Profile

EPILOG = """\b
Examples:
  tlaunch table diff node0/hccl.json node1/hccl.json
  ssh node1 cat /etc/hccl.json | tlaunch table diff /etc/hccl.json -

Exit codes: 0 the checksums would match; 1 they would not, and HCCL would stop with EI0005 (or a file is not valid JSON);
2 wrong usage, or a file that cannot be read.
"""
SHOWN_AT_MOST = 20
MAX_VALUE_CHARS = 60


@click.command(epilog=EPILOG)
@click.option(
    "--limit", type=IntRange(min=0), default=SHOWN_AT_MOST, show_default=True, metavar="N",
    help="Show at most N differences of each kind.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@max_table_size_option
@click.argument("first", metavar="A", shell_complete=complete_files)
@click.argument("second", metavar="B", shell_complete=complete_files)
def diff(first: str, second: str, *, limit: int, as_json: bool) -> int:
    """Check whether HCCL accepts two files as the same table.

    Each rank reads its own node's file, and HCCL compares checksums of the contents. White space and the order of keys
    do not change the checksum; values and the order of lists do. The shown checksums cover the same content as HCCL's,
    but the numbers may differ. A or B may be - for stdin.
    """
    if first == second == STDIN:
        raise UsageError("`-` is given twice, but stdin can be read only once")
    pair = read_table(first, Profile()), read_table(second, Profile())
    # HCCL accepts text after the table.
    broken = [
        report
        for report in pair
        if not report.document.checkable or any(problem.code.startswith("RT1") for problem in report.errors)
    ]
    if broken:
        for report in broken:
            say(report.render(screen_of(sys.stderr).columns))
        names = " and ".join(printable(str(report.path)) for report in broken)
        are = "is" if len(broken) == 1 else "are"
        text = f"nothing to compare: HCCL cannot read {names}, which {are} not JSON\n"
        write_out(json_text(_to_json(None, pair)) if as_json else text)
        return EXIT_FAILURE
    try:
        comparison = compare(*pair)
        found = (
            json_text(_to_json(comparison, pair)) if as_json else _text(comparison, pair, limit, screen_of(sys.stdout))
        )
    except RecursionError:
        raise UnreadableError(f"{first} or {second} is too deeply nested to compare") from None
    write_out(found)
    return EXIT_OK if comparison.would_match else EXIT_FAILURE


Pair = tuple[TableReport, TableReport]
_LOOKS = {Kind.ADDED: ADDED, Kind.REMOVED: REMOVED, Kind.CHANGED: ACTIVE, Kind.REORDERED: ACTIVE}


def _text(comparison: Comparison, pair: Pair, limit: int, screen: Screen = PLAIN) -> str:
    """Return the result of a comparison as lines, with control characters escaped."""
    differences = [_difference_line(found, pair, screen) for found in comparison.differences[:limit]]
    names = printable(f"{pair[0].path} and {pair[1].path}")
    first, second = (f"{checksum:08x}" for checksum in comparison.checksums)
    if comparison.would_match:
        same_text = pair[0].document.text == pair[1].document.text
        but = "" if same_text else "; they differ in white space, in the order of keys, or in notation"
        verdict = screen.paint(f"{names} are the same table: the checksums would match ({first}){but}", GOOD)
    else:
        why = f"the checksums would not match ({first}, {second}), so HCCL would stop with EI0005"
        verdict = screen.paint(f"{names} differ: {why}", ERROR)
    lines = [verdict, *_section("difference", "differences", differences, len(comparison.differences))]
    if comparison.rank_changes is None:
        wrong = ", ".join(f"{report.path} has {count_problems(report.errors)}" for report in pair if report.errors)
        lines.append(printable(f"changes for the ranks are unknown: {wrong} (see `tlaunch validate`)"))
    elif not comparison.would_match and not comparison.rank_changes:
        lines.append("no change for any rank: servers, devices and addresses are the same")
    all_changes = comparison.rank_changes or ()
    changes = [_change_line(change, screen) for change in all_changes[:limit]]
    lines += _section("change for the ranks", "changes for the ranks", changes, len(all_changes))
    return "".join(f"{line}\n" for line in lines)


def _section(noun: str, nouns: str, shown: Sequence[str], count: int) -> Iterator[str]:
    if count:
        yield f"{counted(count, noun, nouns)}:"
        yield from (f"  {line}" for line in shown)
    if count > len(shown):
        yield f"  ... and {count - len(shown):,} more (--limit)"


def _difference_line(found: Difference, pair: Pair, screen: Screen) -> str:
    before, after = screen.paint(_value(found.before), REMOVED), screen.paint(_value(found.after), ADDED)
    place = printable(f"{pair[0].path}:{found.before_line}")
    new_place = printable(f"{pair[1].path}:{found.after_line}")
    what = f"{screen.paint(found.kind.value, _LOOKS[found.kind])} {printable(found.pointer) or 'the whole document'}"
    match found.kind:
        case Kind.ADDED:
            return f"{what}: {after} ({new_place})"
        case Kind.REMOVED:
            return f"{what}: {before} ({place})"
        case Kind.REORDERED:
            count = len(found.before)
            return f"{what}: the same {count:,} entries, only in another order ({place}, {new_place})"
        case Kind.CHANGED:
            return f"{what}: {before} ({place}) -> {after} ({new_place})"


def _change_line(change: RankChange, screen: Screen) -> str:
    before, after = (
        None if text is None else screen.paint(printable(_short(text)), look)
        for text, look in ((change.before, REMOVED), (change.after, ADDED))
    )
    if change.name == "rank":
        return f"rank {change.global_rank}: " + (f"added, {after}" if before is None else f"removed, {before}")
    return f"rank {change.global_rank}: {printable(change.name)} {before or '(none)'} -> {after or '(none)'}"


def _value(value: Any) -> str:
    return printable(_short(json.dumps(value, ensure_ascii=False)))


def _short(text: str) -> str:
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[: MAX_VALUE_CHARS - 3]}..."


def _to_json(comparison: Comparison | None, pair: Pair) -> dict[str, Any]:
    return {
        "paths": [str(report.path) for report in pair],
        "would_match": comparison is not None and comparison.would_match,
        "checksums": comparison and [f"{checksum:08x}" for checksum in comparison.checksums],
        "differences": comparison and encode(comparison.differences),
        "rank_changes": comparison and encode(comparison.rank_changes),
        "problems": [[problem_to_json(problem) for problem in report.problems] for report in pair],
    }
