"""The palette of all commands: which words are coloured, how, and on which streams. Words say the same without it."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Mapping
from contextlib import suppress
from typing import TextIO, TypedDict

import click

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
        """Return what is said on stderr, with the kind of each line in its colour: `error: ...`, `hint: ...`."""
        if not self.coloured:
            return text
        return _MESSAGE.sub(
            lambda kind: self.paint(kind[0], ERROR if kind[1] else WARNING if kind[2] else ACTIVE), text
        )

    def wrapped(self, line: str) -> str:
        """Return a line of words in as many lines as the terminal needs, so that it breaks none of them."""
        if self.columns is None:
            return line
        indent = _INDENT.match(line)
        return textwrap.fill(
            line, self.columns, subsequent_indent=f"{indent[0] if indent else ''}    ",
            break_long_words=False, break_on_hyphens=False, expand_tabs=False,
        )  # fmt: skip

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


def screen_of(stream: TextIO, wanted: bool | None = None) -> Screen:
    """Return what `stream` shows: colours as `wanted` (--color), else as NO_COLOR or FORCE_COLOR says, else on a terminal."""
    is_terminal = stream.isatty()
    if wanted is None:
        by_itself = is_terminal and os.environ.get("TERM") != "dumb"
        wanted = not os.environ.get("NO_COLOR") and (by_itself or os.environ.get("FORCE_COLOR", "") not in {"", "0"})
    columns = None
    with suppress(OSError, ValueError):
        if is_terminal:  # this one: stdout may be somewhere else
            said = os.environ.get("COLUMNS", "")
            columns = int(said) if said.isdecimal() else 0
            columns = columns or os.get_terminal_size(stream.fileno()).columns or None
    return Screen(wanted, columns)
