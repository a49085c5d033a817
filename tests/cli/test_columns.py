"""Amounts as people say them, columns of a terminal, and series of numbers as a line of text."""

import math

import pytest

from launcher.cli.text.columns import (
    BLOCKS,
    MAX_NUMBER_CHARS,
    PLAIN,
    aligned,
    columns_of,
    counted,
    cut_to,
    fitted,
    has_blocks,
    number,
    server_list,
    size,
    sparkline,
    wrapped_columns,
)
from launcher.cluster.engine_output import listed


def test_sizes_and_counts():
    sizes = {
        None: "-", 0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 3 << 39: "1.5 TiB", 5 << 50: "5.0 PiB",
        1 << 70: "1024.0 EiB", -7: "-7 B",
    }  # fmt: skip
    assert {count_bytes: size(count_bytes) for count_bytes in sizes} == sizes
    assert [counted(n, "process", "processes") for n in (1, 2)] == ["1 process", "2 processes"]
    assert counted(0, "rank") == "0 ranks"


def test_no_number_is_too_large():
    """Whatever a rank's heartbeat file says is shown, and does not fill a table."""
    for value in (10**400, -(10**400), 10**4000, -(10**19)):
        assert len(size(value)) <= MAX_NUMBER_CHARS + 4
        assert len(number(value, "d")) <= MAX_NUMBER_CHARS
    for value, form in ((math.nan, ".4f"), (-math.inf, ",.0f"), (-1.7e308, ".4f")):
        assert len(number(value, form)) <= MAX_NUMBER_CHARS


def test_columns_are_counted_as_a_terminal_does():
    assert aligned(["A", "B"], [["\x1b[31mred\x1b[0m", "x"], ["blue", "y"]]) == ["A     B", "red   x", "blue  y"]
    lines = aligned(["A", "B", "C"], [["\u6f22", "\u5b57", "x"], ["abc", "123", "y"]], right=frozenset("B"))
    assert lines == ["A      B  C", "\u6f22    \u5b57  x", "abc  123  y"]


@pytest.mark.parametrize("words_of", [server_list, listed])
def test_names_of_servers_cannot_act_on_a_terminal(words_of):
    assert words_of(["a\x1b[2J", "b\nc"]) == r"servers a\x1b[2J, b\nc"
    assert words_of([f"h{index}" for index in range(10)]).endswith("h7 and 2 more")


@pytest.mark.parametrize(("width", "lines"), [
    (16, ["NAME   B  WHY", "abcde  2  more"]), (14, ["NAME   B  WHY", "abcde  2  more"]),
    (13, ["NAME   B  WHY", "abcde  2  mo…"]), (12, ["NAME   WHY", "abcde  more"]),
    (9, ["NAME  WHY", "abc…  mo…"]), (3, ["NA…", "ab…"]),
])  # fmt: skip
def test_columns_give_way_in_turn(width, lines):
    rows = [["abcde", "2", "more"]]
    giving_way = (("WHY", 3), ("B", 0), ("NAME", 4))
    assert fitted(["NAME", "B", "WHY"], rows, width, giving_way=giving_way) == lines


@pytest.mark.parametrize(("width", "lines"), [
    (None, ["name  1   six words", "n     22  one, and more words"]),
    (30, ["name  1   six words", "n     22  one, and more words"]),
    (28, ["name  1   six words", "n     22  one, and more", "          words"]),
    (20, ["name  1   six words", "n     22", "    one, and more", "    words"]),
])  # fmt: skip
def test_the_last_column_is_wrapped(width, lines):
    assert list(wrapped_columns([("name", "1", "six words"), ("n", "22", "one, and more words")], width)) == lines


def test_a_long_value_moves_its_text_alone():
    shifted = list(wrapped_columns([("a", "2" * 30, "text"), ("b", "1", "text")], 36))
    assert shifted == ["a  " + "2" * 30, "      text", "b  1  text"]


def test_a_text_takes_columns_and_is_cut_before_the_character_that_does_not_fit():
    widths = {"": 0, "abc": 3, "\u6f22\u5b57": 4, "\U0001f600!": 3, "e\u0301": 1, "a\u2026": 2, "\u200b": 0}
    assert {text: columns_of(text) for text in widths} == widths
    assert [cut_to(text, width) for text, width in widths.items()] == list(widths)
    assert [cut_to("a\u6f22b", width) for width in range(-1, 5)] == ["", "", "a", "a", "a\u6f22", "a\u6f22b"]
    assert [cut_to("abc", width) for width in (-1, 0, 2, 9)] == ["", "", "ab", "abc"]


def test_a_sparkline_has_a_character_for_each_value():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 10) == BLOCKS
    assert sparkline([1, None, 2], 10) == "▁ █"
    assert sparkline([3, 3], 10) == "▅▅"
    assert sparkline([None, math.nan], 10) == "  "
    assert sparkline([], 10) == ""
    # A long series has a mean per character.
    assert sparkline(range(1000), 8) == BLOCKS
    assert sparkline(range(1000), 0) == ""
    assert len(sparkline([1e308, -1e308] * 500, 7)) == 7
    assert sparkline(range(8), 8, plain=True) == PLAIN
    assert [has_blocks(name) for name in ("utf-8", "ascii", "latin-1", None, "nonsense")] == [True, *[False] * 4]
