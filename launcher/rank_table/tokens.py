"""The tokens of a JSON text, and of what people write where JSON has none."""

from __future__ import annotations

import re
from functools import cache
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


@cache
def _token_pattern() -> re.Pattern[str]:
    # The blanks before a token stand in a lookahead, which is never gone back into: there may be millions of them.
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


# The next two patterns take longer to compile than a valid table to check, which needs none of them.
@cache
def member_pattern() -> re.Pattern[str]:
    """Return what matches a member of an object up to its comma, which is part of it, or to the closing bracket, which is not."""
    key = r'"(?P<key>[^"\\\x00-\x1f]*)"'
    return re.compile(
        rf"{_BLANKS}{key}{_BLANKS}:{_BLANKS}(?:{_PLAIN_SCALAR}|{_VALUES}){_BLANKS}(?:(?P<comma>,)|(?=\}}))"
    )


@cache
def entry_pattern() -> re.Pattern[str]:
    """Return what matches an entry of a list up to its comma, which is part of it, or to the closing bracket, which is not."""
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
    """Return the first token of `text` at or after `at`, blanks skipped. END at the end; never fails."""
    match = _token_pattern().match(text, at)
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
    """Return whether an object that `entry_pattern` matched has a key twice."""
    keys = [text for text, colon in _KEY_OR_VALUE.findall(flat_object) if colon]
    return len(set(keys)) < len(keys)
