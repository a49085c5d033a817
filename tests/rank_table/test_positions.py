"""Lines of a long text: the same answers as a list of all lines would give."""

from __future__ import annotations

from bisect import bisect_right

from hypothesis import given
from hypothesis import strategies as st

from launcher.rank_table.positions import Lines

PIECES = st.lists(
    st.tuples(st.sampled_from(["\n", "a", "ab\n", "\r\n"]), st.sampled_from([1, 3, 4095, 4096, 5000])), max_size=6
)


@given(PIECES, st.data())
def test_lines_start_where_a_list_of_all_lines_says(pieces, data):
    """Line and start of any offset, and the start of any line, are those of a plain split of the text."""
    text = "".join(piece * times for piece, times in pieces)
    starts = [0, *(at + 1 for at, char in enumerate(text) if char == "\n")]
    lines = Lines(text)
    offset = data.draw(st.integers(0, len(text)))
    number = bisect_right(starts, offset)
    assert lines.position(offset) == (number, starts[number - 1])
    number = data.draw(st.integers(1, len(starts)))
    assert lines.start(number) == starts[number - 1]
