"""Which change to a closing bracket that matches none lets all brackets of the text match."""

from __future__ import annotations

import re
from enum import Enum

CLOSING = {"{": "}", "[": "]"}
_BRACKET = re.compile(r'"[^"\\\n]*(?:\\.[^"\\\n]*){0,1000}"|([{}\[\]])')  # strings are stepped over


class Remedy(Enum):
    """What makes the brackets match. No two of them can: they leave different numbers of brackets open."""

    REMOVE = "remove it"
    REPLACE = "write the other kind in its place"
    CLOSE_BEFORE = "close what is open before it"


def remedy(text: str, at: int, opened: str) -> Remedy | None:
    """What to do about the bracket at `at`, which does not close the last of those in `opened`.

    None where nothing of it lets the rest of the text match. Looks through the rest, up to a bracket that fits nowhere.

    >>> remedy("[1, 2}", 5, "[").name, remedy("[1}, 2]", 2, "[").name, remedy("{[1}", 3, "{[").name
    ('REPLACE', 'REMOVE', 'CLOSE_BEFORE')
    """
    ways = {Remedy.REMOVE: opened, Remedy.REPLACE: opened[:-1]}
    if len(opened) > 1 and CLOSING[opened[-2]] == text[at]:
        ways[Remedy.CLOSE_BEFORE] = opened[:-2]
    return next((way for way, left in ways.items() if _match(text, at + 1, left)), None)


def _match(text: str, at: int, opened: str) -> bool:
    """Whether the brackets from `at` on close all that are open, and each other."""
    left = list(opened)
    for found in _BRACKET.finditer(text, at):
        bracket = found[1]
        if bracket is None:
            continue
        if bracket in CLOSING:
            left.append(bracket)
        elif not left or CLOSING[left.pop()] != bracket:
            return False
    return not left
