"""Colours of what commands say: where there are some, and that the words are the same without."""

import fcntl
import os
import re
import struct
import termios

import click
import pytest

from launcher.cli.text.columns import aligned
from launcher.cli.text.style import ERROR, PLAIN, Screen, screen_of
from launcher.cli.text.verdict_text import render
from launcher.core.events import Cause
from launcher.core.run_report import Report
from launcher.logs.terminal import without_colours
from tests.programs import acted_run

from .conftest import read_until
from .failed_run import failed_twice, verdict
from .test_table_fix import BROKEN

RED, GREEN, YELLOW, BOLD, DIM, OFF = "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[1m", "\x1b[2m", "\x1b[0m"
SCREEN = Screen(coloured=True)


@pytest.mark.parametrize(("text", "seen"), [
    ("error: a\nhint: error: b", f"{RED}{BOLD}error:{OFF} a\n\x1b[36mhint:{OFF} error: b"),
    ("warning: a", f"{YELLOW}{BOLD}warning:{OFF} a"), ("an error: a", "an error: a"), ("errors: a", "errors: a"),
])  # fmt: skip
def test_a_message_shows_its_kind(text, seen):
    assert (SCREEN.message(text), PLAIN.message(text)) == (seen, text)


@pytest.mark.parametrize(("state", "colour"), [
    ("failed", RED), ("finished", GREEN), ("running, slow", YELLOW), ("exit code 0", GREEN), ("exit code 01", RED),
    ("SIGKILL (signal 9)", RED), ("signal 64", RED), ("SIGTERM (signal 15)", ""), ("ended", ""), ("", ""),
])  # fmt: skip
def test_a_state_has_its_colour(state, colour):
    shown = SCREEN.state(state)
    assert (without_colours(shown), shown.startswith(colour), OFF in shown) == (state, True, bool(colour))


def test_a_clause_begins_with_a_state():
    assert SCREEN.description("lost: its agent was killed") == f"{RED}{BOLD}lost{OFF}: its agent was killed"
    assert SCREEN.description("on another machine") == "on another machine"


def test_colours_of_a_table_take_no_column():
    rows = [("a", "failed", "1"), ("bb", "ok failed", "failed")]
    plain = aligned(("N", "STATE", "X"), rows, right=frozenset({"X"}))
    paint = {"X": lambda text: SCREEN.paint(text, ERROR)}
    shown = aligned(("N", "STATE", "X"), rows, right=frozenset({"X"}), paint=paint)
    assert list(map(without_colours, shown)) == plain
    assert shown[2].endswith(f" {RED}{BOLD}failed{OFF}")


@pytest.mark.parametrize("columns", [20, 40, 80, 200, None])
def test_no_word_of_a_verdict_is_broken(columns):
    """A row holds as many as fit; what goes on is indented, and quoted as its beginning."""
    found = verdict("ValueError: a message of no few words, with a-long-one", "Traceback:\n  raise " + "Xyz " * 99)
    lines = list(render(found, lambda _: "server 127.0.0.1, device 3", screen=Screen(columns=columns), lead="error: "))
    whole = list(render(found, lambda _: "server 127.0.0.1, device 3", lead="error: "))
    assert list(map(words, lines)) == list(map(words, whole))
    rows = [row for line in lines for row in line.split("\n")]
    assert all(len(row) <= (columns or 999) or len(words(row)) == 1 for row in rows)
    (raised,) = [line.split("\n") for line in lines if "raise" in line]
    assert (len(raised) > 1) is (columns is not None)
    assert all(row.startswith("  |       Xyz") for row in raised[1:])


@pytest.mark.parametrize("columns", [30, 40, 80, 200])
def test_no_word_of_a_message_is_broken(columns):
    """Nor a command, also of more than a row; what is quoted stays as it is, and colours take no place."""
    excerpt = "   14 |      " + "x " * 120 + "\n       |      ^^^"
    text = f"error: a message {'of many words ' * 9}\n{excerpt}\n      hint: {'write it ' * 20}`tlaunch logs RUN --rank 3` at once"
    for coloured in (False, True):
        rows = click.unstyle(Screen(coloured, columns).message(text)).split("\n")
        assert [row for row in rows if "|" in row] == excerpt.split("\n")
        rows = [row for row in rows if "|" not in row]
        assert all(len(row) <= columns or row.strip().startswith("`tlaunch") for row in rows)
        assert [word for row in rows for word in row.split()] == text.replace(excerpt, "").split()
        assert any("`tlaunch logs RUN --rank 3`" in row for row in rows)
    for name in ("a name of words", "x" * (columns - 6)):
        painted = f"{click.style(name, bold=True)}: {'word `tlaunch logs RUN` ' * 30}"
        plain = Screen(False, columns).wrapped(click.unstyle(painted))
        assert click.unstyle(Screen(True, columns).wrapped(painted)) == plain


def test_wide_characters_take_two_columns():
    rows = Screen(columns=20).wrapped(f"key {'键' * 6} and {'键' * 5} and").split("\n")
    assert rows == ["key 键键键键键键 and", "    键键键键键 and"]


def test_a_comment_for_a_shell_stays_in_its_line():
    """Its rest would be a command when it is pasted."""
    comment = f"# MASTER_PORT 29500 is an {'example ' * 30}"
    assert Screen(columns=40).message(f"note: one\n{comment}") == f"note: one\n{comment}"


