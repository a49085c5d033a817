"""Select lines by rank, level, time and text."""

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from launcher.core.errors import UsageError
from launcher.logs import select
from launcher.logs.lines import PIECE_BYTES, Line, shown
from launcher.logs.select import SHORT_CHARS, Matcher, Selector, moment, ranks_of

SECOND = 10**9


def chosen(lines, **wanted):
    selector = Selector(**wanted)
    return [shown(line) for line in lines if selector.accepts(line)]


# --- ranks ---


@pytest.mark.parametrize(
    ("expression", "ranks"),
    [("3", {3}), ("0,3-5", {0, 3, 4, 5}), ("all", set(range(8))), (" 1 , 2 - 3 ", {1, 2, 3}), ("5,5-5", {5})],
)
def test_ranks_are_chosen_by_number_and_range(expression, ranks):
    assert ranks_of(expression, range(8)) == ranks


@pytest.mark.parametrize("expression", ["", "x", "1,", "5-3", "-1", "1-", "8", "6-8", "0-999999999", "1e3", "²"])
def test_an_expression_that_chooses_no_ranks_is_refused(expression):
    with pytest.raises(UsageError, match=r"rank"):
        ranks_of(expression, range(8))


def test_where_nothing_is_asked_for_every_line_is_shown():
    assert chosen([Line(rank, 0, b"rank %d" % rank) for rank in (2, 0, 1)]) == ["rank 2", "rank 0", "rank 1"]


# --- times ---


@pytest.fixture
def _utc(zone):
    zone("UTC")


NOW = 1795262400 * SECOND  # 2026-11-21 12:00:00 UTC


@pytest.mark.parametrize(("text", "seconds_ago"), [
    ("10m", 600), ("-30s", 30), ("2h", 7200), ("1h30m", 5400), ("5min", 300), ("1.5h", 5400), ("500ms", 0.5), ("1d", 86400),
    ("2026-11-21T11:59:00", 60), ("2026-11-21 11:59:00.5", 59.5), ("2026-11-21T12:00:00+01:00", 3600),
    ("2026-11-21", 43200), ("2026-11-21 11:00", 3600), ("2026-11-22", -43200),
    ("11:59:30", 30), ("11:30", 1800), ("12:00", 0), ("12:00:01", 86399), ("12:01", 86340),  # the last that has been
    ("1795262399.5", 0.5), ("1795262399", 1), ("1495262399", 300000001),
])  # fmt: skip
@pytest.mark.usefixtures("_utc")
def test_a_time_is_given_as_such_or_as_how_long_ago(text, seconds_ago):
    """Where a span ends at a time of the day it is today's, or `--since 11:00 --until 13:00` would show nothing at noon."""
    assert moment(text, NOW) == NOW - seconds_ago * SECOND
    still_to_come = ":" in text and seconds_ago > 80_000
    assert moment(text, NOW, is_end=True) == NOW - (seconds_ago - 86400 * still_to_come) * SECOND


def test_a_span_that_ends_before_it_begins_is_refused():
    """Nothing would ever be shown; one moment is a span."""
    with pytest.raises(UsageError, match="--since is later than --until"):
        Selector(since_ns=2, until_ns=1)
    Selector(since_ns=2, until_ns=2)


@pytest.mark.parametrize(
    "text", ["", "10", "m", "10x", "+10m", "--10m", "2026-13-01", "25:00", "12", "12:00 x", "x 12:00"]
)
def test_what_is_no_time_is_refused(text):
    with pytest.raises(UsageError, match="ago"):
        moment(text, NOW)


def test_only_lines_of_a_time_are_shown():
    lines = [Line(0, number, b"%d" % number, time_ns=number) for number in range(6)]
    assert chosen(lines, since_ns=2, until_ns=4) == ["2", "3", "4"]
    assert chosen(lines, since_ns=5) == ["5"]
    assert chosen(lines, until_ns=0) == ["0"]
    selector = Selector(since_ns=2)
    assert not selector.accepts(Line(3, 0, b"undated"))
    assert selector.without_time == {3}


def test_level_time_and_text_are_all_asked_for():
    """A line is shown if nothing speaks against it; a level that was left out is known to the lines that follow."""
    texts = [(0, b"ERROR a"), (0, b"  more a"), (0, b"ERROR b"), (1, b"  of nobody a"), (0, b"INFO a")]
    lines = [Line(rank, number, text, time_ns=number) for number, (rank, text) in enumerate(texts)]
    assert chosen(lines, level=40, since_ns=1, matches=[Matcher("a")]) == ["  more a"]


# --- text ---


