"""Lines of logs as text, for programs and people; those that come in pieces, as a person at a terminal sees them."""

import io
import json

import pytest

from launcher.cli.text.log_format import KEPT_CHARS, MARK, Beginnings, Format, LineOptions
from launcher.logs.lines import PIECE_BYTES, Line, LineReader
from launcher.runs.record import RankPlace

PLACES = [RankPlace(rank, "10.0.0.1", 0, 4 + rank) for rank in range(2)]
LONG = "é" * PIECE_BYTES + "x"  # three pieces


def shape(ranks=(0, 1), **look):
    return Format(LineOptions(**look), io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), PLACES, ranks)


def pieces(rank, text):
    reader = LineReader(rank)
    return [*reader.lines(0, text.encode()), *reader.last_line()]


def test_another_rank_begins_a_line_of_its_own():
    first, second, *rest = pieces(0, f"{LONG}\n")
    assert rest
    told = shape().lines([first, Line(1, 0, b"other"), second, *rest]).decode().splitlines()
    assert [line[:4] for line in told] == ["[0] ", "[1] ", "[0] "]
    assert "".join(line[4:] for line in told if line.startswith("[0]")) == LONG


def test_states_of_a_progress_bar_are_lines():
    made = shape([0])
    assert made.lines([Line(0, 0, b"1%\r2%", ends=False), Line(0, 5, b"\r3%")]) == b"2%\n3%\n"
    assert made.block(0, b"1%\r2%") + made.block(0, b"\r3%\n") == b"2%\n3%\n"


@pytest.mark.parametrize("text", ["x", "\x07"], ids=["harmless", "made harmless"])
def test_blocks_in_pieces_are_one_line(text):
    made = shape()
    told = [made.block(*block) for block in [(0, b"a\nb\n"), (0, text.encode()), (0, b"y\n"), (0, b"z"), (0, b"\n")]]
    shown = {"x": "x", "\x07": "^G"}[text]
    assert b"".join(told).decode() == f"[0] a\n[0] b\n[0] {shown}y\n[0] z\n"
    told = [made.block(*block) for block in [(0, b"a"), (1, b"other\n"), (0, b"b\nc"), (1, b"d")]]
    assert b"".join([*told, made.end()]) == b"[0] a\n[1] other\n[0] b\n[0] c\n[1] d\n"


def test_json_tells_of_a_piece_that_it_goes_on():
    told = [json.loads(line) for line in shape(as_json=True).lines(pieces(0, f"a\n{LONG}\nb\n")).splitlines()]
    assert [line.get("ends", True) for line in told] == [True, False, False, True, True]
    assert "".join(line["text"] for line in told) == f"a{LONG}b"


def test_a_time_is_formatted_as_any_field():
    line = Line(1, 0, b"x", 0)
    hour = shape(prefix="{time:.2}").lines([line]).decode()[:2]
    assert hour.isdecimal()
    assert shape(prefix="{{time}} {device:02d} ").lines([line]) == b"{time} 05 x\n"
    assert shape(prefix="{time:>3}|").lines([Line(1, 0, b"x")]) == b"  -|x\n"


# --- the beginnings of long lines ---

BEGINNING = b"x" * KEPT_CHARS + MARK.encode()
SIZE = 300_000


def shown(beginnings, *chunks):
    reader, offset, seen = LineReader(0), 0, []
    for chunk in chunks:
        seen += reader.lines(offset, chunk)
        offset += len(chunk)
    kept = [beginnings.of_line(line) for line in [*seen, *reader.last_line()]]
    return [line.raw for line in kept if line is not None]


@pytest.mark.parametrize(("text", "seen"), [
    (b"a\n" + b"x" * SIZE + b"\nb\nc", [b"a", BEGINNING, b"b", b"c"]),
    (b"x" * SIZE + b"\n" + b"x" * SIZE + b"\nend\n", [BEGINNING, BEGINNING, b"end"]),
    (b"x" * 50_000 + b"\nend", [b"x" * 50_000, b"end"]),
], ids=["one", "two", "one piece"])  # fmt: skip
def test_a_long_line_is_seen_once(text, seen):
    assert shown(Beginnings(), text) == seen


def test_a_progress_bar_goes_on_for_hours():
    assert len(shown(Beginnings(), b"10%\r" * SIZE)) > 4
    beginnings = Beginnings()
    assert all(beginnings.of_block(0, b"10%\r" * SIZE) for _ in range(3))


def test_a_piece_that_was_chosen_alone_is_seen():
    pieces = [Line(0, number << 16, b"x" * (1 << 16), ends=False) for number in (3, 7, 8)]
    beginnings = Beginnings()
    assert [line and line.raw for line in map(beginnings.of_line, pieces)] == [BEGINNING, BEGINNING, None]


@pytest.mark.parametrize("end", [b"\n", b"x\n", b"x" * 70_000 + b"\n"], ids=len)
def test_blocks_are_cut_as_lines_are(end):
    beginnings = Beginnings()
    blocks = [b"a\n", b"x" * 70_000, b"x" * 70_000, end + b"b\nc\n", b"d\n"]
    seen = []
    for block in blocks:
        seen.append(beginnings.of_block(0, block))
        assert beginnings.of_block(1, b"other\n") == b"other\n"
    assert seen == [b"a\n", BEGINNING, b"", b"b\nc\n", b"d\n"]


def test_a_character_is_not_torn():
    [seen] = shown(Beginnings(), "\u6f22".encode() * SIZE)
    assert seen.decode() == "\u6f22" * KEPT_CHARS + MARK
    assert len(shown(Beginnings(), b"\xff" * SIZE)) == 1


TORCH = "[rank1]: Traceback\n[rank1]:   File\n[rank0]: another's\n[rank1]:[W1127 12:00:00 x]\nsays [rank1]: x\n"
UNMARKED = ["Traceback", "  File", "[rank0]: another's", "[W1127 12:00:00 x]", "says [rank1]: x"]


@pytest.mark.parametrize("harmful", ["", "\x07\n"])
@pytest.mark.parametrize(("prefix", "seen", "is_left_out"), [
    (None, "[1] ", True), ("{global_rank:02}|", "01|", True), ("{device} ", "5 ", False), ("", "", False),
])  # fmt: skip
def test_torchs_mark_of_a_rank_is_left_out_behind_the_same_rank(prefix, seen, is_left_out, harmful):
    expected = [f"{seen}{line}" for line in (UNMARKED if is_left_out else TORCH.splitlines())]
    read = shape(prefix=prefix).lines(pieces(1, TORCH)).decode()
    unread = shape(prefix=prefix).block(1, (TORCH + harmful).encode()).decode()
    assert [read.splitlines(), unread.splitlines()[: len(expected)]] == [expected, expected]
    as_json = shape(as_json=True).lines(pieces(1, TORCH)).splitlines()
    assert [json.loads(line)["text"] for line in as_json] == TORCH.splitlines()