def test_rows_of_explain_and_validate_fit_a_terminal(launcher, sample_tables):
    command = ("explain", "--devices", "2", "--", "true")
    rows = launcher.seen(*command, COLUMNS="80").splitlines()
    assert all(len(row) <= 80 or row.split()[0] in {"TLAUNCH_RUN_DIR", "TLAUNCH_HEARTBEAT_FILE"} for row in rows)
    plain, shown = (
        re.sub(r"\d{8}-\d{6}", "", text).split() for text in (launcher.call(*command).stdout, " ".join(rows))
    )
    assert plain == shown
    text = (sample_tables / "rank_table_8pcs.json").read_text().replace('"device_id": "1"', '"device_id": "0"')
    launcher.write("a table with quite a long name.json", text)
    shown = launcher.seen("validate", "a table with quite a long name.json", COLUMNS="60")
    assert all(len(click.unstyle(row)) <= 60 for row in shown.splitlines() if "|" not in row)
    shown = launcher.seen("validate", "a table with quite a long name.json", COLUMNS="30")
    assert "\x1b[1ma table with quite a long\n    name.json:" in shown


def words(text):
    return text.replace("|", "").split()


def test_the_cause_stands_out_from_its_consequences():
    shown = list(render(verdict("Boom: no"), screen=SCREEN, lead="error: "))
    assert list(map(without_colours, shown)) == list(render(verdict("Boom: no"), lead="error: "))
    assert shown[0] == f"error: {BOLD}rank 1: Boom: no, at a.py:3 in f{OFF}"
    followed = [line.startswith(DIM) for line in shown if "consequences" in line or "ConnectionError" in line]
    assert followed == [True, True]


@pytest.mark.parametrize(("command", "coloured"), [
    (["ps", "--all"], [f"{RED}{BOLD}failed"]), (["status", "a"], [f"{RED}{BOLD}failed", f"{RED}{BOLD}exit code 1"]),
    (["why", "a"], [f"{RED}{BOLD}failed", f"{BOLD}rank 1: Boom: no", f"{DIM}consequences:"]),
    (["table", "fix", "table.json"], [f"{BOLD}--- table.json", f'{RED}-  "server_count"', f'{GREEN}+  "server_count"']),
], ids=lambda each: each[0])  # fmt: skip
def test_colours_are_for_terminals_and_say_nothing_alone(launcher, command, coloured):
    report = Report("a", 0, Cause.FAILED, 1, 1, 2, ())
    acted_run.make(launcher.runs / "a", failed_twice(verdict("Boom: no"), verdict("Boom: no")), report=report)
    launcher.write("table.json", BROKEN)
    plain = launcher.call(*command).stdout
    assert "\x1b" not in plain
    for shown in (launcher.seen(*command), launcher.call(*command, env={"FORCE_COLOR": "1"}).stdout):
        assert [each for each in coloured if each not in shown] == []
        assert steady(without_colours(shown)) == steady(plain)
    assert "\x1b" not in launcher.seen(*command, NO_COLOR="1")
    assert "\x1b" not in launcher.seen(*command, TERM="dumb")


def test_the_table_of_top_is_coloured_in_a_pipe_where_that_is_asked_for(launcher):
    acted_run.make(launcher.runs / "a", failed_twice(verdict("Boom: no"), verdict("Boom: no")))
    plain, coloured = (launcher.call("top", "a", env={"FORCE_COLOR": value}).stdout for value in ("", "1"))
    assert "\x1b" not in plain
    assert "\x1b[1;31mexit code 1" in coloured
    assert steady(without_colours(coloured)) == steady(plain)


@pytest.mark.parametrize(("value", "coloured"), [("1", True), ("0", False), ("", False), ("3", True)])
def test_colours_may_be_forced(launcher, value, coloured):
    told = launcher.call("why", "nowhere", env={"FORCE_COLOR": value}, code=2).stderr
    assert told.startswith(f"{RED}{BOLD}error:{OFF} " if coloured else "error: ")
    assert ("\x1b" in told) is coloured


@pytest.mark.parametrize("columns", ["abc", "-4", "0", "", "60"])
def test_the_width_of_a_terminal_is_known_whatever_columns_says(monkeypatch, columns):
    parent, child = os.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 90, 0, 0))
    monkeypatch.setenv("COLUMNS", columns)
    with os.fdopen(parent, "rb"), os.fdopen(child, "w") as stream:
        assert screen_of(stream).columns == (60 if columns == "60" else 90)


def steady(text):
    return re.sub(r"[\d.]+ (ms|s|min|h|d)\b( [\d.]+ s)?", "<time>", " ".join(text.split()))


def test_a_verdict_is_set_apart_on_a_terminal(launcher):
    """From the lines of rank 0, by a blank line; no word of it is broken."""
    program = "import sys, time; print('of rank 0', flush=True); sys.exit('one ' * 40)"
    parent, child = os.openpty()
    process = launcher.start(
        "run", "--devices", 1, "--", "python", "-c", program, stdout=child, stderr=child,
        env={"TERM": "xterm", "COLUMNS": "60", "NO_COLOR": "", "FORCE_COLOR": ""},
    )  # fmt: skip
    os.close(child)
    shown = read_until(parent, None)
    os.close(parent)
    assert process.wait() == 1
    lines = without_colours(shown.decode().replace("\r\n", "\n")).split("\n")
    (at,) = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    assert lines[at - 1].endswith("\x1b[K") or not lines[at - 1]
    assert "one one one" in lines[at]
    assert set(" ".join(lines[at + 1 : at + 3]).split()) <= {"one", "one,", "at", "<string>:1", "in", "<module>"}
