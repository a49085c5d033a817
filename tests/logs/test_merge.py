"""Merge the lines of many ranks into one sequence."""

from itertools import count, groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.logs.lines import Line
from launcher.logs.log_merge import MAX_BLOCK_LINES, MAX_BYTES, MAX_LINES, WINDOW_NS, Merger, merge

from .conftest import put


def line(global_rank, text, time_ns=None, *, dated=None):
    dated = time_ns is not None if dated is None else dated
    return Line(global_rank, 0, text.encode(), time_ns=time_ns, dated=dated)


def stamped(global_rank, *texts):
    """Return lines: `5 a` has time 5; a line without a number has the time of the line before."""
    time_ns, lines = None, []
    for text in texts:
        number = text.partition(" ")[0]
        time_ns = int(number) if number.isdigit() else time_ns
        lines.append(line(global_rank, text, time_ns, dated=number.isdigit()))
    return lines


def texts(lines):
    return [each.raw.decode() for each in lines]


# --- logs that have ended ---


@pytest.mark.parametrize(("logs", "together"), [
    (["1 a|4 b", "2 c|3 d", "5 e"], "1 a|2 c|3 d|4 b|5 e"),
    (["1 a|more a|3 b", "1 c|more c|2 d"], "1 a|more a|1 c|more c|2 d|3 b"),
    (["1 a|1 b", "1 c|1 d"], "1 a|1 c|1 b|1 d"),
    (["a|b|c", "d|e"], "a|d|b|e|c"),
    (["a|b|c", "1 d|2 e"], "a|1 d|b|2 e|c"),
], ids=["times", "without a time", "equal times", "no times", "some times"])  # fmt: skip
def test_lines_are_merged_by_their_times(logs, together):
    lines = {rank: iter(stamped(rank, *log.split("|"))) for rank, log in enumerate(logs)}
    assert texts(merge(lines)) == together.split("|")


def test_many_lines_without_a_time_let_others_through():
    """A program that carries a time only once does not hold up the others to its end."""
    together = texts(merge({0: iter(stamped(0, "1 a", *["more"] * 1000)), 1: iter(stamped(1, "2 b"))}))
    assert together.index("2 b") <= MAX_BLOCK_LINES + 2


def test_only_one_line_of_each_rank_is_read_ahead():
    read = []

    def endless(global_rank):
        for number in count():
            read.append(number)
            yield line(global_rank, str(number), number)

    lines = merge({0: endless(0), 1: endless(1)})
    for _ in range(1000):
        next(lines)
    assert len(read) <= 1002


LOGS = st.lists(st.lists(st.sampled_from(["1 x", "2 x", "3 x", "9 x", "more"]), max_size=8), min_size=1, max_size=4)


@given(LOGS)
def test_no_line_is_lost_and_none_overtakes_one_of_its_rank(logs):
    lines = {rank: stamped(rank, *some) for rank, some in enumerate(logs)}
    assert of_ranks(merge({rank: iter(some) for rank, some in lines.items()}), lines) == lines


def of_ranks(together, ranks):
    given = list(together)
    return {rank: [each for each in given if each.global_rank == rank] for rank in ranks}


@given(st.lists(st.lists(st.integers(0, 20)).map(sorted), min_size=1, max_size=4))
def test_where_every_rank_is_in_order_all_are(logs):
    """The times never go back."""
    lines = {rank: iter([line(rank, "", at) for at in some]) for rank, some in enumerate(logs)}
    times = [each.time_ns for each in merge(lines)]
    assert times == sorted(times)


# --- while ranks write ---


