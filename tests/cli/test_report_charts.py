"""What a report's charts hold, which ranks have a row, and how both are drawn."""

import math
import re
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest

from launcher.cli.commands.report.charts import KINDS, Bar, Chart, RankChart, Row, Series, charts_of, rank_chart
from launcher.cli.commands.report.drawing import to_svg
from launcher.core.metrics import StepMetrics, Validation
from launcher.core.records import ResumedFrom
from launcher.runs.logged_metrics import LoggedSteps
from launcher.runs.metrics_reader import Metrics
from launcher.runs.timeline import AttemptSpan, Mark, RankSpan, Timeline
from launcher.runs.training_history import own_course

pytestmark = pytest.mark.usefixtures("report_fonts")
SECOND_NS = 10**9


class Facts:
    """The part of RunFacts that charts are made of."""

    def __init__(self, name, steps, validations=(), continued=None):
        self.name, self.metrics, self.continued = name, Metrics(tuple(steps), tuple(validations), ()), continued
        self.course, self.printed = own_course(self.metrics), LoggedSteps()
        self.unit = "step"


def steps(*losses, attempt=0, first=1, **more):
    return [StepMetrics(1, attempt, step, loss=loss, **more) for step, loss in enumerate(losses, start=first)]


def texts(svg):
    return [each.text for each in ET.fromstring(svg).iter() if each.tag.endswith("text")]


def tips(svg):
    return [each.text for each in ET.fromstring(svg).iter() if each.tag.endswith("title")]


def test_every_quantity_with_a_value_has_a_chart():
    found = steps(
        4.0, 3.0, learning_rate=1e-4, tokens_per_s=5000.0, memory_bytes=3 << 29, gradient_norm=0.5, clipped_share=0.25
    )
    charts = list(charts_of([Facts("a", found, [Validation(1, 0, 2, 2.5)])]))
    assert [chart.title for chart in charts] == [
        "loss", "learning rate", "gradient norm", "tokens/s", "memory of one rank (GiB)",
    ]  # fmt: skip
    assert [series.label for series in charts[0].series] == ["training", "validation"]
    assert [series.values for series in charts[0].series] == [[4.0, 3.0], [2.5]]
    assert charts[4].divisor == 2**30
    assert charts[2].note == "The gradient was clipped in 25% of steps."
    assert [chart.title for chart in charts_of([Facts("a", steps(4.0))])] == ["loss"]


def test_attempts_are_one_line_and_gaps_are_counted():
    facts = Facts("a", [*steps(4.0, None, math.nan, 1.0), *steps(3.9, 2.9, attempt=1, first=4)])
    [chart] = charts_of([facts])
    assert [step for step, _ in chart.series[0].points] == [1, 2, 3, 4, 5]
    assert chart.series[0].values == [4.0, 3.9, 2.9]
    assert chart.restarts == ((4, "attempt 1 starts at step 4, after step 4"),)
    assert chart.note == "2 points without a finite value: the line has a gap there."
    other = Facts("b", steps(1.0, first=8), continued=ResumedFrom(Path("x"), 7, "c\x1b"))
    [chart] = charts_of([facts, other])
    assert [series.label for series in chart.series] == ["a", "b"]
    assert [text for _, text in chart.restarts] == [
        "a: attempt 1 starts at step 4, after step 4", "b: continues c^[ from step 7",
    ]  # fmt: skip
    assert [step for step, _ in chart.restarts] == [4, 7]
    assert "2 points of a without" in chart.note


@pytest.mark.parametrize(("last", "is_log"), [((), False), ((4000.0,), True), ((4000.0, 0.0), False)])
def test_a_spike_asks_for_a_log_axis(last, is_log):
    [chart] = charts_of([Facts("a", steps(*(2 + 5 * math.exp(-step / 25) for step in range(100)), *last))])
    assert (chart.is_log, "log scale" in chart.title) == (is_log, is_log)
    assert not is_log or "log scale" in " ".join(texts(to_svg(chart)))


@pytest.mark.parametrize("points", [
    [(1, 1.0)], [(1, 1.0), (2, None), (3, 4.0)], [(0, -1e299), (1, 1e299)], [(1, 5e-324), (2, 0.0)],
    [(2**63 - 1, 1.0), (2**63, 2.0)], [(-(2**63), 1.0)],
    [(step, step % 97 + 1.0) for step in range(100_000)],
])  # fmt: skip
def test_any_numbers_are_drawn(points):
    svg = to_svg(Chart("loss", (Series("training", tuple(points)),)))
    assert ET.fromstring(svg).tag.endswith("svg")
    assert not re.search(r'"[^"]*\b(nan|inf)\b[^"]*"', svg)
    assert len(svg) < 400_000


def test_a_chart_says_what_it_shows_and_how():
    points = ((1, 7.5), (2, None), (3, 2.5), (4, 3.0), (5, 1.25))
    chart = Chart("loss", (Series("_a", points), Series("b", ((1, 1.0),), 1)), restarts=((2, "attempt 1 <begins>"),))
    svg = to_svg(chart)
    assert {"loss", "step", " _a", " b", " restart"} <= set(texts(svg))
    assert tips(svg).count("_a: 4 values, first 7.5, last 1.25, from 1.25 to 7.5") == 1
    assert "attempt 1 <begins>" in tips(svg)
    assert to_svg(chart) == svg


def test_series_differ_by_more_than_colour():
    svg = to_svg(Chart("loss", tuple(Series("a", ((1, 1.0), (2, 2.0)), style) for style in range(5))))
    # The samples in the legend are thinner; one line is whole.
    assert len(set(re.findall(r"stroke-dasharray: ([^;\"]+)", svg))) == 2 * 4


