"""Numbers as a line of text."""

import math

from launcher.cli.text.columns import BLOCKS, PLAIN, has_blocks, sparkline


def test_a_sparkline_has_a_character_for_each_value():
    """From the lowest block to the highest; a blank for none; the middle where all are alike."""
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 10) == BLOCKS
    assert sparkline([1, None, 2], 10) == "▁ █"
    assert sparkline([3, 3], 10) == "▅▅"
    assert sparkline([None, math.nan], 10) == "  "
    assert sparkline([], 10) == ""


def test_a_long_series_is_a_mean_per_character():
    assert sparkline(range(1000), 8) == BLOCKS
    assert sparkline(range(1000), 0) == ""
    assert len(sparkline([1e308, -1e308] * 500, 7)) == 7


def test_where_blocks_cannot_be_written_there_are_others():
    assert sparkline(range(8), 8, plain=True) == PLAIN
    assert [has_blocks(name) for name in ("utf-8", "ascii", "latin-1", None, "nonsense")] == [True, *[False] * 4]
