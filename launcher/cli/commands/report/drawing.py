"""Draw a report's charts with matplotlib, as SVG for the page."""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Sequence
from html import escape
from itertools import compress
from math import isnan, nan
from typing import Any, Literal

from launcher.cli.commands.report.charts import KINDS, Chart, RankChart, axis_number, short
from launcher.cli.text.columns import duration

# Before the import, which may log font searches and unwritable directories to stderr.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
import matplotlib as mpl  # noqa: E402
from matplotlib.artist import Artist  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402
from matplotlib.patches import Patch  # noqa: E402
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, MultipleLocator, NullFormatter  # noqa: E402

DPI = 100
LegendPlace = Literal["outside lower left", "center left"]
WIDTH, RANKS_WIDTH = 3.8, 12.0  # inches
CHART_HEIGHT, LEGEND_ROW = 2.3, 0.2  # inches
MAX_TIPS = 12  # lines of a tooltip
PAPER, TEXT, FAINT, GRID = "#ffffff", "#1b1f24", "#5f6873", "#e8ebef"
# The palette of Okabe and Ito, which colour-blind readers can distinguish.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", TEXT)
# With 7 colours and 5 dash patterns, 35 series have distinct combinations.
DASHES = ("-", (0, (6, 2)), (0, (1.5, 2)), (0, (7, 2, 1.5, 2)), (0, (12, 3)))
# The fill of each kind of bar: a colour, and a hatch for print and colour-blind readers.
FILLS = {
    "imports": ("#c9ced6", "...."), "starting": ("#a3abb7", ""), "well": (COLOURS[2], ""), "running": (COLOURS[0], "///"),
    "culprit": (COLOURS[1], "xxxx"), "consequence": ("#f3cd7e", "\\\\\\\\"), "hung": (COLOURS[3], "||||"),
    "ended": ("#8b94a1", "----"),
}  # fmt: skip
# The marker and the name of each kind of mark.
SIGNS = {
    "validation": ("v", "validation"), "saved": ("s", "model or checkpoint saved"), "slow": ("^", "slower than the others"),
    "hung": ("P", "no progress"), "failure": ("X", "failure"), "stopping": ("D", "all ranks are stopped"),
    "restart": ("*", "restart"), "paused": ("H", "paused"), "continued": (">", "continued"),
}  # fmt: skip
# Tick distances of a time axis.
TIME_STEPS_S = (
    0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400,
)  # fmt: skip
NICE = (1, 2, 5, 10)  # times powers of ten: tick distances of other axes
STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "tlaunch", "text.parse_math": False, "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "sans-serif"], "font.size": 9,
    "text.color": TEXT, "axes.edgecolor": FAINT, "axes.labelcolor": FAINT, "xtick.color": FAINT, "ytick.color": FAINT,
    "axes.spines.left": False, "axes.spines.right": False, "axes.spines.top": False, "axes.axisbelow": True,
    "axes.titlelocation": "left", "axes.titlesize": 10.5, "axes.titleweight": "bold", "axes.titlecolor": TEXT,
    "axes.facecolor": "none", "figure.facecolor": PAPER, "grid.color": GRID, "ytick.left": False, "hatch.linewidth": 0.6,
    "legend.frameon": False, "legend.labelcolor": FAINT, "path.simplify": True, "lines.solid_capstyle": "round",
    "figure.constrained_layout.w_pad": 0.2, "figure.constrained_layout.h_pad": 0.1,
}  # fmt: skip
# Colours that have light and dark variants on the page.
VARIABLES = {
    **{colour: kind for kind, (colour, _) in FILLS.items()}, **{colour: f"s{n}" for n, colour in enumerate(COLOURS[:6])},
    PAPER: "card", TEXT: "text", FAINT: "faint", GRID: "grid",
}  # fmt: skip


