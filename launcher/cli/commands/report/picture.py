"""The contents of a report's picture: texts, and the same charts as in the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from launcher.cli.commands.report.attempts import attempts_of
from launcher.cli.commands.report.charts import Chart, charts_of
from launcher.cli.commands.report.facts import RunFacts
from launcher.cli.commands.report.page import differences, when
from launcher.cli.commands.report.rank_rows import RankChart, rank_chart
from launcher.cli.commands.report.text import SAID, figures, notes
from launcher.cli.text.columns import aligned, cut_off
from launcher.core.frozen import frozen

COLUMNS = 110  # characters of the figures of all runs
MAX_ATTEMPTS = 10  # of each run, the last ones


@frozen
class Text:
    """A paragraph, which is wrapped to the width of the picture."""

    text: str
    size: float = 9.5  # points
    bold: bool = False
    mono: bool = False
    faint: bool = False


Block = Chart | RankChart | list[Text]


def rows_of(runs: Sequence[RunFacts]) -> Iterator[list[Block]]:
    """Yield what stands below each other in the picture; the blocks of a row stand beside each other."""
    alone = len(runs) == 1
    column = COLUMNS // len(runs)
    known = [(name, values) for name, values in figures(runs).items() if not (alone and name in SAID)]
    rows = [[name, *(cut_off(value, column) for value in values)] for name, values in (*known, *differences(runs))]
    table = aligned(["", *("" if alone else cut_off(facts.name, column) for facts in runs)], rows)
    head = [Text(runs[0].name if alone else f"{len(runs)} runs side by side", 16, bold=True)]
    head += [Text(runs[0].sentence, 11), Text(when(runs[0]), faint=True)] if alone else []
    yield [[*head, *(Text(line, mono=True) for line in table)]]
    charts = list(charts_of(runs))
    remarks = [*notes(runs), *(f"{chart.title}: {chart.note}" for chart in charts if chart.note)]
    yield [[Text("Training", 13, bold=True), *(Text(note, faint=True) for note in remarks)]]
    for first in range(0, len(charts), 2):
        yield [*charts[first : first + 2]]
    for facts in runs:
        chart = rank_chart(facts)
        if chart.rows:
            yield [[Text("Ranks over time" if alone else f"Ranks over time of {facts.name}", 13, bold=True)]]
            yield [chart]
        if texts := list(_attempts(facts)):
            yield [texts]


def _attempts(facts: RunFacts) -> Iterator[Text]:
    attempts = list(attempts_of(facts))
    if len(attempts) == 1 and not attempts[0].verdict:
        return
    for attempt in attempts[-MAX_ATTEMPTS:]:
        yield Text(f"Attempt {attempt.number}: {attempt.cause} after {attempt.took}", 11, bold=True)
        yield from (Text(text) for text in (attempt.verdict, attempt.confidence) if text)
        yield from (Text(line, mono=True) for line in attempt.last_lines)
        if attempt.consequences:
            yield Text(f"Only followed: {attempt.consequences}", faint=True)
    if facts.not_restarting:
        yield Text(f"Not restarted again: {facts.not_restarting}", faint=True)
