"""Lines of a long text, and edits, which change what they name and no more than the blanks that only it needed."""

from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.rank_table.positions import Edit, Lines, Origins, apply_edits

PIECES = st.lists(
    st.tuples(st.sampled_from(["\n", "a", "ab\n", "\r\n"]), st.sampled_from([1, 3, 4095, 4096, 5000])), max_size=6
)


@given(PIECES, st.data())
def test_lines_start_where_a_list_of_all_lines_says(pieces, data):
    text = "".join(piece * times for piece, times in pieces)
    starts = [0, *(at + 1 for at, char in enumerate(text) if char == "\n")]
    lines = Lines(text)
    offset = data.draw(st.integers(0, len(text)))
    number = bisect_right(starts, offset)
    assert lines.position(offset) == (number, starts[number - 1])
    number = data.draw(st.integers(1, len(starts)))
    assert lines.start(number) == starts[number - 1]


@pytest.mark.parametrize(("before", "removed", "after"), [
    ("a x b", "x", "a b"), ("a x", "x", "a"), ("x a", "x", "a"), ("  x  a", "x", "  a"), ("a\n  x  \nb", "x", "a\nb"),
    ("a\r\n  x\r\nb", "x", "a\r\nb"), ("a\n  x", "x", "a\n"), ("a x\r\nb", "x", "a\r\nb"), ("axb", "x", "a b"),
    ("[x]", "x", "[]"), ("[x a]", "x", "[a]"), ("x", "x", ""),
])  # fmt: skip
def test_removal_takes_the_blanks_that_only_it_needed(before, removed, after):
    at = before.index(removed)
    assert apply_edits(before, [Edit(at, at + len(removed), "")])[0] == after


def test_neighbouring_removals_are_tidied_as_one():
    assert apply_edits("a\n x y\nb", [Edit(3, 4, ""), Edit(5, 6, "")])[0] == "a\nb"


@given(st.text("ab,[] \n", max_size=30), st.data())
def test_what_was_not_edited_stays_and_knows_its_origin(text, data):
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6, unique=True)))
    edits = [
        Edit(start, end, data.draw(st.sampled_from(["", "X", "XX\n"])))
        for start, end in zip(places[::2], places[1::2], strict=False)
    ]
    changed, made = apply_edits(text, edits)
    kept = [at for at in range(len(text)) if not any(edit.start <= at < edit.end for edit in edits)]
    origins = Origins(made)
    letters = [at for at, char in enumerate(changed) if char in "ab,[]"]
    assert [origins.offset(at) for at in letters] == [at for at in kept if text[at] in "ab,[]"]
