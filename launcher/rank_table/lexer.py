"""Cut text into the tokens of JSON, and into the things that people write where JSON has none."""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

# Kinds of token beside the punctuation marks, which are their own kind.
STRING = '"'
SCALAR = "0"  # a number, true, false or null
END = ""
COMMENT = "comment"
OPEN_COMMENT = "open comment"  # /* without */
SINGLE_QUOTED = "'"
ELLIPSIS = "..."
TYPOGRAPHIC = "“"  # a string in quotes of a word processor
WIDE_MARK = "，"  # noqa: RUF001  # a comma or a colon of a Chinese keyboard
WORD = "word"  # anything else that stands together
BROKEN_STRING = "broken string"  # not closed on its line, or with something in it that JSON does not allow
# A piece of a string: plain characters and escapes. Strings with escapes are stepped through piece by piece, for a
# group that repeats without a limit would keep what it needs to go back for every round.
_PIECE = re.compile(r'(?:[^"\\\x00-\x1f]+|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})){1,1000}')
# The blanks before a token stand in a lookahead, which is never gone back into: there may be millions of them.
_TOKEN = re.compile(
    r"""(?=([ \t\n\r]*))\1(?:
        (?P<punctuation>[{}\[\],:])
      | (?P<string>"[^"\\\x00-\x1f]*")
      | (?P<scalar>(?:-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null)(?![^\s,:{}\[\]"/，：]))
      | (?P<comment>//[^\n]*|\#[^\n]*|/\*[\s\S]*?\*/)
      | (?P<ellipsis>\.{2,}|…+)
      | (?P<single>'[^'"\\\x00-\x1f]*')
      | (?P<typographic>[“”„][^"“”„\\\x00-\x1f]*[“”„]|[‘’‚][^"‘’‚\\\x00-\x1f]*[‘’‚])
      | (?P<wide_mark>[，：])
      | (?P<open_comment>/\*)
      | (?P<word>[^\s,:{}\[\]"，：]+"?)
    )""",  # noqa: RUF001
    re.VERBOSE,
)
_KINDS = {
    "string": STRING,
    "scalar": SCALAR,
    "comment": COMMENT,
    "ellipsis": ELLIPSIS,
    "single": SINGLE_QUOTED,
    "typographic": TYPOGRAPHIC,
    "wide_mark": WIDE_MARK,
    "open_comment": OPEN_COMMENT,
    "word": WORD,
}
_BLANK = re.compile(r"[ \t\n\r]*")
_BLANKS = r"[ \t\n\r]*"
_PLAIN_STRING = r'"[^"\\\x00-\x1f]*"'
_PLAIN_SCALAR = rf"(?:{_PLAIN_STRING}|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null)"
_VALUES = rf"\[{_BLANKS}(?:{_PLAIN_SCALAR}{_BLANKS}(?:,{_BLANKS}{_PLAIN_SCALAR}{_BLANKS}){{0,64}})?\]"
_MEMBER = rf"{_PLAIN_STRING}{_BLANKS}:{_BLANKS}(?:{_PLAIN_SCALAR}|{_VALUES}){_BLANKS}"
_OBJECT = rf"\{{{_BLANKS}(?:{_MEMBER}(?:,{_BLANKS}{_MEMBER}){{0,32}})?\}}"
# A member of an object up to its comma, which is part of it, or to the closing bracket, which is not.
MEMBER = re.compile(
    rf'{_BLANKS}"(?P<key>[^"\\\x00-\x1f]*)"{_BLANKS}:{_BLANKS}(?:{_PLAIN_SCALAR}|{_VALUES}){_BLANKS}(?:(?P<comma>,)|(?=\}}))'
)
# An entry of a list up to its comma, which is part of it, or to the closing bracket, which is not.
ENTRY = re.compile(rf"{_BLANKS}(?:(?P<object>{_OBJECT})|{_PLAIN_SCALAR}){_BLANKS}(?:(?P<comma>,)|(?=\]))")
_KEY_OR_VALUE = re.compile(rf'"([^"]*)"(?:({_BLANKS}:)?)')
CLOSING = {"{": "}", "[": "]"}
_BRACKET = re.compile(r'"[^"\\\n]*(?:\\.[^"\\\n]*){0,1000}"|([{}\[\]])')  # strings are stepped over


class Token(NamedTuple):
    kind: str
    start: int
    end: int


def next_token(text: str, at: int) -> Token:
    """Return the first token of `text` at or after `at`, blanks skipped. END at the end; never fails."""
    match = _TOKEN.match(text, at)
    if match is None:
        return _odd_token(text, at)
    group = match.lastgroup or ""
    start, end = match.span(group)
    return Token(text[start] if group == "punctuation" else _KINDS[group], start, end)


def string_body_end(text: str, start: int) -> int:
    """Return the end of the string that opens at `start`: its closing quote, or what may not stand in it."""
    at = start + 1
    while match := _PIECE.match(text, at):
        at = match.end()
    return at


def _odd_token(text: str, at: int) -> Token:
    """Return a string with escapes, a broken one, the end, or a single character that JSON does not take for a blank."""
    blank = _BLANK.match(text, at)
    start = blank.end() if blank else at
    if start == len(text):
        return Token(END, start, start)
    if text[start] != '"':
        return Token(WORD, start, start + 1)
    end = string_body_end(text, start)
    return Token(STRING, start, end + 1) if text[end : end + 1] == '"' else Token(BROKEN_STRING, start, start + 1)


def has_repeated_key(flat_object: str) -> bool:
    """Return whether an object that `ENTRY` matched has a key twice."""
    keys = [text for text, colon in _KEY_OR_VALUE.findall(flat_object) if colon]
    return len(set(keys)) < len(keys)


class Remedy(Enum):
    """A change that makes the brackets match. No two of them can: they leave different numbers of brackets open."""

    REMOVE = "remove it"
    REPLACE = "write the other kind in its place"
    CLOSE_BEFORE = "close what is open before it"


def remedy(text: str, at: int, opened: str) -> Remedy | None:
    """Return the change for the bracket at `at`, which does not close the last of those in `opened`.

    None where nothing of it lets the rest of the text match. Looks through the rest, up to a bracket that fits nowhere.

    >>> remedy("[1, 2}", 5, "[").name, remedy("[1}, 2]", 2, "[").name, remedy("{[1}", 3, "{[").name
    ('REPLACE', 'REMOVE', 'CLOSE_BEFORE')
    """
    ways = {Remedy.REMOVE: opened, Remedy.REPLACE: opened[:-1]}
    if len(opened) > 1 and CLOSING[opened[-2]] == text[at]:
        ways[Remedy.CLOSE_BEFORE] = opened[:-2]
    return next((way for way, left in ways.items() if _match(text, at + 1, left)), None)


def _match(text: str, at: int, opened: str) -> bool:
    """Return whether the brackets from `at` on close all that are open, and each other."""
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


class LongInteger(float):
    """An integer of more digits than HCCL's parser keeps: the float that it makes of it."""

    def __init__(self, digits: str) -> None:
        self.digits = len(digits.removeprefix("-"))
