"""Ranks over time: which have a row, and what is drawn in it."""

import re
from xml.etree import ElementTree as ET

import pytest

from launcher.cli.commands.report.rank_chart import rank_chart
from launcher.cli.commands.report.rank_rows import Bar, RankMark, Row, rows_of, run_marks
from launcher.runs.timeline import AttemptSpan, Mark, RankSpan, Timeline

SECOND_NS = 10**9


def parsed(svg):
    return ET.fromstring(svg.replace("&#10;", " "))


def span(rank, role="well", start=0.0, first=1.0, end=10.0):
    ends = None if end is None else round(end * SECOND_NS)
    return RankSpan(rank, round(start * SECOND_NS), round(first * SECOND_NS), ends, 0 if role == "well" else 1, role)


def timeline(*attempts, marks=()):
    told = [AttemptSpan(number, 0, 10 * SECOND_NS, None, tuple(ranks)) for number, ranks in enumerate(attempts)]
    return Timeline(0, 10 * SECOND_NS, tuple(told), tuple(marks))


def test_a_few_ranks_have_a_row_each():
    """Start, first step and end in seconds, the role at the end."""
    rows = rows_of(timeline([span(0), span(1, "culprit", end=4.0)]), 10 * SECOND_NS)
    assert [row.label for row in rows] == ["rank 0", "rank 1"]
    assert [(bar.start_s, bar.end_s, bar.kind) for bar in rows[1].bars] == [(0, 1, "starting"), (1, 4, "culprit")]


def test_what_goes_on_is_drawn_until_now():
    """A rank without an end."""
    [row] = rows_of(timeline([span(0, "running", end=None)]), 20 * SECOND_NS)
    assert row.bars[-1].end_s == 20


def test_many_ranks_are_grouped_and_those_that_deviate_stand_alone():
    """The culprit, a rank that ended early, one that was slow; every rank is in one row."""
    ranks = [span(rank, "consequence") for rank in range(1024)]
    ranks[517] = span(517, "culprit")
    ranks[300] = span(300, "consequence", end=3.0)
    slow = Mark(5 * SECOND_NS, "slow", "slow", 17)
    rows = rows_of(timeline(ranks, marks=[slow]), 10 * SECOND_NS)
    labels = [row.label for row in rows]
    assert {"rank 517", "rank 300", "rank 17"} <= set(labels)
    assert len(rows) < 64
    counts = [int(found[1]) if (found := re.search(r"\((\d+)\)", text)) else 1 for text in labels]
    assert sum(counts) == 1024
    assert [mark.kind for row in rows for mark in row.marks] == ["slow"]


def test_ranks_that_all_deviate_are_still_grouped():
    """A thousand ranks that end one after the other have no thousand rows."""
    rows = rows_of(timeline([span(rank, end=1.0 + 9 * rank / 1024) for rank in range(1024)]), 10 * SECOND_NS)
    assert len(rows) <= 130


def test_marks_on_each_other_are_one_and_other_kinds_stand_above():
    """None hides another."""
    marks = [RankMark(5.0 + number / 1000, "validation", "v") for number in range(50)] + [RankMark(5.0, "saved", "<m>")]
    svg = parsed(rank_chart([Row("rank 0", (Bar(0, 10, "well", "t"),))], marks, 10.0))
    signs = {each.attrib["data-mark"]: each for each in svg.iter("g") if "data-mark" in each.attrib}
    assert signs.keys() == {"validation", "saved"}
    assert "and 49 more" in signs["validation"].find("title").text
    assert signs["validation"].attrib["transform"] != signs["saved"].attrib["transform"]


def test_a_mark_that_stands_for_many_says_so():
    """Alone, and together with others of its kind."""
    rows = [Row("rank 0", (Bar(0, 10, "well", "t"),))]
    alone = rank_chart(rows, [RankMark(5.0, "saved", "a", 8)], 10.0)
    assert "<title>a (and 7 more)</title>" in alone
    both = rank_chart(rows, [RankMark(5.0, "saved", "a", 8), RankMark(5.001, "saved", "b", 1)], 10.0)
    assert "<title>a (and 8 more until b)</title>" in both


@pytest.mark.parametrize("global_rank", [None, 0])
def test_what_marks_say_acts_nowhere(global_rank):
    """Neither on a terminal nor in a page: of a rank or of all, alone and beside others, cut anywhere."""
    texts = ("\x1b[2J<b>\x9b31m\u202e", "\x1b]0;title", "\x07 & \x1b")
    marks = [Mark(SECOND_NS * 5 + number, "saved", text, global_rank) for number, text in enumerate(texts)]
    told = timeline([span(0)], marks=marks)
    svg = rank_chart(rows_of(told, 10 * SECOND_NS), run_marks(told), 10.0)
    parsed(svg)
    assert "<b>" not in svg
    assert not set(svg) & {"\x1b", "\x9b", "\x07"}


def test_an_empty_timeline_is_a_picture_too():
    """Of no rows and no time."""
    assert parsed(rank_chart([], [], 0.0)).tag.endswith("svg")
