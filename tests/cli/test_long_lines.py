"""Lines that come in pieces, as a person at a terminal sees them."""

import pytest

from launcher.cli.text.log_format import KEPT_CHARS, MARK, Beginnings
from launcher.logs.lines import Line, LineReader

BEGINNING = b"x" * KEPT_CHARS + MARK.encode()
SIZE = 300_000


def shown(beginnings, *chunks):
    """What is seen of these bytes of rank 0."""
    reader, offset, seen = LineReader(0), 0, []
    for chunk in chunks:
        seen += reader.lines(offset, chunk)
        offset += len(chunk)
    kept = [beginnings.of_line(line) for line in [*seen, *reader.last_line()]]
    return [line.raw for line in kept if line is not None]


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        (b"a\n" + b"x" * SIZE + b"\nb\nc", [b"a", BEGINNING, b"b", b"c"]),
        (b"x" * SIZE + b"\n" + b"x" * SIZE + b"\nend\n", [BEGINNING, BEGINNING, b"end"]),
        (b"x" * 50_000 + b"\nend", [b"x" * 50_000, b"end"]),
    ],
    ids=["one", "two", "one piece"],
)
def test_a_long_line_is_seen_once(text, seen):
    """Its beginning; what is before and behind it is whole, and so is a line that is one piece."""
    assert shown(Beginnings(), text) == seen


def test_a_progress_bar_goes_on_for_hours():
    assert len(shown(Beginnings(), b"10%\r" * SIZE)) > 4


def test_a_piece_that_was_chosen_alone_is_seen():
    pieces = [Line(0, number << 16, b"x" * (1 << 16), ends=False) for number in (3, 7, 8)]
    beginnings = Beginnings()
    assert [line and line.raw for line in map(beginnings.of_line, pieces)] == [BEGINNING, BEGINNING, None]


@pytest.mark.parametrize("end", [b"\n", b"x\n", b"x" * 70_000 + b"\n"], ids=len)
def test_blocks_are_cut_as_lines_are(end):
    """A block is whole lines, or a piece of one; other ranks' may stand between."""
    beginnings = Beginnings()
    blocks = [b"a\n", b"x" * 70_000, b"x" * 70_000, end + b"b\nc\n", b"d\n"]
    seen = []
    for block in blocks:
        seen.append(beginnings.of_block(0, block))
        assert beginnings.of_block(1, b"other\n") == b"other\n"
    assert seen == [b"a\n", BEGINNING, b"", b"b\nc\n", b"d\n"]


def test_a_progress_bar_in_blocks_goes_on():
    beginnings = Beginnings()
    assert all(beginnings.of_block(0, b"10%\r" * SIZE) for _ in range(3))


def test_a_character_is_not_torn():
    [seen] = shown(Beginnings(), "\u6f22".encode() * SIZE)
    assert seen.decode() == "\u6f22" * KEPT_CHARS + MARK
    assert len(shown(Beginnings(), b"\xff" * SIZE)) == 1
