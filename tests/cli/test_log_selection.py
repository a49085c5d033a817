"""Which lines are shown, and where some were left out."""

import io

import pytest

from launcher.cli.text.arranged_lines import Selection
from launcher.cli.text.log_format import Format, Look
from launcher.logs.lines import Line, LineReader
from launcher.logs.merge import merge
from launcher.logs.select import Matcher, Selector

TEXT = b"hit\na\nb\nhit\nhit\nc\nd\ne\nhit\n"


@pytest.fixture
def selection():
    shape = Format(Look(), io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), (), ())
    return Selection(Selector(matches=Matcher("hit"), after=1), shape)


def lines_of(rank):
    return LineReader(rank).lines(0, TEXT)


def shown(lines):
    return [f"{line.global_rank} {line.raw.decode()}" if isinstance(line, Line) else "--" for line in lines]


def test_a_gap_is_between_lines_of_one_rank(selection):
    assert shown(selection.with_gaps(selection.of(lines_of(0)))) == [
        *["0 hit", "0 a", "--", "0 hit", "0 hit", "0 c", "--", "0 hit"]
    ]


def test_no_gap_is_between_lines_of_two_ranks(selection):
    """Their prefixes tell that they are no neighbours."""
    merged = selection.of(merge({0: lines_of(0), 1: lines_of(1)}))  # in turns: no line tells a time
    told = shown(selection.with_gaps(merged))
    assert "--" not in told
    assert len(told) == 2 * 6


@pytest.mark.parametrize(("count", "wanted"), [
    (0, []), (1, ["hit"]), (2, ["c", "--", "hit"]), (3, ["hit", "c", "--", "hit"]), (99, ["hit", "a", "--", "hit", "hit", "c", "--", "hit"]),
])  # fmt: skip
def test_the_last_of_those_selected(selection, count, wanted):
    assert [
        each.removeprefix("0 ") for each in shown(selection.with_gaps(selection.last(lines_of(0), count)))
    ] == wanted
