"""The colours of lines that ranks have written."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.cli.text.log_format import LineStyle, painted
from launcher.cli.text.style import ERROR, MATCH, screen_of
from launcher.logs.select import Matcher
from launcher.logs.terminal import without_colours

from .test_logs import recorded  # noqa: F401 - a fixture

ON, OFF = "\x1b[30m\x1b[43m", "\x1b[0m"
RED = "\x1b[31m"


def styled(text, *patterns):
    shown = LineStyle(list(map(Matcher, patterns)))(text)
    for level in (f"{RED}\x1b[1m", "\x1b[33m\x1b[1m"):
        shown = re.sub(re.escape(level) + r"(.*?)\x1b\[0m", r"[\1]", shown)
    return re.sub(re.escape(ON) + r"(.*?)\x1b\[0m", r"<\1>", shown)


@pytest.mark.parametrize(("text", "patterns", "seen"), [
    ("loss 1 loss 2", ["loss"], "<loss> 1 <loss> 2"),
    ("abcdef", ["bc", "cd", "f", "^a"], "<abcd>e<f>"),
    ("abc", ["x*", "$"], "abc"),
    ("12:00 ERROR no", [], "12:00 [ERROR] no"), ("x.py:3: UserWarning: old", ["old"], "x.py:3: User[Warning]: <old>"),
    ("12:00 INFO yes", [], "12:00 INFO yes"), ("W1121 12:00:00.1 x", [], "[W]1121 12:00:00.1 x"),
    # What was searched for is more important.
    ("12:00 ERROR no", ["ROR"], "12:00 ER<ROR> no"),
])  # fmt: skip
def test_matches_and_levels(text, patterns, seen):
    assert styled(text, *patterns) == seen


def test_colours_of_a_line_go_on_behind_a_match():
    """And whoever has coloured the line has its level as they like."""
    line = f"a{RED}bcd{OFF}ef ERROR"
    assert painted(line, [(1, 3, MATCH)]) == f"a{RED}{OFF}{ON}bc{OFF}{RED}d{OFF}ef ERROR"
    assert without_colours(LineStyle([Matcher("c.*e")])(line)) == "abcdef ERROR"
    assert LineStyle()(line) == line


@given(st.lists(st.sampled_from(["a", "b", RED, OFF])).map("".join), st.lists(st.integers(1, 4), max_size=8))
def test_nothing_but_colours_is_added(text, lengths):
    spans, at = [], 0
    for gap, length in zip(lengths[::2], lengths[1::2], strict=False):
        spans.append((at + gap - 1, at + gap - 1 + length, ERROR))
        at += gap - 1 + length
    plain = without_colours(text)
    spans = [(start, min(end, len(plain)), look) for start, end, look in spans if start < len(plain)]
    shown = painted(text, spans)
    assert without_colours(shown) == plain
    assert shown.count("\x1b[1m") >= len(spans)


@pytest.mark.parametrize(
    ("variables", "wanted", "expected"),
    [({}, None, False), ({"FORCE_COLOR": "1"}, None, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, None, False),
     ({"NO_COLOR": "1"}, True, True), ({"FORCE_COLOR": "1"}, False, False)],
)  # fmt: skip
def test_who_decides_on_colours(monkeypatch, tmp_path, variables, wanted, expected):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.setenv(name, variables.get(name, ""))
    with (tmp_path / "x").open("w") as stream:
        assert (screen_of(stream, wanted).coloured, screen_of(stream, wanted).columns) == (expected, None)


LOGS = ["loss 1\nWARNING: slow\n", "loss 2\nend\n"]


@pytest.mark.parametrize("options", [(), ("--merge",), ("-n", "9"), ("--collapse",)])
def test_ranks_and_matches_have_colours_on_a_terminal(recorded, launcher, options):  # noqa: F811
    recorded(LOGS)
    plain = launcher.call("logs", *options).stdout
    shown = launcher.seen("logs", *options, "-H", "LOSS", "-i")
    assert without_colours(shown) == plain
    assert shown.count(f"{ON}loss{OFF}") == plain.count("loss")
    assert f"\x1b[36m[0] {OFF}" in shown
    assert f"\x1b[32m[1] {OFF}" in shown
    assert f"\x1b[33m\x1b[1mWARNING{OFF}" in shown
    assert launcher.seen("logs", *options, "-H", "loss", NO_COLOR="1") == plain
    assert launcher.call("logs", *options, "-H", "loss").stdout == plain
    coloured = launcher.call("logs", *options, "-H", "LOSS", "-i", "--color").stdout
    assert coloured == shown


def test_what_grep_finds_is_marked_too(recorded, launcher):  # noqa: F811
    recorded(LOGS)
    assert launcher.seen("logs", "--grep", "slow").count(ON) == 1
    assert launcher.call("logs", "--grep", "nothing", "-H", "loss").returncode == 1
    assert launcher.call("logs", "--tail", "1", "-H", "loss").stdout == "[0] WARNING: slow\n[1] end\n"