def bars_of_all_kinds(marks=()):
    rows = [Row(f"rank {n}", (Bar(n, 10 + n, kind, f"attempt 0: {kind}"),)) for n, kind in enumerate(KINDS)]
    return RankChart(tuple(rows), tuple(marks), 0, 30.0)


def test_ranks_over_time_name_their_bars_and_marks():
    marks = [Mark(5 * SECOND_NS, "saved", "model <1>", None, 8), Mark(6 * SECOND_NS, "saved", "again")]
    svg = to_svg(bars_of_all_kinds(marks))
    assert {
        *(f" {name}" for name in KINDS.values()),
        "rank 0",
        "model or checkpoint saved",
        "time since the start",
    } <= set(texts(svg))
    assert "5.0 s: model <1>\n6.0 s: again\nand 7 more" in tips(svg)
    assert "rank 1:\nattempt 0: starting" in tips(svg)
    assert len(set(re.findall(r'<pattern id="(\w+)"', svg))) == 12  # with the legend's


def test_names_of_others_act_nowhere():
    names = ("\x1b[2J<script>&\"'", "$x^2$ \\frac", "_", "漢" * 90, "\ud800")
    svg = to_svg(next(charts_of([Facts(name, steps(1.0, 2.0)) for name in names])))
    svg += to_svg(bars_of_all_kinds([Mark(SECOND_NS, "saved", name) for name in names]))
    assert "<script" not in svg
    assert "\x1b" not in svg
    assert "http" not in re.sub(r' xmlns(:\w+)?="[^"]+"', "", svg)


def test_axes_show_numbers_as_people_write_them():
    for low, high, label in ((0, 2.2e6, "2M"), (0, 25_000, "20,000"), (0.0, 3e-4, "0.0003"), (0, 1.2e17, "1e+17")):
        assert label in texts(to_svg(Chart("loss", (Series("training", ((1, low), (2, high))),))))


# --- ranks over time ---


def span(rank, role="well", start=0.0, first=1.0, end=10.0):
    ends = None if end is None else round(end * SECOND_NS)
    return RankSpan(rank, round(start * SECOND_NS), round(first * SECOND_NS), ends, 0 if role == "well" else 1, role)


def ranks_over_time(*attempts, marks=(), ended_s=10):
    spans = [AttemptSpan(number, 0, 10 * SECOND_NS, None, tuple(ranks)) for number, ranks in enumerate(attempts)]
    times = Timeline(0, ended_s * SECOND_NS, tuple(spans), tuple(marks))
    return rank_chart(SimpleNamespace(times=times, ended_ns=ended_s * SECOND_NS))


def test_a_few_ranks_have_a_row_each():
    rows = ranks_over_time([span(0), span(1, "culprit", end=4.0)]).rows
    assert [row.label for row in rows] == ["rank 0", "rank 1"]
    assert [(bar.start_s, bar.end_s, bar.kind) for bar in rows[1].bars] == [(0, 1, "starting"), (1, 4, "culprit")]
    assert rows[1].bars[1].text == "attempt 0: failed first (exit code 1), 1.0 s to 4.0 s"
    [row] = ranks_over_time([span(0, "running", end=None)], ended_s=20).rows
    assert row.bars[-1].end_s == 20  # now


def test_imports_have_a_bar_of_their_own():
    attempt = AttemptSpan(0, 0, 10 * SECOND_NS, 2 * SECOND_NS, (span(0, start=2.5, first=3.0),))
    times = Timeline(0, 10 * SECOND_NS, (attempt,), ())
    [row] = rank_chart(SimpleNamespace(times=times, ended_ns=None, state=None)).rows
    assert [(bar.start_s, bar.end_s, bar.kind) for bar in row.bars] == [
        (0, 2, "imports"),
        (2.5, 3, "starting"),
        (3, 10, "well"),
    ]


def test_many_ranks_are_grouped_and_those_that_deviate_stand_alone():
    ranks = [span(rank, "consequence") for rank in range(1024)]
    ranks[517] = span(517, "culprit")
    ranks[300] = span(300, "consequence", end=3.0)
    marks = [Mark(5 * SECOND_NS, "slow", "slow", 17), Mark(6 * SECOND_NS, "saved", "model")]
    found = ranks_over_time(ranks, marks=marks)
    labels = [row.label for row in found.rows]
    assert {"rank 517", "rank 300", "rank 17"} <= set(labels)
    assert len(labels) < 64
    assert sum(int(count[1]) if (count := re.search(r"\((\d+)\)", text)) else 1 for text in labels) == 1024
    assert [mark.kind for row in found.rows for mark in row.marks] == ["slow"]
    assert [mark.kind for mark in found.marks] == ["saved"]
    # Ranks that all deviate are still grouped.
    assert len(ranks_over_time([span(rank, end=1.0 + 9 * rank / 1024) for rank in range(1024)]).rows) <= 64


def test_groups_span_attempts():
    second = [span(rank, "well" if rank % 2 else "ended", start=11, first=12, end=20) for rank in range(100)]
    rows = ranks_over_time([span(rank, "consequence") for rank in range(100)], second, ended_s=20).rows
    assert all(len({bar.kind for bar in row.bars if bar.start_s >= 12}) == 1 for row in rows)
    assert {bar.text[:9] for row in rows for bar in row.bars} == {"attempt 0", "attempt 1"}
