"""Tokens of JSON, and of common text that JSON does not allow."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

# Kinds of tokens: the names of the groups of `_token_pattern`, and two more. A punctuation mark is its own kind.
STRING = "string"
SCALAR = "scalar"  # a number, true, false or null
COMMENT = "comment"
OPEN_COMMENT = "open_comment"  # /* without */
SINGLE_QUOTED = "single"
ELLIPSIS = "ellipsis"
TYPOGRAPHIC = "typographic"  # a string in typographic quotes
WIDE_MARK = "wide_mark"  # a full-width comma or colon
WORD = "word"  # any other text without blanks
BROKEN_STRING = "broken string"  # not closed on its line, or with invalid content
END = ""
# A piece of a string: plain characters and escapes. The limit bounds the memory that the group needs for backtracking.
_PIECE = re.compile(r'(?:[^"\\\x00-\x1f]+|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})){1,1000}')


@cache
def _token_pattern() -> re.Pattern[str]:
    # The blanks before a token are in a lookahead, which is atomic: there may be millions of them.
    return re.compile(
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


_BLANK = re.compile(r"[ \t\n\r]*")
_BLANKS = r"[ \t\n\r]*"
_PLAIN_STRING = r'"[^"\\\x00-\x1f]*"'
_PLAIN_SCALAR = rf"(?:{_PLAIN_STRING}|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null)"
_VALUES = rf"\[{_BLANKS}(?:{_PLAIN_SCALAR}{_BLANKS}(?:,{_BLANKS}{_PLAIN_SCALAR}{_BLANKS}){{0,64}})?\]"
_MEMBER = rf"{_PLAIN_STRING}{_BLANKS}:{_BLANKS}(?:{_PLAIN_SCALAR}|{_VALUES}){_BLANKS}"
_OBJECT = rf"\{{{_BLANKS}(?:{_MEMBER}(?:,{_BLANKS}{_MEMBER}){{0,32}})?\}}"


# A valid table does not need the next two patterns, and compiling them takes longer than checking the table.
@cache
def member_pattern() -> re.Pattern[str]:
    """Return a pattern for a member of an object, with the comma after it if there is one."""
    key = r'"(?P<key>[^"\\\x00-\x1f]*)"'
    return re.compile(
        rf"{_BLANKS}{key}{_BLANKS}:{_BLANKS}(?:{_PLAIN_SCALAR}|{_VALUES}){_BLANKS}(?:(?P<comma>,)|(?=\}}))"
    )


@cache
def entry_pattern() -> re.Pattern[str]:
    """Return a pattern for an entry of a list, with the comma after it if there is one."""
    return re.compile(rf"{_BLANKS}(?:(?P<object>{_OBJECT})|{_PLAIN_SCALAR}){_BLANKS}(?:(?P<comma>,)|(?=\]))")


_KEY_OR_VALUE = re.compile(rf'"([^"]*)"(?:({_BLANKS}:)?)')
CLOSING = {"{": "}", "[": "]"}
WIDE_MARKS = {"，": ",", "：": ":"}  # noqa: RUF001
WIDE_BLANKS = frozenset("\u00a0\u3000")
MEANT = dict.fromkeys("“”„‘’‚", '"') | WIDE_MARKS | dict.fromkeys(WIDE_BLANKS, "a plain blank")  # noqa: RUF001


class Token(NamedTuple):
    kind: str
    start: int
    end: int


def next_token(text: str, at: int) -> Token:
    """Return the first token of `text` at or after `at`, skipping blanks. At the end of the text, return END."""
    match = _token_pattern().match(text, at)
    if match is None:
        return _odd_token(text, at)
    group = match.lastgroup or ""
    start, end = match.span(group)
    return Token(text[start] if group == "punctuation" else group, start, end)


def string_body_end(text: str, start: int) -> int:
    """Return the offset of the closing quote of a string, or of the first invalid character in it."""
    at = start + 1
    while match := _PIECE.match(text, at):
        at = match.end()
    return at


def _odd_token(text: str, at: int) -> Token:
    """Return the token for a string with escapes, a broken string, the end of the text, or an invalid character."""
    blank = _BLANK.match(text, at)
    start = blank.end() if blank else at
    if start == len(text):
        return Token(END, start, start)
    if text[start] != '"':
        return Token(WORD, start, start + 1)
    end = string_body_end(text, start)
    return Token(STRING, start, end + 1) if text[end : end + 1] == '"' else Token(BROKEN_STRING, start, start + 1)


def has_repeated_key(flat_object: str) -> bool:
    """Return True if an object that `entry_pattern` matched has a repeated key. `text` is the JSON text of the object."""
    keys = [text for text, colon in _KEY_OR_VALUE.findall(flat_object) if colon]
    return len(set(keys)) < len(keys)
