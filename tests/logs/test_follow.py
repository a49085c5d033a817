"""Following logs: every line once, in order, whatever the writer does."""

import os
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.logs.follow import LONGEST_LINE_BYTES, Follower
from launcher.logs.tail import last_lines


@pytest.fixture
def log(tmp_path):
    return tmp_path / "train.log"


@pytest.fixture
def follower(log):
    made = Follower({3: log})
    yield made
    made.close()


def append(log, data):
    with log.open("ab") as file:
        file.write(data)


def test_a_log_that_does_not_exist_yet(log, follower):
    """It is waited for, then read from its start."""
    assert list(follower.poll()) == []
    append(log, b"one\ntwo\n")
    assert list(follower.poll()) == [(3, "one"), (3, "two")]
    assert list(follower.poll()) == []


def test_an_unfinished_line_waits_for_its_end(log, follower):
    """Half a line is not shown before it is whole, or nobody writes any more."""
    append(log, b"hal")
    assert list(follower.poll()) == []
    append(log, b"f\nlast")
    assert list(follower.poll()) == [(3, "half")]
    assert list(follower.rest()) == [(3, "last")]


def test_a_character_cut_by_two_writes_is_put_together(log, follower):
    """UTF-8 is decoded by line, not by write."""
    append(log, "é".encode()[:1])
    assert list(follower.poll()) == []
    append(log, "é".encode()[1:] + b"\n")
    assert list(follower.poll()) == [(3, "é")]


def test_a_line_without_end_is_given_in_pieces(log, follower):
    """Memory stays bounded, and no byte is lost."""
    append(log, b"x" * (5 * LONGEST_LINE_BYTES + 7) + b"\nnext\n")
    lines = [line for _, line in follower.rest()]
    assert lines[-1] == "next"
    assert sum(map(len, lines[:-1])) == 5 * LONGEST_LINE_BYTES + 7
    assert max(map(len, lines)) <= 2 * LONGEST_LINE_BYTES


def test_a_log_that_is_cut_short_is_read_again(log, follower):
    """As `tail -f` does after a truncation."""
    append(log, b"a long first line\n")
    assert list(follower.poll()) == [(3, "a long first line")]
    os.truncate(log, 0)
    assert list(follower.poll()) == []
    append(log, b"new\n")
    assert list(follower.poll()) == [(3, "new")]


def test_a_log_that_is_removed_is_read_to_its_end(log, follower):
    """What was opened stays readable after its name has gone."""
    append(log, b"one\n")
    assert list(follower.poll()) == [(3, "one")]
    append(log, b"two\n")
    log.unlink()
    assert list(follower.rest()) == [(3, "two")]


def test_one_poll_does_not_read_for_ever(log, follower):
    """However much there is, the caller gets its turn; the rest comes with the next poll."""
    append(log, b"0123456789abcde\n" * 400_000)
    first = len(list(follower.poll()))
    assert 0 < first < 400_000
    assert first + len(list(follower.rest())) == 400_000


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    lines=st.lists(st.text(st.characters(exclude_categories=["C"])), max_size=20),
    cuts=st.lists(st.integers(0, 400), max_size=8),
)
def test_any_way_of_writing_gives_the_same_lines(tmp_path_factory, lines, cuts):
    """Wherever the writes are cut, the lines are those of the whole text."""
    log = tmp_path_factory.mktemp("follow") / "train.log"
    data = "".join(f"{line}\n" for line in lines).encode()
    follower = Follower({0: log})
    seen = []
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for first, last in pairwise(edges):
        append(log, data[first:last])
        seen += [line for _, line in follower.poll()]
    seen += [line for _, line in follower.rest()]
    follower.close()
    assert seen == lines


def test_the_last_lines_of_a_long_log(log):
    """Only the end of a log is looked at, and blank lines at its end do not count."""
    append(log, b"".join(b"line %d\n" % number for number in range(100_000)) + b"\n\n")
    assert last_lines(log, 3) == ["line 99997", "line 99998", "line 99999"]


def test_the_last_lines_of_little(log, tmp_path):
    """Missing, empty and short logs give what there is."""
    assert last_lines(tmp_path / "missing", 3) == []
    append(log, b"\n\n")
    assert last_lines(log, 3) == []
    append(log, b"only")
    assert last_lines(log, 3)[-1:] == ["only"]
