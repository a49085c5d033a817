"""The row of a terminal that shows what ranks have begun to write."""

import fcntl
import os
import pty
import select
import struct
import termios
import time

import pytest

from launcher.cli.text.foot import SHOWN_AFTER_S, PartialLines
from launcher.cli.text.log_format import Format, Look
from launcher.logs.lines import Begun
from launcher.runs.record import Place

COLUMNS = 60
PATIENCE_S = 60
MARK = "<mark>"


@pytest.fixture
def terminal(monkeypatch):
    """The two ends of a terminal: a stream, and a descriptor of what it is shown."""
    monkeypatch.setenv("TERM", "xterm")
    shown, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    os.set_blocking(shown, False)
    with os.fdopen(slave, "w", encoding="utf-8") as stream:
        yield stream, shown
    os.close(shown)


def row(terminal, *states, ranks=None):
    """What is seen in the end of lines that ranks have begun, each for long enough."""
    stream, _ = terminal
    ranks = range(len(states)) if ranks is None else ranks
    places = [Place(rank, "10.0.0.1", 0, rank) for rank in range(8)]
    unfinished = PartialLines(Format(Look(), stream, places, range(8)), stream)
    begun = {rank: Begun(0, state) for rank, state in zip(ranks, states, strict=True)}
    assert not unfinished.show(begun)  # it may be ended at the next moment
    time.sleep(SHOWN_AFTER_S)
    visible = unfinished.show(begun)
    text = read(terminal)
    assert visible is bool(text)
    unfinished.close()
    assert read(terminal) == ("\r\x1b[K" if visible else "")
    return text


def read(terminal):
    """All that was written to it so far: it arrives in its own time, and a mark behind it."""
    stream, shown = terminal
    stream.write(MARK)
    stream.flush()
    text = ""
    while not text.endswith(MARK):
        assert select.select([shown], [], [], PATIENCE_S)[0], f"only seen: {text!r}"
        text += os.read(shown, 1 << 16).decode()
    return text.removesuffix(MARK)


@pytest.mark.parametrize(("state", "seen"), [
    (b"more? ", "[3] more? "),
    (b"\t10%\t", "[3]  10% "),
    (b"\x1b[32m10%\x1b[0m", "[3] 10%"),
    (b"\x1b[2J10%\x07", "[3] 10%^G"),
    ("\u6f22".encode() * 60, "[3] " + "\u6f22" * 27),
    (b"\xff", "[3] \ufffd"),
])  # fmt: skip
def test_one_line_is_shown_as_it_is(terminal, state, seen):
    assert row(terminal, state, ranks=[3]) == seen


@pytest.mark.parametrize("state", [b"", b"   ", b"\x1b[0m", b"\x1b[K", b"\x1b[32m  \x1b[0m"])
def test_nothing_to_see_is_not_shown(terminal, state):
    assert row(terminal, state) == ""
    assert row(terminal, state, state) == ""


@pytest.mark.parametrize(("states", "seen"), [
    ([b"5%", b"7%", b"6%"], "[0-2] 5..7%"),
    ([b"5%|#    | 1/20", b"\x1b[1m10%|##   | 2/20"], "[0-1] 5..10%  1..2/20"),
    (["5%|\u2588  |".encode(), "10%|\u2588\u258f |".encode()], "[0-1] 5..10% "),
    ([b"  0%|          | 0/20", b"5%|#         | 1/20"], "[0-1] 0..5%  0..1/20"),
    ([b"5%", b"more? ", b"6%"], "[0,2] 5..6%  [1] more?"),
    ([b"run a || b? "] * 2, "[0-1] run a || b?"),
    ([b"| | 5 |", b"| | 6 |"], "[0-1] | | 5..6 |"),
])  # fmt: skip
def test_lines_of_several_ranks_are_folded(terminal, states, seen):
    """Bars go, whose lengths differ before numbers do; words stay."""
    assert row(terminal, *states) == seen


def test_a_line_that_was_erased_is_drawn_again_at_once(terminal, monkeypatch):
    """Not when the next state may be drawn: other ranks' lines may come all the time."""
    stream, _ = terminal
    unfinished = PartialLines(Format(Look(), stream, [], [0]), stream)
    unfinished.show({0: Begun(0, b"5%")})
    time.sleep(SHOWN_AFTER_S)
    monkeypatch.setattr("launcher.cli.text.foot.REDRAWN_EVERY_S", 1000.0)
    for state in (b"6%", b"7%", b"8%"):
        assert unfinished.show({0: Begun(0, state)})
        unfinished.erase()
    assert read(terminal) == "6%\r\x1b[K" * 3


def test_a_terminal_that_takes_nothing_is_left_as_it_is(terminal):
    """Ctrl-S: nobody waits, and what is seen is drawn anew when it goes on."""
    stream, _ = terminal
    unfinished = PartialLines(Format(Look(), stream, [], [0]), stream)
    unfinished.show({0: Begun(0, b"5%")})
    time.sleep(SHOWN_AFTER_S)
    termios.tcflow(stream.fileno(), termios.TCOOFF)
    assert not unfinished.show({0: Begun(0, b"6%")})
    termios.tcflow(stream.fileno(), termios.TCOON)
    assert unfinished.show({0: Begun(0, b"7%")})
    assert read(terminal) in {"6%", "7%"}


def test_a_terminal_without_a_cursor_is_not_drawn_on(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert row(terminal, b"5%") == ""


def test_a_line_that_was_ended_is_not_drawn_again(terminal):
    stream, _ = terminal
    unfinished = PartialLines(Format(Look(), stream, [], [0, 1]), stream)
    both = {0: Begun(0, b"half"), 1: Begun(0, b"other")}
    unfinished.show(both)
    time.sleep(SHOWN_AFTER_S)
    assert unfinished.show(both)
    assert "half" in read(terminal)
    unfinished.erase()
    assert unfinished.show({1: both[1]})
    assert "half" not in read(terminal)
    unfinished.erase()
    assert not unfinished.show({1: Begun(9, b"just begun")})
