"""The report as one HTML file that needs nothing else: no network, no script. Everything in it is escaped."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from launcher import __version__
from launcher.cli.commands.report import figures, rank_chart
from launcher.cli.commands.report.attempts import attempts_of
from launcher.cli.commands.report.charts import Chart, Series, line_chart, short_label, swatch
from launcher.cli.commands.report.figures import Facts
from launcher.cli.commands.report.rank_rows import rows_of, run_marks
from launcher.cli.commands.report.scales import Point
from launcher.cli.commands.report.words import FIGURES, NOTHING, called, may_be_told_how, missing, not_understood
from launcher.cli.text.columns import UNITS, counted
from launcher.core.frozen import frozen
from launcher.core.resources import data_dir
from launcher.logs.terminal import printable, shortened, without_colours
from launcher.runs.metrics import Metrics
from launcher.runs.progress import State

TEMPLATE = "report.html.j2"
# Nothing may be loaded and nothing run, whatever a log, a name or a command holds.
POLICY = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
# Of the supervision, as run.json has it: in words, and the unit.
RULES = {
    "grace_s": ("grace", " s"),
    "max_restarts": ("restarts at most", ""),
    "hang_timeout_s": ("hang timeout", " s"),
    "forward_signals": ("handed to ranks:", ""),
}


@frozen
class Quantity:
    """What one chart shows."""

    name: str  # of the series
    title: str
    lines_of: Callable[[Metrics], list[tuple[Point, ...]]]
    from_zero: bool = False
    in_bytes: bool = False


QUANTITIES = (
    Quantity("loss", "loss", figures.losses),
    Quantity("learning_rate", "learning rate", figures.learning_rates, from_zero=True),
    Quantity("tokens_per_s", "tokens/s", figures.speeds, from_zero=True),
    Quantity("memory_bytes", "memory of one rank", figures.memories, from_zero=True, in_bytes=True),
)


@frozen
class Drawn:
    """One chart with what stands below it."""

    svg: Markup
    legend: tuple[tuple[Markup, str], ...]
    note: str


def render(runs: Sequence[Facts]) -> str:
    """The page about one run, or about several side by side."""
    environment = Environment(
        loader=FileSystemLoader(data_dir("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    alone = len(runs) == 1
    page = environment.get_template(TEMPLATE).render(
        policy=Markup(POLICY),  # noqa: S704 - a constant
        title=runs[0].name if alone else f"{len(runs)} runs",
        runs=[_run(facts, number) for number, facts in enumerate(runs)],
        compared=_compared(runs),
        charts=list(_charts(runs)),
        differences=_differences(runs),
        restarted=any(figures.restarts(facts.metrics) for facts in runs),
        without_metrics=[missing(facts, alone=alone) for facts in runs if not facts.metrics.steps],
        told_how=may_be_told_how(runs),
        not_understood=list(filter(None, (not_understood(facts, alone=alone) for facts in runs))),
        version=__version__,
        made=_moment(max(facts.state.looked_ns for facts in runs)),
    )
    return page.encode(errors="backslashreplace").decode()  # halves of surrogate pairs are no text


def _shown(value: Any) -> Any:
    """Every text of the page: colours and other sequences of terminals are left out, line by line."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return "\n".join(without_colours(printable(line)) for line in value.split("\n"))


def _run(facts: Facts, number: int) -> dict[str, Any]:
    times = facts.times
    until_ns = facts.ended_ns or times.ended_ns or facts.state.looked_ns
    rows, marks = rows_of(times, until_ns), run_marks(times)
    told = [(name, tell(facts)) for name, tell in FIGURES[2:]]
    seconds = max(0.0, (until_ns - times.started_ns) / 1e9)
    return {
        "name": facts.name,
        "number": number,
        "state": facts.state.state.value,
        "sentence": figures.sentence(facts.state),
        "when": _when(facts),
        "tiles": [_tile(called(name, [facts]), words) for name, words in told if words != NOTHING],
        "swatch": _markup(swatch(number)),
        "ranks": _markup(rank_chart.rank_chart(rows, marks, seconds)) if rows else None,
        "bars": [(_markup(rank_chart.bar_swatch(kind)), words) for kind, words in rank_chart.bar_kinds(rows)],
        "signs": [(_markup(rank_chart.sign_swatch(kind)), words) for kind, words in rank_chart.sign_kinds(rows, marks)],
        "attempts": list(attempts_of(facts)),
        "not_restarting": figures.not_restarting(facts.state),
        "about": [(name, shortened(_shown(value))) for name, value in _about(facts)],
        "failed": facts.state.state in {State.FAILED, State.HUNG, State.LOST},
        "why": f"tlaunch why {shlex.quote(facts.name)}",
    }


def _tile(name: str, words: str) -> tuple[str, str, str]:
    """The figure, and what is said of it in small letters."""
    figure, _, more = words.partition("; ")
    figure, at, place = figure.partition(" at ")
    return name, figure, "; ".join(filter(None, (f"at {place}" if at else "", more)))


def _when(facts: Facts) -> str:
    started_ns, ended_ns = facts.state.started_ns, facts.ended_ns
    words = [facts.state.host or "", _moment(started_ns) if started_ns else "never started"]
    return ", ".join(word for word in words if word) + (f" to {_moment(ended_ns)}" if ended_ns else "")


