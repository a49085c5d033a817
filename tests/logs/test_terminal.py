"""Make lines safe for a terminal."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.logs.terminal import (
    certainly_printable,
    escaped,
    one_line,
    printable,
    printable_lines,
    printable_parts,
    shortened,
    without_colours,
)


@pytest.mark.parametrize(("line", "shown"), [
    ("plain\ttext é 漢", "plain\ttext é 漢"), ("", ""),
    ("\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m"),
    ("\x1b[31mopen", "\x1b[31mopen\x1b[0m"),
    ("\x1b[2J\x1b[Hclear", "clear"),
    ("\x1b]0;title\x07text", "text"),
    ("\x1b]8;;http://x\x1b\\link", "link"),
    ("10%\r20%\r100%", "100%"), ("10%\r20%\r", "20%"), ("bell\x07 null\x00 del\x7f", "bell^G null^@ del^?"),
    ("\x1bc reset", "^[c reset"),
    ("\x9b2J c1", "\\x9b2J c1"),
    ("\x1b[31", "^[[31"),
])  # fmt: skip
def test_what_is_shown(line, shown):
    """Colours and tabs stay; everything else that acts on a terminal is dropped or made visible."""
    assert printable(line) == shown


@given(st.text(st.sampled_from("\x1b[]0;31mHJ\x07\x08\r\x9b\\ax\x00é \t2\n\u2028")))
def test_nothing_dangerous_is_left(text):
    """After taking away the colours, no control character remains, whatever the text was made of.

    The quick way for many lines of harmless text changes nothing, and lines end at newlines only.
    """
    line = text.replace("\n", "")
    rest = re.sub(r"\x1b\[[0-9;:]*m", "", printable(line))
    assert not re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", rest)
    assert printable_parts(line)[-1] == printable(line)
    assert printable_lines(text) == [printable(line) for line in text.split("\n")]


def test_all_parts_of_text_that_is_overwritten():
    assert printable_parts("\r10%\r\x1b[31m20%\x07\r\r") == ["10%", "\x1b[31m20%^G\x1b[0m"]
    assert printable_parts("") == printable_parts("\r") == [""]


def test_text_of_others_on_one_line():
    text = "a:\n\t\x1b[31mb\x1b[2J"
    assert one_line(text) == "a: \x1b[31mb\x1b[0m"
    assert without_colours(one_line(text)) == "a: b"
    assert escaped(text) == "a:\\n\\t\\x1b[31mb\\x1b[2J"
    assert escaped("plain é") == "plain é"
    assert escaped("\udce9") == "\\udce9"


@pytest.mark.parametrize(
    ("more", "words"), [(1, "1 bytes"), (1023, "1023 bytes"), (64 << 10, "64 KiB"), (3 << 20, "3 MiB")]
)
def test_a_line_is_shown_to_a_limit(more, words):
    assert shortened("x" * 1000) == "x" * 1000
    assert shortened("x" * (1000 + more)) == "x" * 1000 + f"… {words} more"


def test_a_colour_is_neither_cut_nor_left_on():
    for before in range(990, 1001):
        shown = shortened("\x1b[1m" + "x" * (before - 4) + "\x1b[31m" + "y" * 50)
        text = without_colours(shown)
        assert shown.index("\x1b[0m…") > 0
        assert "\x1b" not in text


@pytest.mark.parametrize("text", ["\u202e rtl", "name \u2067x\u2069", "\u202a"])
def test_the_direction_of_text_is_not_changed(text):
    """A name could be shown as another one."""
    assert not certainly_printable(text.encode())
    assert printable(text) == "".join(f"\\u{ord(each):04x}" if ord(each) > 0x2000 else each for each in text)
    assert certainly_printable("… “quoted” \u2028".encode())