def test_of_several_expressions_any_is_enough_and_any_leaves_out():
    lines = [Line(0, 0, each) for each in (b"loss 1", b"heartbeat loss", b"Error", b"other")]
    assert chosen(lines, matches=[Matcher("loss"), Matcher("error", ignores_case=True)], excludes=[Matcher("beat")]) == [
        "loss 1", "Error",
    ]  # fmt: skip
    assert chosen(lines, excludes=[Matcher("loss"), Matcher("Err")]) == ["other"]


def test_what_is_searched_is_what_is_shown():
    assert chosen([Line(0, 0, b"\x1b[31mred\x1b[0m text")], matches=[Matcher("^red text$")])
    bar = b"10%\rERROR: lost\r20%"
    assert chosen([Line(0, 0, bar)], matches=[Matcher("^ERROR: lost$")]) == ["20%"]
    assert chosen([Line(0, 0, bar)], level=40) == ["20%"]
    assert not chosen([Line(0, 0, bar)], matches=[Matcher("10%.*20%")])
    assert chosen([Line(0, 0, b"\xff\xc3\xa9")], matches=[Matcher("(?i)É")])


@pytest.mark.parametrize("pattern", ["(", "*", "a{5,2}", "[z-a]", "(?P<x", "(" * 5000])
def test_what_is_no_regular_expression_is_refused(pattern):
    with pytest.raises(UsageError):
        Matcher(pattern)


LONG = "x" * PIECE_BYTES


@pytest.fixture(autouse=True)
def _little_time(monkeypatch):
    monkeypatch.setattr(select, "SEARCH_S", 0.05)


@pytest.mark.parametrize("behind", ["b", "b" * PIECE_BYTES], ids=["short", "long"])
def test_an_expression_that_can_match_in_too_many_ways_is_refused(behind):
    with pytest.raises(UsageError):
        Matcher(r"(a+)+$")("a" * 60 + behind)


@pytest.mark.parametrize("pattern", [".*=.*", "x.*b"])
def test_of_long_lines_that_take_too_long_the_beginning_is_searched(pattern):
    """An expression that is quick on short lines goes on. Signals and timers are left as they were."""
    before = signal.signal(signal.SIGVTALRM, signal.SIG_IGN)
    matcher = Matcher(pattern)
    assert not matcher(LONG)
    assert matcher.cut_short == 1
    assert matcher("xa=b")
    assert matcher(f"xb=b{LONG}")
    assert matcher.cut_short == 1
    assert signal.signal(signal.SIGVTALRM, before) is signal.SIG_IGN
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)


def test_only_the_line_that_takes_too_long_is_cut():
    selector = Selector(matches=[Matcher(".*=.*")])
    assert not selector.accepts(Line(0, 0, LONG.encode()))
    assert selector.cut_short == 1
    late = Line(1, 0, b"\t" * SHORT_CHARS + b"a\rb=c")
    assert selector.accepts(late)
    assert selector.accepts(Line(1, 9, b"a" * SHORT_CHARS + b"b=c"))
    assert selector.cut_short == 1


def test_a_log_of_lines_that_take_too_long_ends(monkeypatch):
    """After some of them, long ones are cut at once; short ones never."""
    monkeypatch.setattr(select, "MAX_SLOW", 3)
    matcher = Matcher("x.*=")
    for _ in range(9):
        assert not matcher(LONG)
    assert (matcher._slow, matcher.cut_short) == (3, 9)
    assert matcher("a" * SHORT_CHARS + "x=c")


def test_long_lines_are_searched_whole_where_that_is_quick():
    assert Matcher("needle")(LONG + "needle")
    assert Matcher("need+le")("y" * PIECE_BYTES + "needle")
    assert Matcher("n.*d.*e")("y" * PIECE_BYTES + "needle")


def test_every_match_is_found_that_is_not_empty():
    assert Matcher("lo|x*").spans("lo, lo") == [(0, 2), (4, 6)]
    assert Matcher("ab+|x.*=").spans(f"abb{LONG}abb") == [(0, 3)]


def test_outside_of_the_main_thread_nothing_can_hang():
    """No signal interrupts a search there: what might take long is refused, or not searched."""
    searches = [("needle", LONG + "needle"), ("need+le", "needle"), ("x.*b", LONG), ("(a+)+$", "aaa")]
    with ThreadPoolExecutor(1) as thread:
        *found, refused = [thread.submit(Matcher(pattern), text) for pattern, text in searches]
        spans = thread.submit(Matcher("a.*b").spans, f"ab{LONG}b")
    assert [each.result() for each in (*found, spans)] == [True, True, False, [(0, 2)]]
    with pytest.raises(UsageError, match="may take too long"):
        refused.result()