def to_svg(chart: Chart | RankChart) -> str:
    """Return a chart as an SVG element to embed in the page, in the page's colours and with tooltips.

    The timeline of ranks scrolls on a narrow screen, so its legend is a separate SVG below it, in the same `div`.
    """
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about missing glyphs
        mpl.rcdefaults()  # the report's style instead of matplotlibrc
        mpl.rcParams.update(STYLE)  # type: ignore[arg-type]
        figure = Figure((WIDTH, 1), DPI, layout="constrained")
        axes = figure.add_subplot()
        if isinstance(chart, Chart):
            height, legend, tips = _draw_lines(axes, chart)
            height += _add_legend(figure, legend, "outside lower left")
            return _svg(figure, (WIDTH, height), chart.title, tips)
        height, legend, tips = _draw_ranks(axes, chart)
        timeline = _svg(figure, (RANKS_WIDTH, height), "ranks over time", tips)
        below = Figure((WIDTH, 1), DPI)
        height = _add_legend(below, legend, "center left")
        legend_svg = _svg(below, (WIDTH, height), "legend of ranks over time", ()) if legend else ""
    return f'<div><div class="scroll">{timeline}</div><div class="legend">{legend_svg}</div></div>'


def _add_legend(figure: Figure, legend: Sequence[tuple[Artist, str]], place: LegendPlace) -> float:
    """Add a legend to a figure of width `WIDTH`, and return the legend's height in inches."""
    if not legend:
        return 0.0
    labels = [f" {label}" for _, label in legend]  # matplotlib hides labels that begin with an underscore
    columns = max(1, min(len(labels), int(WIDTH / (max(map(len, labels)) / 13 + 0.6))))
    figure.legend([handle for handle, _ in legend], labels, loc=place, ncols=columns)
    return LEGEND_ROW * -(-len(labels) // columns)


def _svg(figure: Figure, size: tuple[float, float], title: str, tips: Sequence[str]) -> str:
    figure.set_size_inches(*size)
    file = io.StringIO()
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(file, format="svg", transparent=True, metadata=metadata)
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    for colour, name in VARIABLES.items():
        svg = svg.replace(f": {colour}", f": var(--{name})")
    # Remove ids, which would repeat in each chart. Referenced ids are hashes of their contents, and stay.
    svg = re.sub(r' id="[a-zA-Z.]+(2d)?_\d+"', "", svg)
    for number, tip in enumerate(tips):
        svg = svg.replace(f'<g id="tip-{number}">', f"<g><title>{escape(tip)}</title>")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(title)}" ', 1)


# Height in inches without the legend, the legend's handles and names, and tooltips.
Drawn = tuple[float, list[tuple[Artist, str]], list[str]]


def _draw_lines(axes: Axes, chart: Chart) -> Drawn:
    shown = [series for series in chart.series if series.values]
    legend: list[tuple[Artist, str]] = []
    tips: list[str] = []
    axes.set_title(chart.title)
    axes.set_xlabel(chart.unit)
    axes.grid(axis="y")
    if chart.is_log:
        axes.set_yscale("log")
        is_wide = max(max(each.values) for each in shown) > 50 * min(min(each.values) for each in shown)
        axes.yaxis.set_major_locator(LogLocator(subs=(1,) if is_wide else (1, 2, 5), numticks=7))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=NICE))
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=NICE, integer=True, min_n_ticks=1))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: axis_number(value)))
    for series in shown:
        look: dict[str, Any] = {"color": COLOURS[series.style % 7], "linestyle": DASHES[series.style % 5]}
        look |= {"marker": "o", "markersize": 4.5, "markerfacecolor": PAPER} if series.rings else {}
        steps = [float(x) for x, _ in series.points]
        values = [nan if y is None else y / chart.divisor for _, y in series.points]
        axes.plot(steps, values, gid=f"tip-{len(tips)}", linewidth=1.6, **look)
        seen = [value / chart.divisor for value in series.values]
        first, last, low, high = map(axis_number, (seen[0], seen[-1], min(seen), max(seen)))
        tips.append(f"{series.label}: {len(seen):,} values, first {first}, last {last}, from {low} to {high}")
        around = zip([nan, *values], values, [*values[1:], nan], strict=False)
        if any(lonely := [isnan(before) and isnan(after) for before, _, after in around]):
            axes.plot(list(compress(steps, lonely)), list(compress(values, lonely)), ".", color=look["color"])
        legend.append((Line2D([], [], **look), series.label))
    look = {"color": TEXT, "alpha": 0.6, "linestyle": ":", "linewidth": 1.2}
    for step, text in chart.restarts:
        if axes.dataLim.x0 <= step <= axes.dataLim.x1:
            axes.axvline(step, gid=f"tip-{len(tips)}", **look)
            tips.append(text)
    if chart.restarts:
        legend.append((Line2D([], [], **look), "restart"))
    if chart.from_zero:
        axes.set_ylim(min(0.0, axes.dataLim.y0), None)
    return CHART_HEIGHT, legend if len(legend) > 1 else [], tips


