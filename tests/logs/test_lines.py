"""Split a log into lines: the result is the same for all chunk boundaries."""

import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.logs.lines import PIECE_BYTES, Line, LineReader, piece_end, shown, with_attempts

from .conftest import lines_of


def cut(data, cuts, start=0):
    edges = [0, *sorted(min(place, len(data)) for place in cuts), len(data)]
    return [(start + first, data[first:last]) for first, last in pairwise(edges)]


def split(global_rank, chunks):
    reader = LineReader(global_rank)
    for offset, chunk in chunks:
        yield from reader.lines(offset, chunk)
    yield from reader.last_line()


def raws(lines):
    return [line.raw for line in lines]


@given(
    st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\xc3\xa9", b"\xff"])).map(b"".join), st.lists(st.integers(0, 99))
)
def test_lines_are_the_same_wherever_the_bytes_are_cut(data, cuts):
    """Every byte is in one line, at its offset; only the last one may be without a newline."""
    lines = list(split(3, cut(data, cuts, start=1000)))
    *complete, rest = data.split(b"\n")
    assert raws(lines) == [*complete, *([rest] if rest else [])]
    assert [line.ends for line in lines] == [True] * len(complete) + [False] * bool(rest)
    assert all(data[line.offset - 1000 :].startswith(line.raw) for line in lines)
    assert {line.global_rank for line in lines} <= {3}


@pytest.mark.parametrize("size", [PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES, 3 * PIECE_BYTES + 5])
@pytest.mark.parametrize("chunk_bytes", [1000, PIECE_BYTES, 1 << 30])
def test_a_long_line_comes_in_pieces(size, chunk_bytes):
    """They are the same however it is read, and only the last of them ends the line."""
    data = b"x" * size + b"\nnext\n"
    *pieces, last, following = split(0, cut(data, range(0, len(data), chunk_bytes)))
    assert b"".join(raws([*pieces, last])) == b"x" * size
    assert {len(piece.raw) for piece in pieces} <= {PIECE_BYTES}
    assert 0 < len(last.raw) <= PIECE_BYTES
    assert [line.ends for line in [*pieces, last, following]] == [False] * len(pieces) + [True, True]
    assert following == Line(0, size + 1, b"next")


def test_a_long_line_is_not_cut_within_a_character():
    text = "x" + "é" * PIECE_BYTES
    assert "".join(map(shown, lines_of(text))) == text
    assert raws(split(0, [(0, b"\x80" * (PIECE_BYTES + 1))])) == [b"\x80" * PIECE_BYTES, b"\x80"]


def test_a_very_long_line_costs_no_more_than_many_short_ones():
    """A line of 32 MiB holds 512 pieces in memory one at a time, and each byte is moved a few times only."""
    chunk = b"x" * (1 << 16)
    most_kept = 0
    reader = LineReader(0)
    for number in range(512):
        for piece in reader.lines(number << 16, chunk):
            assert len(piece.raw) == PIECE_BYTES
        most_kept = max(most_kept, sys.getsizeof(reader._begun))
    assert most_kept < 4 * PIECE_BYTES


def test_missing_bytes_end_a_line():
    lines = list(split(0, [(0, b"one\ntwo"), (100, b"three\n")]))
    assert lines == [Line(0, 0, b"one"), Line(0, 4, b"two"), Line(0, 100, b"three")]


def test_the_attempt_of_a_line_is_told_by_its_offset():
    """What stands before the first attempt that is known has none; a new attempt may begin meanwhile."""
    starts = [(4, 0), (8, 1)]
    lines = with_attempts(iter(lines_of("one\ntwo\nsix\nten\n")), starts)
    assert [next(lines).attempt for _ in range(3)] == [None, 0, 1]
    starts.append((12, 2))
    assert next(lines).attempt == 2


def test_a_line_is_shown_as_a_terminal_may_show_it():
    """Bytes that are no text, and bytes that act on a terminal, do neither."""
    assert shown(Line(0, 0, b"10%\r20%\r")) == "20%"
    assert shown(Line(0, 0, b"\xff\x1b[2Jx\x07")) == "\ufffdx^G"


@pytest.mark.parametrize(("begun", "limit", "end"), [
    (b"aaaa", 2, 2), (b"a\raa", 3, 2), (b"a\raa", 2, 2), (b"aa\raa", 2, 2), (b"\raaa", 3, 1), (b"a\r\rbb", 4, 3),
    (b"a\rbb\r\r", 6, 2), (b"aa\r\r", 3, 3),  # a newline may follow
    ("\u00e9\u00e9".encode(), 3, 2),
])  # fmt: skip
def test_a_piece_ends_between_states_or_characters(begun, limit, end):
    """Never so that what was to be seen last is taken for overwritten."""
    assert piece_end(begun, limit) == piece_end(bytearray(begun), limit) == end