@pytest.mark.parametrize(("ranks", "turns"), [
    # A line waits for earlier ones of other ranks, which may come later: files are read one after the other.
    (2, [("0 5 late", 0, ""), ("1 4 early", 1, "4 early"), ("", WINDOW_NS - 1, ""), ("", WINDOW_NS, "5 late")]),
    # Nothing waits where every rank has given a line: nothing earlier can come.
    (2, [("0 1 a|0 3 b|1 2 c", 0, "1 a|2 c")]),
    # A rank that has ended is not waited for, until it writes again, after a restart.
    (2, [("1 -|0 1 a", 0, "1 a"), ("1 2 b", 0, ""), ("0 1 c", 0, "1 c")]),
    # Earlier lines go before one that has waited enough, however new they are.
    (3, [("0 5 late", 0, ""), ("1 4 early|1 6 later", WINDOW_NS, "4 early|5 late"), ("", 2 * WINDOW_NS, "6 later")]),
    # Lines without times come in the order of their coming: among each other, and behind what had come before them.
    (3, [("1 a|0 b|1 c|2 5 d|0 e", 0, "a|b|c"), ("", None, "5 d|e")]),
    # What follows a line is shown with it, as far as it is there.
    (2, [("0 1 a|0 1+more a|0 2 b|1 1 c|1 1+more c|1 1+more|1 4 d", 0, "1 a|1+more a|1 c|1+more c|1+more|2 b"),
         ("0 3 e|0 3+more e", 0, "3 e|3+more e"), ("", None, "4 d"), ("", None, "")]),
], ids=["waiting", "nothing waits", "ended", "earlier", "no times", "followers"])  # fmt: skip
def test_when_a_line_is_shown(ranks, turns):
    """In turns: ranks and what they write (or that one has ended), the time (None: all have), and what is shown then.

    `5 a` carries time 5, and `5+a` follows such a line.
    """
    merger = Merger(range(ranks))
    for written, now, seen in turns:
        for rank, _, text in (each.partition(" ") for each in written.split("|") if each):
            if text == "-":
                merger.end(int(rank))
            else:
                time_ns = int(text[0]) if text[0].isdigit() else None
                merger.put(line(int(rank), text, time_ns, dated=text[1:2] == " "))
        assert "|".join(texts(merger.flush() if now is None else merger.take(now))) == seen


@pytest.mark.parametrize(("lines", "size", "most"), [(MAX_LINES + 50, 1, MAX_LINES), (300, 1 << 16, MAX_BYTES >> 16)])
def test_too_many_lines_do_not_wait(lines, size, most):
    merger = Merger([0, 1])
    put(merger, *(line(0, "x" * size, number) for number in range(lines)))
    assert len(merger.take(0)) == lines - most
    assert len(merger.flush()) == most
    assert not merger._oldest
    assert not merger.waits


def test_nothing_is_kept_of_what_was_shown():
    merger = Merger([0, 1])
    for number in range(1000):
        put(merger, line(0, "a", number), line(1, "b", number))
        merger.take(number)
    assert len(merger._oldest) + len(merger._new) + merger._lines < 5


@given(LOGS, st.data())
def test_live_as_afterwards_no_line_is_lost_or_overtakes(logs, data):
    merger = Merger(range(len(logs)))
    whole = {rank: stamped(rank, *some) for rank, some in enumerate(logs)}
    left = {rank: list(some) for rank, some in whole.items()}
    shown, now = [], 0
    while any(left.values()):
        rank = data.draw(st.sampled_from([rank for rank, some in left.items() if some]))
        merger.put(left[rank].pop(0))
        now += data.draw(st.sampled_from([0, WINDOW_NS // 2, WINDOW_NS]))
        shown += merger.take(now)
    assert of_ranks(shown + merger.flush(), whole) == whole


@given(st.lists(st.lists(st.integers(0, 20)).map(sorted), min_size=1, max_size=4))
def test_what_came_in_time_is_in_order(logs):
    merger = Merger(range(len(logs)))
    put(merger, *(line(rank, "", at) for rank, some in enumerate(logs) for at in some))
    times = [each.time_ns for each in [*merger.take(0), *merger.take(1), *merger.flush()]]
    assert [time for time, _ in groupby(times)] == sorted(set(times))


def test_an_attempt_waits_for_the_one_before():
    told = {
        0: [Line(0, 0, b"a", 1, 0, dated=True), Line(0, 2, b"b", 2, 1, dated=True), Line(0, 4, b"c", 9, 1, dated=True)],
        1: [Line(1, 0, b"d", None, 0), Line(1, 2, b"e", 5, 0, dated=True)],
        2: [Line(2, 0, b"f", 3, 1, dated=True), Line(2, 2, b"g", 4, 2, dated=True)],
    }
    merged = list(merge({rank: iter(lines) for rank, lines in told.items()}))
    assert [line.raw for line in merged] == [b"d", b"a", b"e", b"b", b"f", b"c", b"g"]
