"""Line charts as SVG text. Data in, text out: nothing is read, and colours are left to the page's style.

Every line is a `g` with what it shows as data, so that a test can hold it against metrics.jsonl: data-series, data-run,
data-count (values), data-gaps (steps without one), data-first, data-last, data-min, data-max.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator
from itertools import chain

from launcher.cli.commands.report.scales import (
    MAX_POINTS,
    Axis,
    Point,
    flattened,
    label,
    linear_axis,
    log_axis,
    thinned,
    whole_axis,
)
from launcher.core.frozen import frozen
from launcher.logs.terminal import one_line, without_colours

WIDTH, HEIGHT = 560, 250  # in units of the picture, which the page scales
LEFT, RIGHT, TOP, BOTTOM = 58, 28, 26, 38  # around the plot
X_TICKS, Y_TICKS = 6, 4
MAX_LABEL = 60  # characters
HOVER_COLUMNS = 140  # places of a chart that say their values when pointed at
MIN_OF_LINE = 8  # points, however many attempts share a series
STYLES = 7  # colours of the page, s0 to s6; each has its own pattern of dashes, too


@frozen
class Series:
    """What belongs together: one quantity of one run."""

    name: str  # "loss"
    label: str  # for people: "training", or the run's name where there are several
    lines: tuple[tuple[Point, ...], ...]  # one per attempt, ascending by x but for programs that count as they like
    run: str = ""
    style: int = 0  # which colour and dashes
    dotted: bool = False  # a ring at each point, as for values that come rarely

    @property
    def values(self) -> list[float]:
        return [y for line in self.lines for _, y in line if y is not None]

    @property
    def points(self) -> int:
        """How many there are, gaps included; not all of them may be drawn."""
        return sum(map(len, self.lines))

    def drawn(self) -> list[list[Point]]:
        """About `MAX_POINTS`, and a few of each attempt however many there are."""
        total = self.points
        return [thinned(line, max(MIN_OF_LINE, MAX_POINTS * len(line) // max(1, total))) for line in self.lines]


@frozen
class Chart:
    title: str  # with its unit: "memory (GiB)"
    series: tuple[Series, ...]
    divisor: float = 1.0  # from values to what the axis says: 2**30 for GiB
    from_zero: bool = False
    may_be_log: bool = False  # where a linear axis would hide most of it
    restarts: tuple[tuple[float, str], ...] = ()  # where a new attempt began, and what to say of it


def line_chart(chart: Chart) -> str:
    """One `svg` element, or one that says that there is nothing to draw."""
    lines = [(series, series.drawn()) for series in chart.series if series.values]
    if not lines:
        return _whole(chart.title, [f'<text class="none" x="{WIDTH / 2}" y="{HEIGHT / 2}">no values</text>'])
    frame = _frame(chart)
    title = f"{chart.title}, log scale" if frame.y.is_log else chart.title
    body = chain(
        frame.grid(),
        (_restart(x, text, frame) for x, text in chart.restarts),
        (_line(series, drawn, frame) for series, drawn in lines),
        _hover(lines, frame),
    )
    return _whole(title, body)


def swatch(style: int, *, dotted: bool = False) -> str:
    """A bit of a series' line, for legends."""
    ring = '<circle class="ring" cx="14" cy="5" r="3"/>' if dotted else ""
    return (
        f'<svg class="swatch" viewBox="0 0 28 10" aria-hidden="true">{_group(style)}<path d="M1 5H27"/>{ring}</g></svg>'
    )


def escaped_for_html(text: str) -> str:
    """As text and as an attribute of HTML: on one line, without anything that acts."""
    return html.escape(without_colours(one_line(text)))


@frozen
class _Frame:
    x: Axis
    y: Axis
    divisor: float

    def left(self, x: float) -> float:
        return LEFT + self.x.share(x) * (WIDTH - LEFT - RIGHT)

    def top(self, y: float) -> float:
        """Of a value as the data have it."""
        return self._height(y / self.divisor)

    def _height(self, shown: float) -> float:
        return HEIGHT - BOTTOM - self.y.share(shown) * (HEIGHT - TOP - BOTTOM)

    def grid(self) -> Iterator[str]:
        right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
        for value, text in self.y.ticks:
            top = self._height(value)
            yield f'<path class="grid" d="M{LEFT} {top:.1f}H{right}"/>'
            yield f'<text class="y" x="{LEFT - 8}" y="{top + 4:.1f}">{escaped_for_html(text)}</text>'
        for value, text in self.x.ticks:
            left = self.left(value)
            yield f'<path class="tick" d="M{left:.1f} {bottom}v4"/>'
            yield f'<text class="x" x="{left:.1f}" y="{bottom + 17}">{escaped_for_html(text)}</text>'
        yield f'<path class="axis" d="M{LEFT} {bottom}H{right}"/>'
        yield f'<text class="x" x="{(LEFT + right) / 2:.1f}" y="{HEIGHT - 4}">step</text>'


