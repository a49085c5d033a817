"""Unified diffs: applied to the one text they give the other, and they show little more than what changed."""

import re

from hypothesis import given
from hypothesis import strategies as st

from launcher.rank_table.fix import MAX_DIFF_LINES, Fixed

NO_END = "¶"
HEAD = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@\n")


def unified_diff(before, after, name):
    return Fixed(before.encode(), after.encode(), before, after, (), report=None).diff(name)


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
    diff = unified_diff(before, after, "x")
    assert bool(diff) is (before != after)
    assert patched(before, diff) == after


def test_last_line_without_its_end_gets_the_usual_remark():
    assert unified_diff("1\n2\n3\n4\n5", "1\n2\n3\n4\nfive\n", "x").endswith(
        "@@ -2,4 +2,4 @@\n 2\n 3\n 4\n-5\n\\ No newline at end of file\n+five\n"
    )


def test_only_a_line_feed_ends_a_line():
    assert unified_diff("a\u2028b\x0bc\n", "a\u2028b\x0bd\n", "x").endswith("-a\u2028b\x0bc\n+a\u2028b\x0bd\n")


def test_of_many_lines_the_diff_is_left_to_diff():
    before = "".join(f"{number}\n" for number in range(MAX_DIFF_LINES))
    assert "-7\n+seven\n" in unified_diff(before, before.replace("7\n", "seven\n", 1), "x")
    shown = unified_diff(f"{before}end\n", f"{before}end", "x")
    assert shown == (
        "x: 1 of 5,001 lines change, too many to show here\nhint: run `tlaunch table fix - --write < x | diff x -`\n"
    )
