"""Ranks over time: which have a row, and what is drawn in it."""

import re
from types import SimpleNamespace

from launcher.cli.commands.report.charts import rank_chart
from launcher.runs.timeline import AttemptSpan, Mark, RankSpan, Timeline

SECOND_NS = 10**9


def span(rank, role="well", start=0.0, first=1.0, end=10.0):
    ends = None if end is None else round(end * SECOND_NS)
    return RankSpan(rank, round(start * SECOND_NS), round(first * SECOND_NS), ends, 0 if role == "well" else 1, role)


def chart(*attempts, marks=(), ended_s=10):
    spans = [AttemptSpan(number, 0, 10 * SECOND_NS, None, tuple(ranks)) for number, ranks in enumerate(attempts)]
    times = Timeline(0, ended_s * SECOND_NS, tuple(spans), tuple(marks))
    return rank_chart(SimpleNamespace(times=times, ended_ns=ended_s * SECOND_NS))


def test_a_few_ranks_have_a_row_each():
    rows = chart([span(0), span(1, "culprit", end=4.0)]).rows
    assert [row.label for row in rows] == ["rank 0", "rank 1"]
    assert [(bar.start_s, bar.end_s, bar.kind) for bar in rows[1].bars] == [(0, 1, "starting"), (1, 4, "culprit")]
    assert rows[1].bars[1].text == "attempt 0: failed of its own (exit code 1), 1.0 s to 4.0 s"


def test_imports_have_a_bar_of_their_own():
    attempt = AttemptSpan(0, 0, 10 * SECOND_NS, 2 * SECOND_NS, (span(0, start=2.5, first=3.0),))
    times = Timeline(0, 10 * SECOND_NS, (attempt,), ())
    [row] = rank_chart(SimpleNamespace(times=times, ended_ns=None, state=None)).rows
    assert [(bar.start_s, bar.end_s, bar.kind) for bar in row.bars] == [
        (0, 2, "imports"),
        (2.5, 3, "starting"),
        (3, 10, "well"),
    ]


def test_what_goes_on_is_drawn_until_now():
    [row] = chart([span(0, "running", end=None)], ended_s=20).rows
    assert row.bars[-1].end_s == 20


def test_many_ranks_are_grouped_and_those_that_deviate_stand_alone():
    """The culprit, a rank that ended early, one that was slow; every rank is in one row."""
    ranks = [span(rank, "consequence") for rank in range(1024)]
    ranks[517] = span(517, "culprit")
    ranks[300] = span(300, "consequence", end=3.0)
    marks = [Mark(5 * SECOND_NS, "slow", "slow", 17), Mark(6 * SECOND_NS, "saved", "model")]
    found = chart(ranks, marks=marks)
    labels = [row.label for row in found.rows]
    assert {"rank 517", "rank 300", "rank 17"} <= set(labels)
    assert len(labels) < 64
    assert sum(int(count[1]) if (count := re.search(r"\((\d+)\)", text)) else 1 for text in labels) == 1024
    assert [mark.kind for row in found.rows for mark in row.marks] == ["slow"]
    assert [mark.kind for mark in found.marks] == ["saved"]


def test_ranks_that_all_deviate_are_still_grouped():
    assert len(chart([span(rank, end=1.0 + 9 * rank / 1024) for rank in range(1024)]).rows) <= 64


def test_groups_span_attempts():
    second = [span(rank, "well" if rank % 2 else "ended", start=11, first=12, end=20) for rank in range(100)]
    rows = chart([span(rank, "consequence") for rank in range(100)], second, ended_s=20).rows
    assert all(len({bar.kind for bar in row.bars if bar.start_s >= 12}) == 1 for row in rows)
    assert {bar.text[:9] for row in rows for bar in row.bars} == {"attempt 0", "attempt 1"}