def _frame(chart: Chart) -> _Frame:
    values = [value / chart.divisor for series in chart.series for value in series.values]
    # Steps before the first value and after the last one count as well: a gap is to be seen.
    steps = [x for series in chart.series for line in series.lines for x, _ in line]
    x_axis = whole_axis(min(steps), max(steps), X_TICKS)
    if chart.may_be_log and flattened(values):
        return _Frame(x_axis, log_axis(min(values), max(values)), chart.divisor)
    low, high = min(values), max(values)
    if chart.from_zero:
        low, high = min(0.0, low), max(0.0, high)
    return _Frame(x_axis, linear_axis(low, high, Y_TICKS), chart.divisor)


def _whole(title: str, body: Iterable[str]) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escaped_for_html(title)}">'
        f'<text class="title" x="0" y="13">{escaped_for_html(title)}</text>{"".join(body)}</svg>'
    )


def _group(style: int, classes: str = "", attributes: str = "") -> str:
    """Colours and dashes go round in different circles: thirty-five series differ in one of them."""
    return f'<g class="series s{style % STYLES} d{style % 5}{classes}"{attributes}>'


def _line(series: Series, drawn: list[list[Point]], frame: _Frame) -> str:
    values = series.values
    facts = {
        "series": series.name, "run": series.run, "count": len(values),
        "gaps": sum(map(len, series.lines)) - len(values),
        "first": values[0], "last": values[-1], "min": min(values), "max": max(values),
    }  # fmt: skip
    attributes = "".join(f' data-{name}="{escaped_for_html(str(value))}"' for name, value in facts.items())
    title = (
        f"{short_label(series.label)}: {len(values):,} values, first {_said(values[0], frame)}, "
        f"last {_said(values[-1], frame)}, from {_said(min(values), frame)} to {_said(max(values), frame)}"
    )
    begin = _group(series.style, " dotted" if series.dotted else "", attributes)
    last = len(drawn) - 1
    paths = "".join(_path(line, frame, former=number < last, rings=series.dotted) for number, line in enumerate(drawn))
    return f"{begin}<title>{escaped_for_html(title)}</title>{paths}</g>"


def _path(points: list[Point], frame: _Frame, *, former: bool, rings: bool) -> str:
    """A line that stops at gaps; a value between two gaps is a dot."""
    places = [None if y is None else (frame.left(x), frame.top(y)) for x, y in points]
    steps: list[str] = []
    circles: list[str] = []
    for before, place, after in zip([None, *places], places, [*places[1:], None], strict=False):
        if place is None:
            continue
        is_dot = before is None and after is None
        if not is_dot:
            steps.append(f"{'M' if before is None else 'L'}{place[0]:.1f} {place[1]:.1f}")
        if is_dot or rings:
            kind = "ring" if rings else "dot"
            circles.append(f'<circle class="{kind}" cx="{place[0]:.1f}" cy="{place[1]:.1f}" r="3"/>')
    name = ' class="former"' if former else ""
    return (f'<path{name} d="{"".join(steps)}"/>' if steps else "") + "".join(circles)


def _restart(x: float, text: str, frame: _Frame) -> str:
    if not frame.x.low <= x <= frame.x.high:
        return ""
    left = frame.left(x)
    return (
        f'<g class="restart"><title>{escaped_for_html(text)}</title>'
        f'<path d="M{left:.1f} {TOP}V{HEIGHT - BOTTOM}"/><path class="wide" d="M{left:.1f} {TOP}V{HEIGHT - BOTTOM}"/></g>'
    )


def _hover(lines: list[tuple[Series, list[list[Point]]]], frame: _Frame) -> Iterator[str]:
    """Columns, not to be seen, that say what lies nearest to their middle: of an attempt that was repeated the last."""
    width = (WIDTH - LEFT - RIGHT) / HOVER_COLUMNS
    columns: dict[int, dict[int, tuple[float, float, float]]] = {}  # by column and series: distance, x, y
    for number, (_, drawn) in enumerate(lines):
        for x, y in chain.from_iterable(drawn):
            if y is not None:
                place = min(frame.x.share(x) * HOVER_COLUMNS, HOVER_COLUMNS - 0.5)
                distance = abs(place - int(place) - 0.5)
                found = columns.setdefault(int(place), {})
                if number not in found or distance <= found[number][0]:
                    found[number] = (distance, x, y)
    for column, found in sorted(columns.items()):
        words = [_told(lines[number][0], x, y, frame) for number, (_, x, y) in sorted(found.items())]
        yield (
            f'<rect class="hover" x="{LEFT + column * width:.1f}" y="{TOP}" width="{width:.1f}" '
            f'height="{HEIGHT - TOP - BOTTOM}"><title>{"&#10;".join(map(escaped_for_html, words))}</title></rect>'
        )


def _told(series: Series, x: float, y: float, frame: _Frame) -> str:
    return f"step {x:,.0f}: {short_label(series.label)} {_said(y, frame)}"


def _said(value: float, frame: _Frame) -> str:
    """With four digits or so."""
    shown = value / frame.divisor
    return label(shown, abs(shown) / 1000) if shown else "0"


def short_label(text: str) -> str:
    return text if len(text) <= MAX_LABEL else f"{text[: MAX_LABEL - 1]}…"
