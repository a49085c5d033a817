"""Unified diffs: applied to the one text they give the other, and they show little more than what changed."""

from __future__ import annotations

import difflib
import re

from hypothesis import given
from hypothesis import strategies as st

from launcher.rank_table.line_diff import unified_diff

NO_END = "¶"
HEAD = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@\n")


def patched(text, diff):
    """Apply a unified diff as `patch` does, every context line checked."""
    lines, out, at = text.splitlines(keepends=True), [], 0
    body = re.split(r"(?<=\n)", diff.replace("\n\\ No newline at end of file\n", NO_END + "\n"))[2:-1]
    while body:
        start, count, new_start, new_count = HEAD.fullmatch(body.pop(0)).groups("1")
        first = int(start) - (count != "0")
        out += lines[at:first]
        assert len(out) == int(new_start) - (new_count != "0")
        at, made = first, 0
        while at < first + int(count) or made < int(new_count):
            mark, line = body[0][0], body.pop(0)[1:]
            line = line.removesuffix(NO_END + "\n")
            if mark in " -":
                assert line == lines[at]
                at += 1
            if mark in " +":
                out.append(line)
                made += 1
    return "".join(out + lines[at:])


TEXTS = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "{\n", "}\r\n", "1\n", "2\n", "3\n"]), max_size=40).flatmap(
    lambda lines: st.sampled_from(["".join(lines), "".join([*lines, "end"])])
)


@given(TEXTS, TEXTS)
def test_diff_turns_one_text_into_the_other(before, after):
    """Whatever two texts look like, the diff is exactly what `patch` needs."""
    diff = unified_diff(before, after, "x")
    assert bool(diff) is (before != after)
    assert patched(before, diff) == after


def test_small_diff_is_the_one_that_everybody_knows():
    """One changed line is shown between three lines of context, one that lost its end with the usual remark."""
    before = "".join(f"{number}\n" for number in range(20))
    after = before.replace("7\n", "seven\n", 1).removesuffix("\n")
    expected = difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), "x", "x")
    shown = [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in expected]
    assert unified_diff(before, after, "x") == "".join(shown)


def test_only_a_line_feed_ends_a_line():
    """Characters at which Python's splitlines breaks are part of a line."""
    assert unified_diff("a\u2028b\x0bc\n", "a\u2028b\x0bd\n", "x").endswith("-a\u2028b\x0bc\n+a\u2028b\x0bd\n")


def test_great_many_changes_are_found_one_by_one():
    """Of 20,000 entries of which every second line changed, the others are still shown as unchanged."""
    before = "".join(f"id {number}\n rank\n" for number in range(20_000))
    diff = unified_diff(before, before.replace(" rank", ' "rank"'), "x")
    assert sum(line.startswith("-") for line in diff.splitlines()) == 20_001
    assert patched(before, diff) == before.replace(" rank", ' "rank"')


def test_text_that_changed_throughout_is_replaced_as_a_whole():
    """Thousands of lines without one in common are not compared with each other."""
    before, after = "".join(f"a{n}\n" for n in range(5_000)), "".join(f"b{n}\n" for n in range(5_000))
    diff = unified_diff(before, after, "x")
    assert diff.startswith("--- x\n+++ x\n@@ -1,5000 +1,5000 @@\n-a0\n-a1\n")
    assert patched(before, diff) == after
