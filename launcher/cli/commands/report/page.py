"""A report with charts: as one HTML file that needs neither network nor script, and as the blocks of a picture."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from launcher import __version__
from launcher.cli.commands.report.attempts import attempts_of
from launcher.cli.commands.report.charts import Chart, RankChart, charts_of, rank_chart, safe
from launcher.cli.commands.report.facts import RunFacts, mapping
from launcher.cli.commands.report.text import UNKNOWN, figures, notes, to_lines
from launcher.cli.run_options import DECIDED_BY_TLAUNCH
from launcher.cli.text.columns import aligned, counted, cut_off
from launcher.core.frozen import frozen
from launcher.core.resources import data_dir
from launcher.core.text import shell_word, shell_words
from launcher.logs.terminal import shortened


def to_html(runs: Sequence[RunFacts], to_svg: Callable[[Chart | RankChart], str]) -> str:
    """Return the page about one run, or about several side by side; everything in it is escaped.

    `to_svg` gives a chart as an SVG element.
    """
    environment = Environment(
        loader=FileSystemLoader(data_dir("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: safe(value) if type(value) is str else value,  # not Markup
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "about": lambda facts: [(name, shortened(safe(value))) for name, value in about(facts)],
        "attempts": attempts_of,
        "rank_chart": rank_chart,
        "quoted": shell_word,
        "svg": lambda chart: Markup(to_svg(chart)),  # noqa: S704 - it escapes what it is given
        "when": when,
    }
    return environment.get_template("report.html.j2").render(
        title=runs[0].name if len(runs) == 1 else f"{len(runs)} runs side by side",
        alone=len(runs) == 1,
        runs=runs,
        figures=figures(runs),
        differences=list(differences(runs)),
        charts=list(charts_of(runs)),
        notes=notes(runs),
        made=f"Made by tlaunch {__version__} on {_moment(max(facts.state.looked_ns for facts in runs))}.",
    )


def when(facts: RunFacts) -> str:
    """Return where the run was started, and from when to when it lasted."""
    started_ns = facts.state.started_ns
    start = ", ".join(filter(None, (facts.state.host, _moment(started_ns) if started_ns else "never started")))
    return start + (f" to {_moment(facts.ended_ns)}" if facts.ended_ns else "")


def _moment(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns // 10**9, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def differences(runs: Sequence[RunFacts]) -> Iterator[tuple[str, list[str]]]:
    """Yield the settings that are not the same in all runs, with a value for each run."""
    settings = [_settings(facts) for facts in runs]
    for name in dict.fromkeys(name for each in settings for name in each):
        unset = "not set" if name.startswith("$") else "default"
        values = [shortened(safe(each.get(name, unset))) for each in settings]
        if len(set(values)) > 1:
            yield name, values


def _settings(facts: RunFacts) -> dict[str, str]:
    """Return what was chosen for the run: layout, rules, the command with each `--set KEY=VALUE` apart, variables."""
    record = facts.record
    chosen = {"ranks": str(facts.state.progress.rank_count)}
    chosen |= {f"layout.{name}": str(value) for name, value in mapping(record.get("layout")).items()}
    chosen |= {f"supervision.{name}": json.dumps(value) for name, value in mapping(record.get("supervision")).items()}
    chosen["rank table"] = str(mapping(record.get("cluster")).get("source") or "none")
    chosen["working directory"] = str(record.get("cwd", ""))
    command, sets = [], {}
    words = iter(facts.command)
    for word in words:
        if word == "--set":
            name, _, value = next(words, "").partition("=")
            sets[name] = value
        else:
            command.append(word)
    variables = mapping(facts.first_rank.get("env")).items()
    return {**chosen, "command": shell_words(command), **sets} | {  # without variables that differ between any two runs
        f"${name}": str(value)
        for name, value in variables
        if value and not name.startswith("TLAUNCH_") and name not in DECIDED_BY_TLAUNCH
    }


def about(facts: RunFacts) -> Iterator[tuple[str, str]]:
    """Yield what was run: names and values."""
    record = facts.record
    yield "command", shell_words(facts.command) or UNKNOWN
    yield "working directory", str(record.get("cwd", UNKNOWN))
    cluster = mapping(record.get("cluster"))
    ranks, servers = str(facts.state.progress.rank_count), cluster.get("servers")
    ranks += f" on {counted(len(servers), 'server')}" if isinstance(servers, list) else ""
    yield "ranks", ranks + (f", from {cluster['source']}" if cluster.get("source") else "")
    for title, field in (("layout", "layout"), ("rules", "supervision")):
        if pairs := [f"{name}={value}" for name, value in mapping(record.get(field)).items() if value]:
            yield title, " ".join(pairs)
    yield from ((str(name), str(version)) for name, version in mapping(record.get("versions")).items())
    yield "run directory", str(facts.state.run_dir.root)


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
    head = [Text(runs[0].name if alone else f"{len(runs)} runs side by side", 16, bold=True)]
    head += [Text(when(runs[0]), faint=True)] if alone else []
    cells = [[name, *(cut_off(value, COLUMNS // len(runs)) for value in values)] for name, values in differences(runs)]
    yield [
        [
            *head,
            *(Text(line, mono=True) for line in (*to_lines(runs, COLUMNS), *aligned([""] * (len(runs) + 1), cells))),
        ]
    ]
    charts = list(charts_of(runs))
    remarks = [Text(f"{chart.title}: {chart.note}", faint=True) for chart in charts if chart.note]
    yield [[Text("Training", 13, bold=True), *remarks]]
    for first in range(0, len(charts), 2):
        yield [*charts[first : first + 2]]
    for facts in runs:
        chart = rank_chart(facts)
        if chart.rows:
            yield [[Text("Ranks over time" if alone else f"Ranks over time of {facts.name}", 13, bold=True)]]
            yield [chart]
        texts = []
        for attempt in attempts_of(facts)[-MAX_ATTEMPTS:]:
            texts.append(Text(f"Attempt {attempt.number}: {attempt.cause} after {attempt.took}", 11, bold=True))
            texts += [Text(text) for text in (attempt.devices, attempt.verdict, attempt.confidence) if text]
            texts += [Text(line, mono=True) for line in attempt.last_lines]
            texts += [Text(f"Only followed: {attempt.consequences}", faint=True)] if attempt.consequences else []
        if texts and facts.state.not_restarting:
            texts.append(Text(f"Not restarted again: {facts.state.not_restarting}", faint=True))
        if texts:
            yield [texts]
