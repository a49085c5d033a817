"""The row of a terminal that shows what ranks have begun to write."""

import fcntl
import os
import pty
import select
import struct
import termios
from types import SimpleNamespace

import pytest

from launcher.cli.text import run_status_line
from launcher.cli.text.log_format import Format, LineOptions
from launcher.logs.lines import PartialLine
from launcher.runs.record import RankPlace
from tests.conftest import PATIENCE_S

COLUMNS = 60
MARK = "<mark>"


class Terminal:
    def __init__(self, shown, stream):
        self.stream, self._shown, self.now_s = stream, shown, 1.0

    def begun(self, *states, ranks=None):
        ranks = range(len(states)) if ranks is None else ranks
        places = [RankPlace(rank, "10.0.0.1", 0, rank) for rank in range(8)]
        row = run_status_line.PartialLines(Format(LineOptions(), self.stream, places, range(8)), self.stream)
        begun = {rank: PartialLine(0, state) for rank, state in zip(ranks, states, strict=True)}
        assert not row.show(begun)  # it may be ended at the next moment
        self.now_s += run_status_line.SHOWN_AFTER_S
        return row, begun

    def seen(self, *states, ranks=None):
        row, begun = self.begun(*states, ranks=ranks)
        visible = row.show(begun)
        text = self.read()
        assert visible is bool(text)
        row.close()
        assert self.read() == ("\r\x1b[K" if visible else "")
        return text

    def read(self):
        self.stream.write(MARK)
        self.stream.flush()
        text = ""
        while not text.endswith(MARK):
            assert select.select([self._shown], [], [], PATIENCE_S)[0], f"only seen: {text!r}"
            text += os.read(self._shown, 1 << 16).decode()
        return text.removesuffix(MARK)


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    shown, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    os.set_blocking(shown, False)
    with os.fdopen(end, "w", encoding="utf-8") as stream:
        made = Terminal(shown, stream)
        monkeypatch.setattr(run_status_line, "time", SimpleNamespace(monotonic=lambda: made.now_s))
        yield made
    os.close(shown)


@pytest.mark.parametrize(("state", "seen"), [
    (b"more? ", "[3] more? "),
    (b"\t10%\t", "[3]  10% "),
    (b"\x1b[32m10%\x1b[0m", "[3] 10%"),
    (b"\x1b[2J10%\x07", "[3] 10%^G"),
    ("\u6f22".encode() * 60, "[3] " + "\u6f22" * 27),
    (b"\xff", "[3] \ufffd"),
    *((state, "") for state in (b"", b"   ", b"\x1b[0m", b"\x1b[K", b"\x1b[32m  \x1b[0m")),
])  # fmt: skip
def test_one_line_is_shown_as_it_is(terminal, state, seen):
    assert terminal.seen(state, ranks=[3]) == seen
    assert seen or terminal.seen(state, state) == ""


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
    assert terminal.seen(*states) == seen


def test_a_line_that_was_erased_is_drawn_again_at_once(terminal):
    """Not when the next state may be drawn: other ranks' lines may come all the time."""
    row, _ = terminal.begun(b"5%")
    for state in (b"6%", b"7%", b"8%"):
        assert row.show({0: PartialLine(0, state)})
        row.erase()
    assert terminal.read() == "[0] 6%\r\x1b[K" * 3


def test_a_terminal_that_takes_nothing_is_left_as_it_is(terminal):
    """Ctrl-S: nobody waits, and what is seen is drawn anew when it goes on."""
    row, _ = terminal.begun(b"5%")
    termios.tcflow(terminal.stream.fileno(), termios.TCOOFF)
    assert not row.show({0: PartialLine(0, b"6%")})
    termios.tcflow(terminal.stream.fileno(), termios.TCOON)
    assert row.show({0: PartialLine(0, b"7%")})
    assert terminal.read() in {"[0] 6%", "[0] 7%"}


def test_a_terminal_without_a_cursor_is_not_drawn_on(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert terminal.seen(b"5%") == ""


def test_a_line_that_was_ended_is_not_drawn_again(terminal):
    row, both = terminal.begun(b"half", b"other")
    assert row.show(both)
    assert "half" in terminal.read()
    row.erase()
    assert row.show({1: both[1]})
    assert "half" not in terminal.read()
    row.erase()
    assert not row.show({1: PartialLine(9, b"just begun")})
