"""The rows of `rank_rows` as SVG text. Colours are left to the page's style; signs tell the same without them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from launcher.cli.commands.report.charts import escaped_for_html, short_label
from launcher.cli.commands.report.rank_rows import KINDS, Bar, RankMark, Row
from launcher.cli.commands.report.scales import Axis, time_axis
from launcher.core.frozen import frozen

WIDTH = 1140
RIGHT, BOTTOM = 20, 38
LANE, LANES = 12, 3  # of marks above the rows: height, and at most so many
CHARACTER = 6.2  # of a label, at the page's size of letters
NARROWEST, WIDEST = 60, 200  # room for labels
ROW, LOW_ROW, MANY_ROWS = 22, 14, 24  # heights, the low one for more than so many rows
X_TICKS = 9
LEAST = 1.5  # what can be seen
NEAR = 9  # marks of one kind closer than this are one
# Around 0, 0, at most 10 wide.
SIGNS = {
    "validation": "M-4 -3H4L0 4Z",
    "saved": "M-3.5 -3.5H3.5V3.5H-3.5Z",
    "slow": "M0 -4.5L4.5 4H-4.5Z",
    "hung": "M-4 -4H-1V4H-4ZM1 -4H4V4H1Z",
    "failure": "M-4 -4L4 4M4 -4L-4 4",
    "stopping": "M-4 0L0 -4L4 0L0 4Z",
    "restart": "M0 -5V5M-4 -1L0 -5L4 -1",
    "paused": "M-3 -4V4M3 -4V4",
    "continued": "M-3 -4L4 0L-3 4Z",
}
SIGN_WORDS = {
    "validation": "validation",
    "saved": "model saved",
    "slow": "slower than the others",
    "hung": "no progress",
    "failure": "failure",
    "stopping": "all are ended",
    "restart": "restart",
    "paused": "paused",
    "continued": "continued",
}


@frozen
class _Frame:
    x: Axis
    left: float
    top: float
    row_height: float
    rows: int

    @property
    def bottom(self) -> float:
        return self.top + self.rows * self.row_height

    def place(self, seconds: float) -> float:
        return self.left + min(1.0, self.x.share(seconds)) * (WIDTH - RIGHT - self.left)


def rank_chart(rows: list[Row], marks: list[RankMark], seconds: float) -> str:
    """One `svg` element: a row per rank or group, and above them what concerns all. `seconds`: from start to end."""
    widest = max((len(short_label(row.label)) for row in rows), default=0)
    left = min(WIDEST, max(NARROWEST, widest * CHARACTER + 12))
    x_axis, row_height = time_axis(seconds, X_TICKS), LOW_ROW if len(rows) > MANY_ROWS else ROW
    signs = _signs(marks, _Frame(x_axis, left, 0, row_height, len(rows)))
    lanes = max((sign.lane for sign in signs), default=-1) + 1
    frame = _Frame(x_axis, left, 6 + lanes * LANE, row_height, len(rows))
    body = "".join((*_grid(frame), *_rows(rows, frame), *_drawn_signs(signs, frame)))
    return (
        f'<svg class="ranks" viewBox="0 0 {WIDTH} {frame.bottom + BOTTOM:.0f}" role="img" '
        f'aria-label="ranks over time">{body}</svg>'
    )


def bar_kinds(rows: Iterable[Row]) -> list[tuple[str, str]]:
    """For the legend: the kinds of bars in a picture, and what they mean."""
    present = {bar.kind for row in rows for bar in row.bars}
    return [(kind, words) for kind, words in KINDS.items() if kind in present]


def sign_kinds(rows: Iterable[Row], marks: Iterable[RankMark]) -> list[tuple[str, str]]:
    """For the legend: the signs in a picture, and what they mean."""
    present = {mark.kind for row in rows for mark in row.marks} | {mark.kind for mark in marks}
    return [(kind, words) for kind, words in SIGN_WORDS.items() if kind in present]


def bar_swatch(kind: str) -> str:
    return f'<svg class="swatch" viewBox="0 0 28 10" aria-hidden="true"><rect class="bar {escaped_for_html(kind)}" width="28" height="10"/></svg>'


def sign_swatch(kind: str) -> str:
    return f'<svg class="sign" viewBox="-6 -6 12 12" aria-hidden="true"><path class="mark {escaped_for_html(kind)}" d="{SIGNS[kind]}"/></svg>'


def _grid(frame: _Frame) -> Iterator[str]:
    for seconds, text in frame.x.ticks:
        left = frame.place(seconds)
        yield f'<path class="grid" d="M{left:.1f} {frame.top:.1f}V{frame.bottom:.1f}"/>'
        yield f'<text class="x" x="{left:.1f}" y="{frame.bottom + 15:.1f}">{escaped_for_html(text)}</text>'
    middle = (frame.left + WIDTH - RIGHT) / 2
    yield f'<text class="x" x="{middle:.1f}" y="{frame.bottom + 32:.1f}">time since the start</text>'


def _rows(rows: list[Row], frame: _Frame) -> Iterator[str]:
    for number, row in enumerate(rows):
        top = frame.top + number * frame.row_height
        baseline = top + frame.row_height / 2 + 4
        label = escaped_for_html(short_label(row.label))
        yield f'<g data-row="{escaped_for_html(row.label)}"><text class="y" x="{frame.left - 8:.1f}" y="{baseline:.1f}">{label}</text>'
        yield from (_bar(bar, top, frame) for bar in row.bars)
        yield from (_mark(mark, frame.place(mark.at_s), top + frame.row_height / 2) for mark in row.marks)
        yield "</g>"


def _bar(bar: Bar, top: float, frame: _Frame) -> str:
    left = frame.place(bar.start_s)
    width = max(LEAST, frame.place(bar.end_s) - left)
    return (
        f'<rect class="bar {escaped_for_html(bar.kind)}" x="{left:.1f}" y="{top + 2:.1f}" width="{width:.1f}" '
        f'height="{frame.row_height - 4:.1f}"><title>{escaped_for_html(bar.text)}</title></rect>'
    )


@dataclass(slots=True)
class _Sign:
    """Marks of one kind that would lie on each other; more of them may come."""

    left: float
    lane: int
    marks: list[RankMark]

    @property
    def text(self) -> str:
        more, until = sum(mark.count for mark in self.marks) - 1, ""
        if len(self.marks) > 1:
            until = f" until {self.marks[-1].text}"
        return f"{self.marks[0].text} (and {more:,} more{until})" if more else self.marks[0].text


def _signs(marks: list[RankMark], frame: _Frame) -> list[_Sign]:
    """In lanes, so that none hides another."""
    latest: dict[str, _Sign] = {}
    signs: list[_Sign] = []
    ends = [-NEAR * 1.0] * LANES
    for mark in sorted(marks, key=lambda each: each.at_s):
        left = frame.place(mark.at_s)
        if mark.kind in latest and left - latest[mark.kind].left < NEAR:
            latest[mark.kind].marks.append(mark)
            continue
        lane = next((lane for lane, end in enumerate(ends) if left - end >= NEAR), ends.index(min(ends)))
        ends[lane] = left
        latest[mark.kind] = _Sign(left, lane, [mark])
        signs.append(latest[mark.kind])
    return signs


def _drawn_signs(signs: list[_Sign], frame: _Frame) -> Iterator[str]:
    for sign in signs:
        first = sign.marks[0]
        if first.kind == "restart":
            yield f'<path class="again" d="M{sign.left:.1f} {frame.top:.1f}V{frame.bottom:.1f}"/>'
        top = frame.top - 8 - sign.lane * LANE
        yield _mark(RankMark(first.at_s, first.kind, sign.text), sign.left, top)


def _mark(mark: RankMark, left: float, top: float) -> str:
    if mark.kind not in SIGNS:
        return ""
    return (
        f'<g class="point" transform="translate({left:.1f} {top:.1f})" data-mark="{escaped_for_html(mark.kind)}">'
        f'<title>{escaped_for_html(mark.text)}</title><path class="mark {escaped_for_html(mark.kind)}" d="{SIGNS[mark.kind]}"/></g>'
    )
