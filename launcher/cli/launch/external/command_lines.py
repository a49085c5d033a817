"""A parser for command lines of other launchers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from launcher.cli.launch.external.options import (
    Counterpart,
    Launcher,
    Subject,
    counterpart,
    is_tee,
    key_of,
    launcher_with,
)
from launcher.core.frozen import frozen
from launcher.preload.masking import masked_argv
from launcher.program.program_command import is_python

_RANK_TABLE = ("-t", "--rank-table")
_PER_SERVER = re.compile(r"ppr:(\d+):node.*")  # value of mpirun's --map-by


@frozen
class Typed:
    """An option of another launcher as the user typed it, with its values."""

    name: str
    values: tuple[str, ...]
    counterpart: Counterpart

    @property
    def value(self) -> str:
        return self.values[-1] if self.values else ""

    @property
    def key(self) -> str:
        return key_of(self.name)


@frozen
class Line:
    """A parsed command line of tlaunch or another launcher: options, then a program with its arguments."""

    own: tuple[str, ...]  # tlaunch's options, with their values
    typed: tuple[Typed, ...]
    unknown: tuple[str, ...]
    program: tuple[str, ...]
    has_dashes: bool  # `--` comes before the program
    is_clear: bool  # the program's first word is certain; after an unknown option, the next word may be its value
    launcher: Launcher | None  # None if unknown

    def of(self, *subjects: Subject) -> list[Typed]:
        return [each for each in self.typed if each.counterpart.subject in subjects]

    def value_of(self, *subjects: Subject) -> str | None:
        """Return the value of the last option on the line that concerns one of `subjects`, or None."""
        return found[-1].value or None if (found := self.of(*subjects)) else None

    def number_of(self, subject: Subject) -> int | None:
        """Return the number that the last option on the line sets for `subject`, or None."""
        return number(self.value_of(subject) or "")

    def has_own(self, *names: str) -> bool:
        return any(word in names for word in self.own)

    @property
    def has_rank_table(self) -> bool:
        return self.has_own(*_RANK_TABLE) or any(each.counterpart.here in _RANK_TABLE for each in self.typed)

    @property
    def engine(self) -> str | None:
        return next((value for name, value in pairwise(self.own) if name == "--engine"), None)


def parse_line(words: Sequence[str], own: Mapping[str, int], launcher: Launcher | None = None) -> Line:
    """Parse the words after a launcher's name into options and a program. Secrets are masked.

    `own` maps tlaunch's options to their number of values; it is empty for another launcher's line. A `launcher` of
    None is detected from the options.
    """
    kept: list[str] = []
    typed: list[Typed] = []
    unknown: list[str] = []
    is_clear = True
    rest = list(masked_argv(words))
    while rest and rest[0].startswith("-") and rest[0] not in {"-", "--"}:
        name, joined = _split(rest.pop(0), own, launcher)
        key, found = name.replace("_", "-"), counterpart(name, launcher)
        is_own = key in own and (found is None or found.subject is None)
        if is_own and not is_tee(key, next(iter((*joined, *rest)), "")):
            count, found = own[key], None
        elif found is not None:
            count = found.values
        elif (is_own := all(own.get(f"-{letter}") == 0 for letter in key[1:])) or joined:
            count = len(joined)  # several flags of tlaunch, such as `-qd`, or a value in the same word
        else:  # the next word may be its value
            count, is_clear = 0, is_clear and (not rest or rest[0].startswith("-") or names_program(rest[0]))
        values = (*joined, *rest[: max(0, count - len(joined))])
        del rest[: len(values) - len(joined)]
        if found is not None:
            typed.append(_typed(name, values, found))
        elif is_own:
            kept += [key, *values]
        else:
            unknown.append(name)
    whose = launcher or launcher_with([each.name for each in typed if each.name not in own])
    for at, each in enumerate(typed):  # an option that several launchers have
        of_any = counterpart(each.name)
        if whose is not None and of_any is not None and of_any.subject == "unclear":
            typed[at] = replace(each, counterpart=counterpart(each.name, whose) or each.counterpart)
    has_dashes = rest[:1] == ["--"]
    return Line(tuple(kept), tuple(typed), tuple(unknown), tuple(rest[has_dashes:]), has_dashes, is_clear, whose)


def names_program(word: str) -> bool:
    """Return True if a word looks like a Python interpreter or script."""
    return word.endswith(".py") or is_python(word)


def number(text: str) -> int | None:
    """Parse a positive integer; return None for any other text."""
    return int(text) or None if re.fullmatch(r"[0-9]{1,9}", text) else None


def _split(word: str, own: Mapping[str, int], launcher: Launcher | None) -> tuple[str, tuple[str, ...]]:
    """Split a word such as `--lr=1` or `-n8` into the option and its values."""
    if word.startswith("--"):
        name, is_joined, value = word.partition("=")
        return name, (value,) if is_joined else ()
    name, value = word[:2], word[2:]
    if not value or word in own or counterpart(word, launcher) is not None:
        return word, ()
    found = counterpart(name, launcher)
    has_value = own.get(name, 0) > 0 or (found is not None and found.values > 0 and value[0].isdigit())
    return (name, (value,)) if has_value else (word, ())


def _typed(name: str, values: tuple[str, ...], found: Counterpart) -> Typed:
    """Return an option with its values. `--map-by ppr:4:node` becomes an option for 4 ranks on each server."""
    value = values[-1] if values else ""
    if key_of(name) != "--map-by" or not value.startswith("ppr:"):
        return Typed(name, values, found)
    if (per_server := _PER_SERVER.fullmatch(value)) is None:
        return Typed(name, values, replace(found, subject="unclear"))
    return Typed(name, (per_server[1],), replace(found, subject="devices"))
