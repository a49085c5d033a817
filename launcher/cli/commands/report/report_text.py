"""A report's figures as text, and the summary for the terminal."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from typing import Any

from launcher.cli.commands.report.facts import Measured, RunFacts, finite, points, unit_of
from launcher.cli.text.columns import (
    clipped_text,
    columns_of,
    counted,
    cut_to,
    duration,
    number,
    padded,
    size,
    sparkline,
    step_time,
)
from launcher.cli.text.membership_text import change_text
from launcher.cli.text.run_text import continued_from, culprit
from launcher.cli.text.saved_text import how_to_resume
from launcher.cli.text.style import Screen
from launcher.logs.terminal import one_line, without_colours

UNKNOWN = "-"
HOW = (
    "The bundled trainer writes metrics. Other programs can: from tlaunch import metric; metric(step, loss=2.5), also with "
    "learning_rate, tokens_per_s, memory_bytes and validation_loss"
)
MAX_SPARKLINE = 40  # characters
MIN_COLUMN = 23  # for each of several runs side by side; with less room, they are shown one below another
MAX_CELL_LINES = 4
MIN_WIDTH = 20
MAX_CHANGES = 8  # of an elastic run; the last ones are shown
SAID = {"state", "first failure"}  # also in the sentence about a run
NAME_WIDTH = len("lowest training loss")  # the longest name
# The fields of figures that are also shown as curves.
COURSES = {
    "final loss": "loss",
    "last loss": "loss",
    "last validation": "validation_loss",
    "last BLEU": "bleu",
    "median tokens/s": "tokens_per_s",
    "step time": "step_s",
    "padding": "padding_share",
    "utilisation": "utilisation",
    "gradient norm": "gradient_norm",
    "peak memory": "memory_bytes",
}
OF_VALIDATIONS = ("validation_loss", "bleu")


def figures(runs: Sequence[RunFacts]) -> dict[str, list[str]]:
    """Return the figures of all runs, keyed by name. Figures that no run has are omitted."""
    final = "last loss" if any(facts.state.state.going_on for facts in runs) else "final loss"
    unit = unit_of(runs)
    rows: dict[str, list[str]] = {}
    for facts in runs:
        state, totals, course = facts.state, facts.totals, facts.course
        perplexity = "" if totals.perplexity is None else f", perplexity {number(totals.perplexity, ',.2f')}"
        planned, peak_bytes = totals.ended_early_of, totals.peak_memory_bytes
        for name, text in (
            ("state", state.state.value + (f", exit code {state.exit_code}" if state.exit_code else "")),
            ("first failure", culprit(state) or UNKNOWN),
            ("continues", continued_from(facts.continued) if facts.continued else UNKNOWN),
            ("attempts", str(totals.attempts)),
            ("duration", duration(totals.duration_s)),
            (
                f"{unit}s",
                "at least " * (facts.printed.at_least and totals.steps is not None)
                + number(totals.steps, ",d")
                + (f" {facts.unit}s" if facts.unit != unit else "")
                + ("" if planned is None else f" of {planned:,}, ended early"),
            ),
            (final, _last_loss(course.steps, "loss", facts.unit)),
            ("lowest training loss", _at(totals.best_loss, ".4f", totals.best_loss_step, facts.unit)),
            ("last validation", _last_loss(course.validations, "validation_loss", facts.unit, perplexity)),
            ("best validation", _at(totals.best_validation_loss, ".4f", totals.best_validation_step, facts.unit)),
            ("last BLEU", _at(totals.bleu, ".2f", totals.bleu_step, facts.unit)),
            ("best BLEU", _at(totals.best_bleu, ".2f", totals.best_bleu_step, facts.unit)),
            ("median tokens/s", number(totals.tokens_per_s, ",.0f")),
            ("step time", step_time(totals.step_s, totals.step_shares)),
            ("stages busy", ", ".join(number(share, ".0%") for share in totals.stage_busy) or UNKNOWN),
            ("padding", number(totals.padding_share, ".0%")),
            ("utilisation", number(totals.utilisation, ".0%")),
            ("gradient norm", number(totals.gradient_norm, ".4g") + clipped_text(totals.clipped_share)),
            ("peak memory", UNKNOWN if peak_bytes is None else f"{size(peak_bytes)} of one rank"),
        ):
            rows.setdefault(name, []).append(text)
    return {name: values for name, values in rows.items() if set(values) != {UNKNOWN}}


def _at(value: float | None, digits: str, step: int | None, unit: str) -> str:
    return number(value, digits) + ("" if step is None else f" at {unit} {step:,}")


def _last_loss(records: Sequence[Any], field: str, unit: str, more: str = "") -> str:
    """Return the last loss as text. If it is not finite, append the last finite loss."""
    known = [(each.step, loss) for each in records if (loss := getattr(each, field)) is not None]
    if not known:
        return UNKNOWN + more
    step, loss = known[-1]
    text = number(loss, ".4f") + ("" if math.isfinite(loss) else " (not finite)")
    if field == "validation_loss" or step != records[-1].step:
        text += f" at {unit} {step:,}"
    step, last_finite = next(((at, each) for at, each in reversed(known) if finite(each) is not None), (0, None))
    if last_finite is not None and not math.isfinite(loss):
        more += f"; last finite {number(last_finite, '.4f')} at {unit} {step:,}"
    return text + more


def notes(runs: Sequence[Measured]) -> list[str]:
    """Return notes about missing or invalid metrics, how to write metrics, and how to resume the run."""
    return [*_notes_on_metrics(runs), *_resuming(runs)]


def _resuming(runs: Sequence[Measured]) -> list[str]:
    return [] if len(runs) > 1 else [line for facts in runs for line in how_to_resume(facts.state)]


def _notes_on_metrics(runs: Sequence[Measured]) -> list[str]:
    skipped, missing, hints = [], [], []
    for facts in runs:
        metrics, whose = facts.metrics, "" if len(runs) == 1 else f"{facts.name}: "
        parts = [f"{counted(metrics.strange, 'line')} left out, not valid metrics"] if metrics.strange else []
        if metrics.first_strange:
            parts.append(f"the first: {one_line(metrics.first_strange)}")
        if metrics.steps and metrics.unreadable:
            parts.append(f"the rest cannot be read: {metrics.unreadable}")
        if parts:
            skipped.append(f"{whose}metrics.jsonl: {'; '.join(parts)}")
        if facts.printed.global_rank is not None and metrics.steps:
            log = facts.state.run_dir.train_log(facts.printed.global_rank)
            counted_on = ", counted on from the last line of each epoch" * facts.printed.at_least
            where = f"the last lines of {log.parent.name}/{log.name}"
            missing.append(f"{whose}without metrics.jsonl, {facts.unit}s and losses come from {where}{counted_on}")
        elif not metrics.steps and metrics.unreadable:
            missing.append(f"{whose}no metrics: metrics.jsonl cannot be read: {metrics.unreadable}")
        elif not metrics.steps:
            only = f", only {counted(count, 'validation')}" if (count := len(metrics.validations)) else ""
            without_file = "no metrics: the program wrote no metrics.jsonl into its run directory"
            missing.append(whose + (f"no steps in metrics.jsonl{only}" if metrics.found else without_file))
            hints = [HOW]
    return [*skipped, *missing, *hints]


def to_lines(runs: Sequence[RunFacts], width: int, *, plain: bool = False) -> Iterator[str]:
    """Yield the lines of the summary, at most `width` columns wide. `plain` avoids block characters."""
    width = max(MIN_WIDTH, width)
    column = (width - NAME_WIDTH) // len(runs) - 2
    if len(runs) > 1 and column >= MIN_COLUMN:
        summary = _side_by_side(runs, column, plain=plain)
    else:
        summary = chain.from_iterable(_alone(facts, width, plain=plain) for facts in runs)
    for line in chain(summary, *(("", note) for note in _notes_on_metrics(runs))):
        yield from wrapped(line, width)
    if resuming := _resuming(runs):
        yield ""
        for line in resuming:  # with a command to copy
            yield from Screen(columns=width).wrapped(line).split("\n")


def wrapped(line: str, width: int) -> list[str]:
    """Wrap a line to `width` columns, without colours. Continuation lines are indented."""
    line = without_colours(line)
    if columns_of(line) <= width:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    characters = width // 2 if columns_of(line) > len(line) else width  # wide characters may take two columns
    return textwrap.wrap(line, characters, subsequent_indent=indent, break_on_hyphens=False)


def _alone(facts: RunFacts, width: int, *, plain: bool) -> Iterator[str]:
    """Yield the lines for one run: its result, then each figure with a sparkline."""
    yield f"{facts.name}: {facts.sentence}"
    rows = [(name, text) for name, [text] in figures([facts]).items() if name not in SAID]
    names, values = (max(len(row[column]) for row in rows) for column in (0, 1))
    room = max(0, min(MAX_SPARKLINE, width - names - values - 6))
    for name, text in rows:
        yield f"  {name.ljust(names)}  {text.ljust(values)}  {_course(name, facts, room, plain=plain)}".rstrip()
    for change in facts.changes[-MAX_CHANGES:]:
        yield f"  attempt {change.attempt}: {change_text(change)}"


def _side_by_side(runs: Sequence[RunFacts], column: int, *, plain: bool) -> Iterator[str]:
    """Yield a table with a column for each run; each row of figures is followed by a row of sparklines."""

    def row(name: str, cells: Sequence[str]) -> Iterator[str]:
        for parts in zip_longest([name], *(_cell(text, column) for text in cells), fillvalue=""):
            shown = (padded(part, column) for part in parts[1:])
            yield "  ".join([parts[0].ljust(NAME_WIDTH), *shown]).rstrip()

    yield from row("", [facts.name for facts in runs])
    for name, values in figures(runs).items():
        yield from row(name, values)
        courses = [_course(name, facts, min(MAX_SPARKLINE, column), plain=plain) for facts in runs]
        if any(course.strip() for course in courses):
            yield from row("", courses)


def _cell(text: str, column: int) -> list[str]:
    """Return the lines of a cell, at most MAX_CELL_LINES."""
    lines = wrapped(text, column) or [""]
    if len(lines) <= MAX_CELL_LINES:
        return lines
    return [*lines[: MAX_CELL_LINES - 1], f"{cut_to(lines[MAX_CELL_LINES - 1], column - 1)}…"]


def _course(name: str, facts: RunFacts, room: int, *, plain: bool) -> str:
    """Return a sparkline of a figure, or "" if fewer than two of its values are known."""
    field = COURSES.get(name, "")
    records = facts.course.validations if field in OF_VALIDATIONS else facts.course.steps
    values = [y for _, y in points(records, field)] if field else []
    return sparkline(values, room, plain=plain) if sum(value is not None for value in values) > 1 else ""
