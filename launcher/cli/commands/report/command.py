"""`tlaunch report`: what became of a run, on the terminal, as a page, as a picture or as JSON."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from launcher.cli.options.chosen_run import RUN_HELP, chosen, json_option
from launcher.cli.options.run import runs_dir_option
from launcher.core.errors import UnreadableError, UsageError
from launcher.core.json_text import json_text

if TYPE_CHECKING:
    from launcher.cli.commands.report.figures import Facts

EPILOG = """\b
Examples:
  tlaunch report
  tlaunch report --html report.html
  tlaunch report --png loss.png 20261121-053712-transformer 20261121-061210-transformer
  tlaunch report --json | jq '.runs[0].best_loss'

Loss, tokens/s and memory are what the program wrote to metrics.jsonl in its run directory, as the bundled trainer does:
from its rank 0, the final loss and others as means of a few steps where these are short. The peak memory is of that rank
alone: the most on its accelerator, or without one the most that the process held.

The page needs no network and no script; --png needs a Chromium on PATH.

Exit codes: 0 whatever became of the run; 1 the browser failed; 2 wrong usage, no such run, or no Chromium.
"""
STDOUT = "-"
SCHEMA = 1
MAX_LINE = 40  # characters of a line of blocks
MIN_COLUMN = 24  # of a run that stands beside others; else they stand below each other
MIN_WIDTH = 20
PLAIN_COLUMNS = 120


@click.command(
    epilog=EPILOG,
    help=f"Show what became of runs: their figures, and pages with charts.\n\nSeveral stand side by side. {RUN_HELP}",
)
@click.option("--html", metavar="FILE", help="One file that every browser shows; - is stdout.")
@click.option("--png", metavar="FILE", help="The same page as a picture.")
@json_option
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@runs_dir_option
def report(*, runs: tuple[str, ...], html: str | None, png: str | None, as_json: bool, runs_dir: Path) -> None:
    from launcher.cli.commands.report.figures import gather
    from launcher.cli.text.stdout import write_out

    _check(html, png, as_json=as_json)
    run_dirs = [chosen(runs_dir, run) for run in runs] or [chosen(runs_dir, None)]
    facts = [gather(run_dir) for run_dir in run_dirs]
    if as_json:
        write_out(json_text({"schema": SCHEMA, "runs": [_to_json(each) for each in facts]}))
    if html is not None or png is not None:
        _write_pages(facts, html, png)
    elif not as_json:
        write_out("".join(f"{line}\n" for line in to_lines(facts, _width(), plain=_is_plain())))


def to_lines(runs: Sequence[Facts], width: int, *, plain: bool = False) -> Iterator[str]:
    """The summary, safe to show and fitting `width` columns, 20 at least; without block elements if it is `plain`."""
    from launcher.cli.commands.report.words import HOW, may_be_told_how, missing, not_understood

    alone = len(runs) == 1
    width = max(MIN_WIDTH, width)
    lines = _side_by_side if len(runs) > 1 and _column(len(runs), width) >= MIN_COLUMN else _below_each_other
    for line in lines(runs, width, plain=plain):
        yield from _fitting(line, width)
    for words in filter(None, (not_understood(facts, alone=alone) for facts in runs)):
        yield ""
        yield from _fitting(words, width)
    if without := [missing(facts, alone=alone) for facts in runs if not facts.metrics.steps]:
        without[-1] += HOW if may_be_told_how(runs) else ""
        for words in without:
            yield ""
            yield from _fitting(words, width)


def _fitting(line: str, width: int) -> list[str]:
    from launcher.cli.text.columns import columns_of
    from launcher.logs.terminal import without_colours

    whole = without_colours(line)
    if columns_of(whole) <= width:
        return [whole]
    indent = " " * (len(whole) - len(whole.lstrip()) + 2)
    characters = width // 2 if columns_of(whole) > len(whole) else width  # half as many wide ones fit for sure
    return textwrap.wrap(whole, characters, subsequent_indent=indent, break_on_hyphens=False)


def _below_each_other(runs: Sequence[Facts], width: int, *, plain: bool) -> Iterator[str]:
    from launcher.cli.commands.report.figures import sentence

    for facts in runs:
        yield f"{facts.name}: {sentence(facts.state)}"
        yield from (f"  {line}" for line in _one(facts, width - 2, plain=plain))


def _column(runs: int, width: int) -> int:
    """The room for each of several runs side by side."""
    from launcher.cli.commands.report.words import FIGURES

    return (width - max(len(name) for name, _ in FIGURES)) // runs - 2


def _one(facts: Facts, width: int, *, plain: bool) -> Iterator[str]:
    """Name, value, line; what the sentence above has said is left out."""
    from launcher.cli.commands.report.words import FIGURES, NOTHING, called

    told = [(name, tell(facts)) for name, tell in FIGURES[2:]]
    told = [(name, words) for name, words in told if words != NOTHING]
    names, values = (max(len(pair[column]) for pair in told) for column in (0, 1))
    room = max(0, min(MAX_LINE, width - names - values - 4))
    for name, words in told:
        line = _drawn(name, facts, room, plain=plain)
        yield f"{called(name, [facts]).ljust(names)}  {words.ljust(values)}  {line}".rstrip()


def _side_by_side(runs: Sequence[Facts], width: int, *, plain: bool) -> Iterator[str]:
    """A column for each run, and below a figure its line."""
    from launcher.cli.commands.report.words import FIGURES, NOTHING, called
    from launcher.cli.text.columns import cut_off, padded
    from launcher.logs.terminal import without_colours

    names, column = max(len(name) for name, _ in FIGURES), _column(len(runs), width)

    def row(name: str, cells: list[str]) -> str:
        whole = map(without_colours, cells)
        return "  ".join([name.ljust(names), *(padded(cut_off(cell, column), column) for cell in whole)]).rstrip()

    yield row("", [facts.name for facts in runs])
    for name, tell in FIGURES:
        if set(words := [tell(facts) for facts in runs]) != {NOTHING}:
            yield row(called(name, runs), words)
            lines = [_drawn(name, facts, min(MAX_LINE, column), plain=plain) for facts in runs]
            if any(line.strip() for line in lines):
                yield row("", lines)


def _drawn(name: str, facts: Facts, room: int, *, plain: bool) -> str:
    """Nothing where one or no value is known: that is no course."""
    from launcher.cli.commands.report.words import values_of
    from launcher.cli.text.sparkline import sparkline

    values = values_of(name, facts)
    return sparkline(values, room, plain=plain) if sum(value is not None for value in values) > 1 else ""


def _check(html: str | None, png: str | None, *, as_json: bool) -> None:
    """Before anything is read or written."""
    from launcher.logs.terminal import escaped

    for option, name in (("--html", html), ("--png", png)):
        if name is not None and (not name or name.endswith(os.sep)):
            raise UsageError(f"{option} needs a file's name{f', and {escaped(name)} is none' if name else ''}")
    if html is not None and png is not None and os.path.realpath(html) == os.path.realpath(png):
        raise UsageError("--html and --png: both would be the same file")
    if png == STDOUT:
        raise UsageError("--png needs a file's name", hint="only --html - goes to stdout")
    if png is not None:
        from launcher.cli.commands.report.screenshot import find_browser

        find_browser()
    if html == STDOUT and as_json:
        raise UsageError("--html - and --json: both would go to stdout")


def _write_pages(runs: list[Facts], html: str | None, png: str | None) -> None:
    from launcher.cli.commands.report.page import POLICY, render
    from launcher.cli.text.stdout import write_out

    page = render(runs)
    if html == STDOUT:
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr] # it says so itself, whatever the terminal's
        write_out(page)
    elif html is not None:
        _put(html, page.encode())
    if png is not None:
        from launcher.cli.commands.report.screenshot import screenshot

        _put(png, screenshot(page, POLICY))


def _put(name: str, content: bytes) -> None:
    """A symbolic link stays one, and what it leads to is written.

    Raises:
        UsageError: it is a directory, a device, ...
        UnreadableError: it cannot be written.
    """
    from launcher.core.atomic import replacing
    from launcher.logs.terminal import escaped

    shown, target = escaped(os.fsdecode(name)), Path(os.path.realpath(name))
    if os.path.exists(target) and not os.path.isfile(target):  # noqa: PTH110, PTH113 - Path's own raise where these do not
        raise UsageError(f"{shown} is no regular file", hint="--html - writes to stdout")
    try:
        with replacing(target) as aside:
            aside.write_bytes(content)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UnreadableError(f"{shown} cannot be written: {reason}") from None
    with suppress(OSError):  # it is written, whether or not somebody hears of it
        click.echo(f"wrote {shown}", err=True)


def _to_json(facts: Facts) -> dict[str, Any]:
    from launcher.cli.text.run_text import as_json

    metrics = facts.metrics
    counts = {
        "step_records": len(metrics.steps),
        "validation_records": len(metrics.validations),
        "strange_lines": metrics.strange,
        "first_strange_line": metrics.first_strange,
        "metrics_unreadable": metrics.unreadable,
    }
    return as_json(facts.state) | {"ended_ns": facts.ended_ns} | asdict(facts.figures) | counts


def _width() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else PLAIN_COLUMNS


def _is_plain() -> bool:
    from launcher.cli.text.sparkline import has_blocks

    return not has_blocks(sys.stdout.encoding)
