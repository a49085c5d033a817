"""Columns of a terminal."""

import pytest

from launcher.cli.text.columns import columns_of, cut_to


@pytest.mark.parametrize(
    ("text", "columns"),
    [("", 0), ("abc", 3), ("\u6f22\u5b57", 4), ("\U0001f600!", 3), ("e\u0301", 1), ("a\u2026", 2), ("\u200b", 0)],
)
def test_a_text_takes_columns(text, columns):
    assert columns_of(text) == columns
    assert cut_to(text, columns) == text


def test_a_text_is_cut_before_the_character_that_does_not_fit():
    """Nothing behind it is kept, though it would fit."""
    assert [cut_to("a\u6f22b", columns) for columns in range(-1, 5)] == ["", "", "a", "a", "a\u6f22", "a\u6f22b"]
    assert [cut_to("abc", columns) for columns in (-1, 0, 2, 9)] == ["", "", "ab", "abc"]
