"""Colours and line wrapping for all commands. No information is conveyed by colour only."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TextIO, TypedDict

import click

from launcher.cli.text.columns import columns_of
from launcher.core.frozen import frozen


class Look(TypedDict, total=False):
    fg: str
    bg: str
    bold: bool
    dim: bool


ERROR = Look(fg="red", bold=True)
WARNING = Look(fg="yellow", bold=True)
GOOD = Look(fg="green")
ACTIVE = Look(fg="cyan")
STRONG = Look(bold=True)
FAINT = Look(dim=True)
MATCH = Look(fg="black", bg="yellow")
ADDED, REMOVED = Look(fg="green"), Look(fg="red")
# Red and yellow are for errors and warnings.
_SOURCES = ("cyan", "green", "magenta", "blue")
OF_RANKS = (*(Look(fg=colour) for colour in _SOURCES), *(Look(fg=colour, bold=True) for colour in _SOURCES))

_MESSAGE = re.compile(r"^(?:(error)|(warning)|hint|note):(?= )", re.MULTILINE)
# An excerpt or a shell comment, except hints within it.
_QUOTING = re.compile(r"(?! +(?:error|warning|hint|note): )(?:\s|\d+ \| |# )")
_COMMAND = re.compile(r"\s*`[^`]+`\S*|\s*\S+")  # a command in backticks, or a word
_INDENT = re.compile(r" *(?:\| +)?")  # including the margin of quotations
_ENDED_BADLY = re.compile(r"exit code (?!0$)|SIG(?!TERM)|signal \d")
_STATES: Mapping[str, Look] = {
    "running": ACTIVE, "starting": ACTIVE, "preloading": ACTIVE, "restarting": WARNING, "ending": WARNING, "paused": WARNING,
    "finished": GOOD, "exit code 0": GOOD, "stopped": WARNING, "failed": ERROR, "hung": ERROR, "lost": ERROR, "gone": ERROR,
}  # fmt: skip


@frozen
class Screen:
    coloured: bool = False
    columns: int | None = None
    rows: int | None = None

    def paint(self, text: str, look: Look) -> str:
        return click.style(text, **look) if self.coloured and text and look else text

    def message(self, text: str) -> str:
        """Colour the labels of a message for stderr, such as `error:` and `hint:`, and wrap its lines."""

        def label(kind: re.Match[str]) -> str:
            return self.paint(kind[0], ERROR if kind[1] else WARNING if kind[2] else ACTIVE)

        return _MESSAGE.sub(label, self.prose(text))

    def prose(self, text: str) -> str:
        """Wrap lines of text at the terminal's width, except lines of excerpts."""
        if self.columns is None:
            return text
        return "\n".join(line if _QUOTING.match(line) else self.wrapped(line) for line in text.split("\n"))

    def wrapped(self, line: str) -> str:
        """Wrap a line between words at the terminal's width.

        A command in backticks is not split, so that it can be copied. A command longer than a line starts on a new
        line.
        """
        if self.columns is None or columns_of(click.unstyle(line)) <= self.columns:
            return line
        indent = _INDENT.match(line)
        further = f"{indent[0] if indent else ''}    "
        lines = [""]
        for piece in _COMMAND.findall(line):
            if lines[-1].strip() and columns_of(click.unstyle(lines[-1] + piece)) > self.columns:
                lines.append(further + piece.lstrip())
            else:
                lines[-1] += piece
        return "\n".join(lines)

    def rows_of(self, text: str) -> int:
        """Return the number of rows that a message takes on the terminal, or its lines if the width is unknown."""
        lines = self.prose(text).split("\n")
        if self.columns is None:
            return len(lines)
        return sum(max(1, -(-columns_of(click.unstyle(line)) // self.columns)) for line in lines)

    def state(self, text: str) -> str:
        look = WARNING if text.endswith((", slow", ", silent")) else _STATES.get(text, Look())
        return self.paint(text, ERROR if _ENDED_BADLY.match(text) else look)

    def description(self, text: str) -> str:
        """Colour the state at the beginning of a text such as "failed after 12 s"."""
        word = re.match(r"\w*", text)
        return f"{self.state(word[0])}{text[word.end() :]}" if word else text


PLAIN = Screen()


def takes_escapes(stream: TextIO) -> bool:
    """Return True if `stream` is a terminal that supports escape sequences for colours and cursor movement."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def screen_of(stream: TextIO, wanted: bool | None = None) -> Screen:
    """Return the capabilities of `stream`.

    Colours are used if `wanted` (--color) says so. If it is None, NO_COLOR, FORCE_COLOR or the kind of stream decides.
    """
    if wanted is None:
        is_forced = os.environ.get("FORCE_COLOR", "") not in {"", "0"}
        wanted = not os.environ.get("NO_COLOR") and (is_forced or takes_escapes(stream))
    columns = rows = None
    with suppress(OSError, ValueError):
        if stream.isatty():  # the size of this stream, not of stdout
            said = os.environ.get("COLUMNS", "")
            columns = int(said) if said.isdecimal() else None
            size = os.get_terminal_size(stream.fileno())
            columns, rows = columns or size.columns or None, size.lines or None
    return Screen(wanted, columns, rows)
