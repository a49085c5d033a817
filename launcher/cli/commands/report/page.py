"""A report with charts as one HTML file, without scripts or external files."""

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
from launcher.cli.commands.report.report_text import UNKNOWN, figures, notes
from launcher.cli.run_options import DECIDED_BY_TLAUNCH
from launcher.cli.text.columns import counted
from launcher.core.resources import data_dir
from launcher.core.text import shell_word, shell_words
from launcher.logs.terminal import shortened


def to_html(runs: Sequence[RunFacts], to_svg: Callable[[Chart | RankChart], str]) -> str:
    """Return a page about one run, or about several side by side. All content is escaped.

    `to_svg` returns a chart as an SVG element.
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
        "svg": lambda chart: Markup(to_svg(chart)),  # noqa: S704 - to_svg escapes its texts
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
    started_ns = facts.state.started_ns
    start = ", ".join(filter(None, (facts.state.host, _moment(started_ns) if started_ns else "never started")))
    return start + (f" to {_moment(facts.ended_ns)}" if facts.ended_ns else "")


def _moment(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns // 10**9, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def differences(runs: Sequence[RunFacts]) -> Iterator[tuple[str, list[str]]]:
    """Yield the settings that differ between runs, with a value for each run."""
    settings = [_settings(facts) for facts in runs]
    for name in dict.fromkeys(name for each in settings for name in each):
        unset = "not set" if name.startswith("$") else "default"
        values = [shortened(safe(each.get(name, unset))) for each in settings]
        if len(set(values)) > 1:
            yield name, values


def _settings(facts: RunFacts) -> dict[str, str]:
    """Return the run's settings: layout, rules, the command with each `--set KEY=VALUE` separate, variables."""
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
    return {**chosen, "command": shell_words(command), **sets} | {  # except variables that differ between any two runs
        f"${name}": str(value)
        for name, value in variables
        if value and not name.startswith("TLAUNCH_") and name not in DECIDED_BY_TLAUNCH
    }


def about(facts: RunFacts) -> Iterator[tuple[str, str]]:
    """Yield names and values that describe the run, such as its command and ranks."""
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
