"""Axes with round ticks, and lines thinned to what can be seen."""

import math
from itertools import pairwise

import pytest

from launcher.cli.commands.report.scales import (
    MAX_POINTS,
    flattened,
    label,
    linear_axis,
    log_axis,
    thinned,
    time_axis,
    whole_axis,
)


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (0, 1),
        (2.1, 7.08),
        (-3, 4),
        (0, 3e-5),
        (0, 2.7e6),
        (5, 5),
        (0, 0),
        (1e-12, 1e12),
        (1, 1 + 1e-15),
        (0, 5e-324),
        (0, 1e-323),
        (-1e-310, 3e-309),
        (1e-292, 1e-292),
    ],
)
def test_an_axis_has_few_round_ticks_around_what_it_shows(low, high):
    """At equal distances, differently labelled, none outside."""
    axis = linear_axis(low, high, 4)
    values = [value for value, _ in axis.ticks]
    assert axis.low <= low <= high <= axis.high
    assert 2 <= len(values) <= 8
    assert (values[0], values[-1]) == pytest.approx((axis.low, axis.high))
    assert len({text for _, text in axis.ticks}) == len(values)
    steps = [after - before for before, after in pairwise(values)]
    assert max(steps) == pytest.approx(min(steps), rel=1e-6)
    assert f"{steps[0]:.0e}"[0] in "125"


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (1, 1),
        (1, 2),
        (1, 40),
        (7, 100_000),
        (0, 2**62),
        (2**53 + 2, 2**53 + 2),
        (-(2**63), -(2**63)),
        (-(2**63), 2**63 - 1),
        (2**60 + 100, 2**60 + 105),
        (1_763_740_800_123_456_789, 1_763_744_400_987_654_321),
    ],
)
def test_steps_are_whole_numbers(first, last):
    """And the axis ends where they do; of those that no float tells apart, too."""
    axis = whole_axis(first, last, 6)
    assert axis.low <= first <= last <= axis.high
    assert axis.low < axis.high
    assert 1 <= len(axis.ticks) <= 8
    assert len({text for _, text in axis.ticks}) == len(axis.ticks)
    assert all(value == int(value) for value, _ in axis.ticks)
    assert all(0 <= axis.share(value) <= 1 for value, _ in axis.ticks)


@pytest.mark.parametrize(("low", "high"), [(2, 4000), (1e-9, 1e9), (3, 3), (2.1, 4.3), (1e-300, 1e300)])
def test_a_log_axis_holds_what_it_shows(low, high):
    """Between round ends, with two to seven ticks."""
    axis = log_axis(low, high)
    assert axis.low <= low * 1.000001
    assert axis.high >= high * 0.999999
    assert 2 <= len(axis.ticks) <= 7
    assert axis.share(axis.low) == 0
    assert axis.share(axis.high) == 1


def test_a_spike_asks_for_a_log_axis_and_a_usual_course_does_not():
    """Nor does what a log axis cannot show."""
    course = [2 + 5 * math.exp(-step / 25) for step in range(100)]
    assert not flattened(course)
    assert flattened([*course, 4000.0])
    assert not flattened([*course, 4000.0, 0.0])
    assert not flattened([3.0])


@pytest.mark.parametrize(
    ("seconds", "last"),
    [(0, "0.001 s"), (8.4, "8 s"), (90, "1:30 min"), (7000, "1:45 h"), (90_000, "1 d"), (9e6, "100 d")],
)
def test_times_are_told_as_on_clocks(seconds, last):
    """At most a dozen of them."""
    ticks = time_axis(seconds, 9).ticks
    assert ticks[-1][1] == last
    assert len(ticks) <= 12


def test_numbers_have_as_many_digits_as_tell_them_apart():
    """In thousands, millions, or powers of ten."""
    pairs = ((7.0, 0.5), (1.5e9, 5e8), (2e-5, 1e-5), (1e20, 1e19), (0.0, 0.1), (12_000, 2000))
    assert [label(*pair) for pair in pairs] == ["7.0", "1.5G", "2e-5", "1.0e20", "0", "12,000"]


def test_short_lines_are_drawn_whole():
    """Nothing is left out where it need not be."""
    points = [(step, float(step % 7)) for step in range(MAX_POINTS)]
    assert thinned(points) == points


def test_of_long_lines_extremes_and_gaps_are_kept():
    """A single spike among 100,000 steps, a single step without a value, and never more than asked for."""
    points = [(step, math.sin(step / 1000)) for step in range(100_000)]
    points[54_321] = (54_321, 99.0)
    points[77_777] = (77_777, None)
    kept = thinned(points)
    assert (54_321, 99.0) in kept
    assert (77_777, None) in kept
    assert min(y for _, y in kept if y is not None) == min(y for _, y in points if y is not None)
    assert len(kept) <= MAX_POINTS
    assert kept == sorted(kept, key=lambda point: point[0])


def test_gaps_everywhere_are_no_more_points_than_asked_for():
    """Every other step without a value."""
    points = [(step, None if step % 2 else float(step % 97)) for step in range(20_000)]
    assert len(thinned(points)) <= MAX_POINTS
    assert len(thinned(points, 8)) <= 8
