"""Line charts as SVG, and what they say of themselves."""

import math
import re
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest

from launcher.cli.commands.report.charts import HEIGHT, WIDTH, Chart, Series, line_chart, swatch
from launcher.cli.commands.report.scales import MAX_POINTS


def chart(*lines, **options):
    return Chart("loss", (Series("loss", "training", tuple(map(tuple, lines))),), **options)


def parsed(svg):
    return ET.fromstring(svg.replace("&#10;", " "))


def drawn(svg):
    """The places on each path of the first series."""
    group = next(each for each in parsed(svg).iter("g") if "data-series" in each.attrib)
    return [re.findall(r"[ML](\S+) (\S+?)(?=[ML]|$)", path.attrib["d"]) for path in group.iter("path")]


def facts(svg):
    return [each.attrib for each in parsed(svg).iter("g") if "data-series" in each.attrib]


def test_a_line_says_what_it_shows():
    """First, last, lowest, highest, how many values and gaps: of the data, not of what is drawn."""
    [told] = facts(line_chart(chart([(1, 7.1), (2, None), (3, 2.5), (4, 3.0)])))
    assert {name: told[f"data-{name}"] for name in ("series", "count", "gaps", "first", "last", "min", "max")} == {
        "series": "loss", "count": "3", "gaps": "1", "first": "7.1", "last": "3.0", "min": "2.5", "max": "7.1",
    }  # fmt: skip


def test_a_line_stops_at_a_gap_and_a_lonely_value_is_a_dot():
    """Nothing is drawn where nothing is known."""
    svg = line_chart(chart([(1, 1.0), (2, 2.0), (3, None), (4, 4.0), (5, None), (6, 1.0), (7, 2.0)]))
    [path] = re.findall(r'<path d="([^"]+)"/>', svg[svg.index("data-series") :])[:1]
    assert path.count("M") == 2
    assert path.count("L") == 2
    assert svg.count('class="dot"') == 1


@pytest.mark.parametrize(
    "values",
    [
        [],
        [None, None],
        [1.0],
        [0.0, 0.0],
        [-1e300, 1e300],
        [1e-300],
        [5e-324, 0.0],
        [1e-320],
        [1.0, None, 1e12],
        [2**62, -(2**62)],
    ],
)
def test_whatever_the_numbers_everything_lies_within_the_picture(values):
    """And it is well-formed."""
    svg = line_chart(chart(list(enumerate(values)), from_zero=True))
    parsed(svg)
    assert "nan" not in svg
    assert "inf" not in svg
    for attribute, limit in (("x", WIDTH), ("cx", WIDTH), ("y", HEIGHT), ("cy", HEIGHT)):
        places = [float(text) for text in re.findall(rf' {attribute}="([^"]+)"', svg)]
        assert all(0 <= place <= limit for place in places)


def test_long_lines_stay_small():
    """A thousand points at most, and a page that opens."""
    svg = line_chart(chart([(step, step % 97 + 1.0) for step in range(100_000)]))
    assert sum(map(len, drawn(svg))) <= MAX_POINTS
    assert len(svg) < 60_000


def test_labels_do_not_overlap():
    """Neither beside nor below each other, also of large numbers."""
    svg = parsed(line_chart(chart([(step, step * 1e3) for step in range(0, 100_001, 1000)])))
    texts = [each for each in svg.iter("text") if each.attrib["class"] in {"x", "y"} and each.text != "step"]
    across = sorted(
        (float(each.attrib["x"]) - 3.5 * len(each.text), float(each.attrib["x"]) + 3.5 * len(each.text))
        for each in texts
        if each.attrib["class"] == "x"
    )
    assert all(before[1] < after[0] for before, after in pairwise(across))
    assert across[-1][1] <= WIDTH
    down = sorted(float(each.attrib["y"]) for each in texts if each.attrib["class"] == "y")
    assert all(after - before > 12 for before, after in pairwise(down))


def test_attempts_are_lines_of_their_own_and_restarts_are_marked():
    """The earlier one is pale; nothing joins the two."""
    svg = line_chart(chart([(1, 3.0), (2, 2.0)], [(1, 3.1), (2, 2.1), (3, 1.0)], restarts=((2, "attempt 1 <begins>"),)))
    assert [len(path) for path in drawn(svg)] == [2, 3]
    assert svg.count('class="former"') == 1
    assert "<title>attempt 1 &lt;begins&gt;</title>" in svg


def test_a_spike_is_told_by_a_log_scale():
    """Which the title says; nothing is cut off."""
    points = [(step, 2 + 5 * math.exp(-step / 25)) for step in range(100)]
    spiked = chart([*points, (100, 4000.0)], may_be_log=True)
    assert "loss, log scale" in line_chart(spiked)
    assert facts(line_chart(spiked))[0]["data-max"] == "4000.0"
    assert "log scale" not in line_chart(chart(points, may_be_log=True))


def test_names_of_others_are_escaped():
    """In text and in attributes, without what acts on a terminal."""
    name = "<script>\x1b[2J\"'&\n"
    svg = line_chart(Chart(name, (Series(name, name, (((1, 1.0), (2, 2.0)),), name),), restarts=((1, name),)))
    parsed(svg)
    assert "<script" not in svg
    assert "\x1b" not in svg


def test_series_differ_by_more_than_colour():
    """The first thirty-five in colour or dashes, neighbours in both."""
    looks = [re.search(r'class="([^"]+)"><path', swatch(number))[1] for number in range(35)]
    assert len(set(looks)) == 35
    assert all(not set(before.split()[1:]) & set(after.split()[1:]) for before, after in pairwise(looks))
