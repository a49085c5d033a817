"""A strategy report as a drawing: a box for each operator, filled by how its output lies, below what it takes from.

The SVG needs no other file; its text can be selected and searched, and what is pointed at says all that is known of it.
Colour never stands alone: each box says its strategy and its output's parts. The same report always gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import TypeVar

from launcher.cli.commands.plan.arrangement import Arrangement, Sizes, Spot, arrange
from launcher.cli.text.columns import cut_off, size
from launcher.core.frozen import frozen
from launcher.core.text import printable, ranges
from launcher.mesh.coordinates import AXES
from launcher.sharding.report import ReportCollective, ReportOperator, ReportTensor, StrategyReport
from launcher.sharding.strategy import written

CHAR_WIDTH, LINE = 6.7, 14.0  # of the font below
MAX_CHARS, PADDING = 52, 8.0
BOX_LINES = 4
BOX_HEIGHT = BOX_LINES * LINE + 10
ROW_HEIGHT = BOX_HEIGHT + 34
MARGIN, LEGEND_ROW, STUB = 24.0, 20.0, 14.0
WHOLE = "#eeeeee"
FILLS = (
    "#cfe3f7", "#ffdfba", "#cdebc5", "#f9cfd6", "#ddd0f0", "#f3ecae", "#c5ebe6", "#f3d1ec", "#dccbb8", "#d5dbe3",
)  # fmt: skip
STYLE = (
    "text{font:11px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#1a1a1a}"
    ".name{font-weight:bold}.title{font-size:14px;font-weight:bold}.faint{fill:#555}"
    ".box{stroke:#555;stroke-width:1}.edge{fill:none;stroke:#888;stroke-width:1.2}"
    ".moved{stroke:#b3261e;stroke-width:1.6;stroke-dasharray:5 3}"
    ".step{fill:#b3261e}"
)

Link = tuple[Spot, Spot]
Key = TypeVar("Key")


@frozen
class _Box:
    lines: tuple[str, ...]  # name, kind and strategy, output, communication
    tooltip: str
    layout: str  # of its output, by which it is filled


@frozen
class _Graph:
    boxes: Mapping[str, _Box]  # by operator
    sources: Mapping[str, tuple[str, ...]]  # the operators that each takes from
    steps: Mapping[tuple[str, str], str]  # by source and target, the redistribution between them


def drawing_of(reports: Sequence[StrategyReport]) -> str:
    """Return the SVG of the operators of these ranks, which are of one run; each operator is drawn as the first of them has it."""
    graph = _graph(reports)
    chars = max((min(MAX_CHARS, len(line)) for box in graph.boxes.values() for line in box.lines), default=MAX_CHARS)
    sizes = Sizes(chars * CHAR_WIDTH + 2 * PADDING, gap=14.0, row_height=ROW_HEIGHT, column_gap=48.0)
    arranged = arrange(graph.sources, sizes)
    fills = _fills(graph)
    top = MARGIN + 2 * LEGEND_ROW + len(fills) * LEGEND_ROW
    canvas = _Canvas(graph, arranged, sizes, fills, top)
    width, height = canvas.extent()
    first = reports[0]
    who = f"rank {first.rank} of {first.ranks}" if len(reports) == 1 else f"all {first.ranks} ranks"
    title = printable(f"{first.recipe}, {first.layout}: {who}")
    width = max(width, 2 * MARGIN + CHAR_WIDTH * 1.3 * max(len(title), *map(len, fills), 40))
    body = [*_legend(title, fills), *canvas.edges(), *canvas.boxes()]
    size_of = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size_of} role="img">'
    paper = f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>", paper, *body, "</svg>\n"])


def _graph(reports: Sequence[StrategyReport]) -> _Graph:
    boxes: dict[str, _Box] = {}
    sources: dict[str, tuple[str, ...]] = {}
    steps: dict[tuple[str, str], str] = {}
    for report in reports:
        for operator in report.operators:
            if operator.name in boxes:
                continue
            taken = [edge for edge in report.edges if edge.target == operator.name]
            found = [one for one in report.collectives if one.operator == operator.name]
            # In a report that somebody has changed, an operator might come before what it takes from.
            sources[operator.name] = tuple(dict.fromkeys(edge.source for edge in taken if edge.source in boxes))
            data = [edge.source for edge in taken if edge.source not in boxes]
            boxes[operator.name] = _box(operator, data, found)
            steps.update({(edge.source, operator.name): ", ".join(edge.steps) for edge in taken if edge.steps})
    return _Graph(boxes, sources, steps)


def _box(operator: ReportOperator, data: Sequence[str], collectives: Sequence[ReportCollective]) -> _Box:
    output = operator.output
    kinds = {
        "takes": ", ".join(dict.fromkeys(data)),
        **{
            phase: ", ".join(dict.fromkeys(one.kind for one in collectives if one.phase == phase))
            for phase in ("forward", "backward", "optimizer")
        },
    }
    lines = (
        operator.name,
        f"{operator.kind} {written(operator.strategy)}",
        f"-> {output.cuts}, part {_sizes(output.size)}" if output.size else "-> a number",
        "; ".join(f"{phase} {found}" for phase, found in kinds.items() if found),
    )
    return _Box(tuple(map(printable, lines)), _tooltip(operator, collectives), _layout(output))


def _tooltip(operator: ReportOperator, collectives: Sequence[ReportCollective]) -> str:
    lines = [f"{operator.name}: {operator.kind}, stage {operator.stage}", f"strategy {written(operator.strategy)}"]
    lines += [f"input {number}: {_in_words(each)}" for number, each in enumerate(operator.inputs)]
    lines.append(f"output: {_in_words(operator.output)}")
    lines += [
        f"{one.phase}: {one.count} x {one.kind} of {size(one.bytes)} over {ranges(one.group)}, {one.what}"
        for one in collectives
    ]
    return "\n".join(map(printable, lines))


def _in_words(tensor: ReportTensor) -> str:
    cuts = [
        f"dim {dim} into {parts} by {axis}"
        for dim, (parts, axis) in enumerate(zip(tensor.cuts, tensor.by, strict=True))
        if parts > 1
    ]
    start = "" if tensor.start is None else f" from ({', '.join(map(str, tensor.start))})"
    return f"{tensor.name} {_sizes(tensor.shape)}, cut {', '.join(cuts) or 'nowhere'}; this rank has {_sizes(tensor.size)}{start}"


def _sizes(lengths: Sequence[int | None]) -> str:
    return "x".join("?" if length is None else str(length) for length in lengths) or "scalar"


def _layout(tensor: ReportTensor) -> str:
    """Return how a tensor lies, as the legend says it."""
    if all(parts == 1 for parts in tensor.cuts):
        return "whole on every rank"
    # Indices of an expression are its own: what one operator calls i another calls n.
    by = ", ".join(f"dim {dim} by {axis}" for dim, axis in enumerate(tensor.by) if axis in AXES)
    return f"{tensor.cuts}: {by}" if by else str(tensor.cuts)


def _fills(graph: _Graph) -> dict[str, str]:
    """Return the colour of each layout, in the order in which the layouts come."""
    layouts = list(dict.fromkeys(box.layout for box in graph.boxes.values()))
    cut = [layout for layout in layouts if not layout.startswith("whole")]
    return {
        layout: FILLS[cut.index(layout) % len(FILLS)] if layout in cut else WHOLE
        for layout in layouts
    }  # fmt: skip


def _legend(title: str, fills: Mapping[str, str]) -> Iterator[str]:
    yield f'<text class="title" x="{MARGIN}" y="{MARGIN + 6}">{escape(title)}</text>'
    yield f'<text class="faint" x="{MARGIN}" y="{MARGIN + 24}">filled by how the output lies:</text>'
    for number, (layout, fill) in enumerate(fills.items()):
        y = MARGIN + 34 + number * LEGEND_ROW
        yield f'<rect class="box" x="{MARGIN}" y="{y:.1f}" width="26" height="13" rx="2" fill="{fill}"/>'
        yield f'<text x="{MARGIN + 34}" y="{y + 11:.1f}">{escape(printable(layout))}</text>'


class _Canvas:
    """Draws what is arranged."""

    def __init__(
        self, graph: _Graph, arranged: Arrangement, sizes: Sizes, fills: Mapping[str, str], top: float
    ) -> None:
        self._graph, self._arranged, self._sizes, self._fills = graph, arranged, sizes, fills
        self._lefts = []
        left = MARGIN
        for column in arranged.columns:
            self._lefts.append(left - column.left)
            left += column.width + sizes.column_gap
        self._width = left - sizes.column_gap + MARGIN
        crossing = [(one, other) for one, other in arranged.links if self._crosses(one, other)]
        # What runs on to the next column is told at the ends of both, one line below the other.
        self._ends = _numbered(crossing, key=lambda link: (arranged.column_of(link[0]), link[0]))
        self._begins = _numbered(crossing, key=lambda link: (arranged.column_of(link[1]), link))
        self._stubs = 1 + max([*self._ends.values(), *self._begins.values()], default=0)
        self._top = top + self._stubs * STUB + STUB
        self._arrivals: dict[Spot, list[Spot]] = {}
        for upper, lower in arranged.links:
            if lower.is_box:
                self._arrivals.setdefault(lower, []).append(upper)
        for arrivals in self._arrivals.values():
            arrivals.sort(key=lambda spot: arranged.x[spot])

    def boxes(self) -> Iterator[str]:
        width = self._sizes.box_width
        for row in self._arranged.rows:
            for spot in row:
                if not spot.is_box:
                    continue
                box, left, y = self._graph.boxes[spot.name], self._x(spot) - width / 2, self._y(spot)
                yield f"<g><title>{escape(box.tooltip)}</title>"
                fill = self._fills[box.layout]
                yield (
                    f'<rect class="box" x="{left:.1f}" y="{y:.1f}" width="{width:.1f}" height="{BOX_HEIGHT:.1f}" '
                    f'rx="4" fill="{fill}"/>'
                )
                for number, line in enumerate(box.lines):
                    style = ("name", "", "", "faint")[number]
                    at = f'x="{left + PADDING:.1f}" y="{y + 5 + (number + 0.8) * LINE:.1f}"'
                    if line:
                        yield f'<text class="{style}" {at}>{escape(cut_off(line, MAX_CHARS))}</text>'
                yield "</g>"

    def edges(self) -> Iterator[str]:
        for row in self._arranged.rows:
            for spot in row:
                if not spot.is_box:  # a trunk goes past the boxes of its row
                    x, y = self._x(spot), self._y(spot)
                    yield f'<path class="edge" d="M{x:.1f} {y:.1f}V{y + BOX_HEIGHT:.1f}"/>'
        told: set[Spot] = set()
        for upper, lower in self._arranged.links:
            step = self._graph.steps.get((upper.name, lower.name), "") if lower.is_box else ""
            style = "edge moved" if step else "edge"
            start_x, start_y = self._x(upper), self._y(upper) + BOX_HEIGHT
            end_x, end_y = self._arrival(upper, lower), self._y(lower)
            words = f"{upper.name} to {lower.name}{f': {step}' if step else ''}"
            tip = f"<title>{escape(printable(words))}</title>"
            if self._crosses(upper, lower):
                if upper not in told:
                    told.add(upper)
                    length = (self._ends[self._arranged.column_of(upper), upper] + 1) * STUB
                    yield f'<path class="edge" d="M{start_x:.1f} {start_y:.1f}v{length:.1f}"/>'
                    yield self._label(start_x + 4, start_y + length, f"{upper.name} goes on at the right", "faint")
                length = (self._begins[self._arranged.column_of(lower), (upper, lower)] + 1) * STUB
                yield f'<path class="{style}" d="M{end_x:.1f} {end_y - length:.1f}V{end_y:.1f}">{tip}</path>'
                yield self._label(end_x + 4, end_y - length + 8, f"{upper.name}", "faint")
            else:
                middle = (start_y + end_y) / 2
                curve = f"C{start_x:.1f} {middle:.1f} {end_x:.1f} {middle:.1f} {end_x:.1f} {end_y:.1f}"
                yield f'<path class="{style}" d="M{start_x:.1f} {start_y:.1f}{curve}">{tip}</path>'
            if step:
                yield self._label(end_x + 4, end_y - 5, step, "step")

    def extent(self) -> tuple[float, float]:
        """Return width and height of the page."""
        rows = max((len(column.rows) for column in self._arranged.columns), default=0)
        return self._width, self._top + rows * ROW_HEIGHT + self._stubs * STUB + MARGIN

    def _crosses(self, upper: Spot, lower: Spot) -> bool:
        return self._arranged.column_of(upper) != self._arranged.column_of(lower)

    @staticmethod
    def _label(x: float, y: float, text: str, style: str) -> str:
        return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(printable(text))}</text>'

    def _x(self, spot: Spot) -> float:
        return self._lefts[self._arranged.column_of(spot)] + self._arranged.x[spot]

    def _y(self, spot: Spot) -> float:
        rows = self._arranged.columns[self._arranged.column_of(spot)].rows
        return self._top + (spot.row - rows.start) * ROW_HEIGHT

    def _arrival(self, upper: Spot, lower: Spot) -> float:
        """Return where an edge meets what it leads to: beside others along the top of a box."""
        if not lower.is_box:
            return self._x(lower)
        arrivals = self._arrivals[lower]
        share = (arrivals.index(upper) + 1) / (len(arrivals) + 1)
        return self._x(lower) + self._sizes.box_width * (share - 0.5)


def _numbered(links: Sequence[Link], key: Callable[[Link], tuple[int, Key]]) -> dict[tuple[int, Key], int]:
    """Return a number for each key of links, from 0 in each column, which is the key's first part."""
    counts: dict[int, int] = {}
    found: dict[tuple[int, Key], int] = {}
    for link in links:
        if (one := key(link)) not in found:
            found[one] = counts.get(one[0], 0)
            counts[one[0]] = found[one] + 1
    return found