def _draw_ranks(axes: Axes, chart: RankChart) -> Drawn:
    """Draw a row for each rank or group of ranks. Marks that concern all ranks are drawn above the rows."""
    tips: list[str] = []
    handles: dict[str, Artist] = {}
    look: dict[str, Any]
    lanes = [kind for kind in SIGNS if any(mark.kind == kind for mark in chart.marks)]
    row_height, font_size = (0.24, 9) if len(chart.rows) <= 24 else (0.15, 7.5)
    seconds = max(chart.seconds, 0.001)
    axes.set_xlim(0, seconds)
    axes.set_ylim(len(chart.rows) - 0.5, -len(lanes) - 0.5)
    axes.set_xlabel("time since the start")
    step_s = next((step for step in TIME_STEPS_S if step >= seconds / 9), 86400 * -(-seconds // (9 * 86400)))
    axes.xaxis.set_major_locator(MultipleLocator(step_s))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda at_s, _: f"{at_s:.3g} s" if at_s < 10 else duration(round(at_s)))
    )
    axes.grid(axis="x")
    labels = [*(SIGNS[kind][1] for kind in lanes), *(short(row.label) for row in chart.rows)]
    axes.set_yticks(range(-len(lanes), len(chart.rows)), labels, fontsize=font_size)
    for y, row in enumerate(chart.rows):
        for kind in dict.fromkeys(bar.kind for bar in row.bars):
            bars = [bar for bar in row.bars if bar.kind == kind]
            spans = [(bar.start_s, max(bar.end_s - bar.start_s, seconds / (RANKS_WIDTH * DPI))) for bar in bars]
            look = {"facecolor": FILLS[kind][0], "hatch": FILLS[kind][1], "edgecolor": PAPER, "linewidth": 0.5}
            axes.broken_barh(spans, (y - 0.41, 0.82), gid=f"tip-{len(tips)}", **look)
            tips.append(_listed([f"{row.label}:", *(bar.text for bar in bars)], 0))
            handles[kind] = Patch(**look)
    for y, marks in [*enumerate(row.marks for row in chart.rows), (-len(lanes), chart.marks)]:
        for kind in dict.fromkeys(kind for kind in SIGNS for mark in marks if mark.kind == kind):
            found = [mark for mark in marks if mark.kind == kind]
            moments = [min(seconds, chart.second(mark.time_ns)) for mark in found]
            look = {"color": TEXT, "markeredgecolor": PAPER, "markeredgewidth": 0.6, "marker": SIGNS[kind][0]}
            look |= {"linestyle": "none", "markersize": 8, "clip_on": False, "zorder": 3}
            lane = y + lanes.index(kind) if y < 0 else y
            axes.plot(moments, [lane] * len(found), gid=f"tip-{len(tips)}", **look)
            texts = [f"{duration(moment)}: {mark.text or kind}" for moment, mark in zip(moments, found, strict=True)]
            tips.append(_listed(texts, sum(mark.count - 1 for mark in found)))
            if y >= 0:
                handles[kind] = Line2D([], [], **look)
            for moment in moments if kind == "restart" else []:
                axes.axvline(moment, color=TEXT, alpha=0.5, linestyle=":", linewidth=1)
    names = {**KINDS, **{kind: name for kind, (_, name) in SIGNS.items()}}
    legend = [(handles[kind], name) for kind, name in names.items() if kind in handles]
    return 0.75 + row_height * len(labels), legend, tips


def _listed(texts: Sequence[str], more: int) -> str:
    """Return at most `MAX_TIPS` texts on separate lines, followed by the number of omitted texts."""
    more += len(texts[MAX_TIPS:])
    return "\n".join([*map(short, texts[:MAX_TIPS]), *([f"and {more:,} more"] if more else [])])
