"""The palette of all commands: which words are coloured, how, and on which streams. Words say the same without it."""

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
    """The colours and weight of a text, as `click.style` takes them."""

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
_QUOTING = re.compile(
    r"(?! +(?:error|warning|hint|note): )(?:\s|\d+ \| |# )"
)  # an excerpt, a shell's comment; a hint within it is words
_COMMAND = re.compile(r"\s*`[^`]+`\S*|\s*\S+")  # a command, or another word
_INDENT = re.compile(r" *(?:\| +)?")  # also of what is quoted
_ENDED_BADLY = re.compile(r"exit code (?!0$)|SIG(?!TERM)|signal \d")
_STATES: Mapping[str, Look] = {
    "running": ACTIVE, "starting": ACTIVE, "preloading": ACTIVE, "restarting": WARNING, "ending": WARNING, "paused": WARNING,
    "finished": GOOD, "exit code 0": GOOD, "stopped": WARNING, "failed": ERROR, "hung": ERROR, "lost": ERROR, "gone": ERROR,
}  # fmt: skip


@frozen
class Screen:
    """The abilities of a stream: whether it shows colours, and its columns where it is a terminal."""

    coloured: bool = False
    columns: int | None = None

    def paint(self, text: str, look: Look) -> str:
        return click.style(text, **look) if self.coloured and text and look else text

    def message(self, text: str) -> str:
        """Return what is said on stderr, with the kind of each line in its colour: `error: ...`, `hint: ...`.

        Lines too long for a terminal are broken between words, as in `prose`.
        """
        text = self.prose(text)
        if not self.coloured:
            return text
        return _MESSAGE.sub(
            lambda kind: self.paint(kind[0], ERROR if kind[1] else WARNING if kind[2] else ACTIVE), text
        )

    def prose(self, text: str) -> str:
        """Return lines, of which those that are words and not excerpts of something are broken between words."""
        if self.columns is None:
            return text
        return "\n".join(line if _QUOTING.match(line) else self.wrapped(line) for line in text.split("\n"))

    def wrapped(self, line: str) -> str:
        """Return a line of words in as many lines as the terminal needs, so that it breaks none of them.

        A command in backticks stays whole, so that it can be copied: one that is longer than a line begins one, and is
        left to the terminal.
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

    def state(self, text: str) -> str:
        """Return the state of a run or rank, or how a process ended, in its colour."""
        badly = _ENDED_BADLY.match(text) is not None
        return self.paint(
            text, ERROR if badly else WARNING if text.endswith((", slow", ", silent")) else _STATES.get(text, Look())
        )

    def description(self, text: str) -> str:
        """Return a clause that begins with a run's state, "failed after 12 s", with that in its colour."""
        word = re.match(r"\w*", text)
        return f"{self.state(word[0])}{text[word.end() :]}" if word else text


PLAIN = Screen()


def takes_escapes(stream: TextIO) -> bool:
    """Return whether `stream` is a terminal that obeys escape sequences: it shows colours, and can draw a row again."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def screen_of(stream: TextIO, wanted: bool | None = None) -> Screen:
    """Return what `stream` shows: colours as `wanted` (--color), else as NO_COLOR or FORCE_COLOR says, else on a terminal."""
    is_terminal = stream.isatty()
    if wanted is None:
        wanted = not os.environ.get("NO_COLOR") and (
            takes_escapes(stream) or os.environ.get("FORCE_COLOR", "") not in {"", "0"}
        )
    columns = None
    with suppress(OSError, ValueError):
        if is_terminal:  # this one: stdout may be somewhere else
            said = os.environ.get("COLUMNS", "")
            columns = int(said) if said.isdecimal() else 0
            columns = columns or os.get_terminal_size(stream.fileno()).columns or None
    return Screen(wanted, columns)