def _moment(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns // 10**9, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _about(facts: Facts) -> Iterator[tuple[str, str]]:
    """What was run: names and values."""
    record, layout = facts.record, facts.record.get("layout")
    yield "command", shlex.join(figures.arguments(facts)) or "-"
    yield "working directory", str(record.get("cwd", "-"))
    if isinstance(layout, dict):
        yield "layout", " ".join(f"{name}={value}" for name, value in layout.items())
    yield "ranks", _places(facts)
    rules = record.get("supervision")
    if isinstance(rules, dict):
        yield "rules", ", ".join(_rule(name, value) for name, value in rules.items() if name in RULES and value)
        if preloaded := rules.get("preload"):
            yield "preloaded", _plain(preloaded)
    yield from figures.versions(facts).items()
    yield "run directory", str(facts.state.run_dir.root)


def _rule(name: str, value: Any) -> str:
    words, unit = RULES[name]
    if name == "forward_signals" and isinstance(value, list):
        return f"{words} {' '.join(_signal(number) for number in value)}"
    if isinstance(value, float):
        value = f"{value:g}"  # of whole numbers all digits are told: they may be more than a float has
    return f"{words} {value}{unit}"


def _signal(number: Any) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _plain(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _places(facts: Facts) -> str:
    cluster = facts.record.get("cluster")
    servers = cluster.get("servers") if isinstance(cluster, dict) else None
    source = cluster.get("source") if isinstance(cluster, dict) else None
    words = str(facts.state.progress.rank_count)
    words += f" on {counted(len(servers), 'server')}" if isinstance(servers, list) else ""
    return f"{words}, from {source}" if source else words


def _differences(runs: Sequence[Facts]) -> list[tuple[str, list[str]]]:
    """Settings that are not the same in all runs, one value per run."""
    if len(runs) < 2:
        return []
    each = [figures.settings(facts) for facts in runs]
    names = list(dict.fromkeys(name for settings in each for name in settings))
    rows = [(name, [settings.get(name, _unsaid(name)) for settings in each]) for name in names]
    return [(name, [shortened(_shown(value)) for value in values]) for name, values in rows if len(set(values)) > 1]


def _unsaid(name: str) -> str:
    """Of a setting that a run did not choose: a variable of the environment has no default."""
    return "not set" if name.startswith("$") else "default"


def _compared(runs: Sequence[Facts]) -> list[tuple[str, list[str]]]:
    """Each figure that is known of any run, one value per run."""
    rows = [(called(name, runs), [tell(facts) for facts in runs]) for name, tell in FIGURES]
    return [(name, values) for name, values in rows if set(values) != {NOTHING}]


def _charts(runs: Sequence[Facts]) -> Iterator[Drawn]:
    for quantity in QUANTITIES:
        series = [made for number, facts in enumerate(runs) for made in _series(quantity, facts, number, len(runs))]
        if any(each.values for each in series):
            yield _drawn(quantity, series, runs)


def _series(quantity: Quantity, facts: Facts, number: int, count: int) -> Iterator[Series]:
    alone = count == 1
    lines = tuple(quantity.lines_of(facts.metrics))
    name = "training" if quantity.name == "loss" else quantity.title
    yield Series(quantity.name, name if alone else facts.name, lines, facts.name, number)
    if quantity.name == "loss" and (found := tuple(figures.validations(facts.metrics))):
        name = "validation" if alone else f"{facts.name}, validation"
        yield Series("validation_loss", name, found, facts.name, 1 if alone else number, dotted=True)


def _drawn(quantity: Quantity, series: list[Series], runs: Sequence[Facts]) -> Drawn:
    power = _power(series) if quantity.in_bytes else 0
    chart = Chart(
        title=f"{quantity.title} ({UNITS[power]})" if quantity.in_bytes else quantity.title,
        series=tuple(series),
        divisor=1024.0**power,
        from_zero=quantity.from_zero,
        may_be_log=quantity.name == "loss",
        restarts=tuple(again for facts in runs for again in _restarts(facts, alone=len(runs) == 1)),
    )
    shown = [each for each in series if each.values]
    legend = [(_markup(swatch(each.style, dotted=each.dotted)), short_label(each.label)) for each in shown]
    return Drawn(_markup(line_chart(chart)), tuple(legend) if len(shown) > 1 else (), _note(series))


def _restarts(facts: Facts, *, alone: bool) -> Iterator[tuple[float, str]]:
    for step, text in figures.restarts(facts.metrics):
        yield step, text if alone else f"{facts.name}: {text}"


def _power(series: list[Series]) -> int:
    """Of 1024, so that the largest value is a number that people read."""
    largest = max(value for each in series for value in each.values)
    return next((power for power in reversed(range(len(UNITS))) if largest >= 1024**power), 0)


def _note(series: list[Series]) -> str:
    """What is not to be seen as it is."""
    notes = []
    points, drawn = sum(each.points for each in series), sum(len(line) for each in series for line in each.drawn())
    if drawn < points:
        notes.append(f"Of {points:,} points {drawn:,} are drawn: the lowest and the highest of each part of a line.")
    gaps = [(each, count) for each in series if (count := each.points - len(each.values))]
    whose = len(series) > 1
    if told := [counted(count, "point") + (f" of {short_label(each.label)}" if whose else "") for each, count in gaps]:
        notes.append(f"{' and '.join(told)} without a finite value: the line stops there.")
    return " ".join(notes)


def _markup(text: str) -> Markup:
    """Of charts, which escape what they are given."""
    return Markup(text)  # noqa: S704
