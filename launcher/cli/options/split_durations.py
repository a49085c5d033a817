"""The hint for a duration that the shell has split: `--hang-timeout 10 m` is 10 seconds and a program `m`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import click

from launcher.core.errors import TlaunchError
from launcher.core.text import UNITS_S

METAVAR = "TIME"  # of every option that takes a duration
_WORDS = {
    **{unit: unit for unit in UNITS_S},
    **dict.fromkeys(("sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("hr", "hrs", "hour", "hours"), "h"),
    **dict.fromkeys(("day", "days"), "d"),
}


def hint_of_duration(error: TlaunchError, words: Sequence[str], group: click.Group) -> str | None:
    """Return what to write where `error` is about a unit that stands alone behind a duration; None for other errors.

    Only an error asks for it: there may be a program `m`, or a run whose name begins so. `words`: of the command line
    of `group`.
    """
    own = (*(words[: words.index("--")] if "--" in words else words), "")
    takers = {name for param in _command_of(own, group).params if param.metavar == METAVAR for name in param.opts}
    for (option, second), (_, third) in pairwise(pairwise(own)):
        name, is_joined, value = option.partition("=")
        number, unit = (value, second) if is_joined else (second, third)
        if name in takers and number.replace(".", "", 1).isdecimal() and unit in _WORDS and _is_about(error, unit):
            return f"write the duration in one word: {name}{'=' if is_joined else ' '}{number}{_WORDS[unit]}"
    return None


def _command_of(words: Sequence[str], group: click.Command) -> click.Command:
    """Return the command that is called, or the group in which none is found."""
    for word in words:
        if isinstance(group, click.Group):
            group = group.get_command(click.Context(group), word) or group
    return group


def _is_about(error: TlaunchError, word: str) -> bool:
    return error.message.startswith(f"{word}:") or error.message.endswith(f": {word}")
