"""The tokens of a JSON text, and of what people write where JSON has none; the faults of broken text, and their repairs."""

from __future__ import annotations

import json
import re
from enum import Enum
from functools import cache
from typing import NamedTuple

from launcher.core.text import printable
from launcher.rank_table.positions import Edit

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


# These three patterns take longer to compile than a valid table to check, which needs none of them.
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
_BRACKET = re.compile(r'"[^"\\\n]*(?:\\.[^"\\\n]*){0,1000}"|([{}\[\]])')  # strings are stepped over
WIDE_MARKS = {"，": ",", "：": ":"}  # noqa: RUF001
WIDE_BLANKS = frozenset("\u00a0\u3000")
MEANT = dict.fromkeys("“”„‘’‚", '"') | WIDE_MARKS | dict.fromkeys(WIDE_BLANKS, "a plain blank")  # noqa: RUF001
# What can only be a name or an address without its quotes. True, None, NaN and <address> are something else.
_PLAIN_WORD = re.compile(r"(?:[A-Za-z_][\w.-]*|[0-9]{1,3}(?:\.[0-9]{1,3}){3})\Z", re.ASCII)
_OTHER_WORDS = frozenset({"true", "false", "none", "null", "nil", "nan", "infinity", "inf", "undefined"})
_AFTER_STRING = re.compile(r"[ \t\r\n]*[,:\]}]")
QUOTE = '"'
_PUNCTUATION = " \t{}[],:"


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


class Fault(NamedTuple):
    """Something that makes the text no JSON, or the JSON no table."""

    code: str
    offset: int
    width: int
    message: str
    hint: str | None = None
    repair: Edit | None = None  # mends it for good; None where a person must decide


def comment(text: str, token: Token) -> Fault:
    hint = "remove it: a rank table has no place for remarks, HCCL stops at the first one"
    end = token.end - text.endswith("\r", token.start, token.end)  # the line keeps its end
    repair = Edit(token.start, end, "")
    return Fault("RT104", token.start, min(token.end - token.start, 40), "JSON has no comments", hint, repair)


def single_quoted(text: str, token: Token, repair: str) -> Fault:
    message, hint = "JSON strings stand in double quotes", in_quotes(text[token.start : token.end])
    return Fault("RT107", token.start, token.end - token.start, message, hint, Edit(token.start, token.end, repair))


def unquoted(text: str, token: Token) -> Fault:
    word = text[token.start : token.end]
    bare, repair = word.removesuffix(QUOTE), None
    # Only where it can be nothing but a string, of which at most the opening quote is there.
    is_text = _PLAIN_WORD.match(bare) is not None and bare.lower() not in _OTHER_WORDS
    if is_text and (bare == word or _AFTER_STRING.match(text, token.end) is not None):
        repair = Edit(token.start, token.end, f'"{bare}"')
    return Fault("RT107", token.start, len(word), f"{shown(word)} is not JSON", in_quotes(word), repair)


def typographic(text: str, token: Token, repair: str | None) -> Fault:
    """Report a quote, a blank, a comma or a colon of a word processor or another keyboard."""
    char = text[token.start]
    message = f"{shown(char)} (U+{ord(char):04X}) is not JSON punctuation"
    edit = None if repair is None else Edit(token.start, token.end, repair)
    return Fault("RT102", token.start, 1, message, f"write {MEANT[char]}", edit)


def broken_string(text: str, token: Token) -> Fault:
    """Report a string that JSON does not allow, with the reason."""
    end = string_body_end(text, token.start)
    if end == len(text):
        hint = "the file is cut off; copy it again"
        return Fault("RT108", token.start, 1, "the file ends inside this string", hint)
    if text[end] in "\r\n":
        holds_text = text[token.start + 1 : end].strip(_PUNCTUATION)
        hint = 'write the missing "' if holds_text else "remove this quote: no text follows it on its line"
        return Fault("RT106", token.start, 1, "this string is not closed on its line", hint)
    if text[end] == "\\":
        message = f"{shown(text[end : end + 2])} is not a JSON escape"
        return Fault("RT106", end, 2, message, "write \\\\ for a backslash")
    message = f"a string holds the control character U+{ord(text[end]):04X}"
    return Fault("RT106", end, 1, message, "remove it")


def unpaired_quote(text: str, before: Token, after: Token) -> Fault:
    """Report two values that touch: the quote that is missing stands before the first, or in it."""
    first, second = text[before.start : before.end], text[after.start : after.end]
    if not first.startswith(QUOTE):
        width = len(first) + second.startswith(QUOTE)  # what follows begins with the quote that closes the first
        return Fault("RT106", before.start, width, "the opening quote is missing", in_quotes(first))
    message = f"the quotes do not pair up: {shown(first)} and {shown(second)} touch"
    return Fault("RT106", before.start, len(first), message, 'write the missing " where the first text ends')


def unmatched(
    token: Token, opened: tuple[str, int], way: Remedy | None, *, after_comma: bool, needless_comma: str
) -> Fault:
    """Report a closing bracket that does not match what was `opened`, a bracket and its line.

    `needless_comma`: which of the commas "before" and "after" it separates nothing once it is gone.
    """
    bracket, line = opened
    message = f"{token.kind} closes nothing here: {bracket} of line {line} is still open"
    no_comma = ", and no comma before that" if after_comma else ""
    if way is Remedy.REMOVE:
        hint = f"remove it and the comma {needless_comma} it" if needless_comma else "remove it"
    elif way is Remedy.REPLACE:
        hint = f"write {CLOSING[bracket]} in its place{no_comma}"
    else:
        kind = "object" if bracket == "{" else "list"
        hint = f"write {CLOSING[bracket]} before it, where that {kind} ends{no_comma}"
    return Fault("RT112", token.start, 1, message, hint)


def in_quotes(word: str) -> str:
    if word.strip(",").lower() in _OTHER_WORDS:
        return 'write a value in double quotes, "" if there is none, or leave the key out'
    bare = word.strip("'\"")
    return f'write "{bare[:40]}"' if bare else "write the value in double quotes"


def shown(text: str) -> str:
    """Return the start of `text`, as a message may quote it."""
    return printable(text if len(text) <= 40 else f"{text[:39]}…")


class ErrorLog:
    """The errors of a text as they are found, and what to overwrite so that the rest can be read."""

    def __init__(self, text: str) -> None:
        self.faults: list[Fault] = []
        # Each overwrites a part of the text by one that is as long, to read on as if a fault had not been made. What is
        # written to a file is a fault's `repair`.
        self.patches: list[Edit] = []
        self.mendable = True  # the patches turn the text into JSON that says what was meant
        self.stopped = False  # before the end: what was read so far may mean something else
        self._text = text
        self._doubtful_end = -1  # of the last word that cannot be repaired

    def overwrite(self, fault: Fault | None, start: int, end: int, replacement: str = "") -> None:
        """Note a fault, and blanks or a `replacement` of the same length in its place. None: it is not worth one."""
        if fault is not None:
            self.faults.append(fault)
        self.patches.append(Edit(start, end, replacement or " " * (end - start)))

    def stop(self, fault: Fault) -> None:
        """Note a fault after which guessing would say more than the text does."""
        self.faults.append(fault)
        self.stopped, self.mendable = True, False

    def unquoted(self, token: Token) -> None:
        """Note a word that stands for a string."""
        fault = unquoted(self._text, token)
        self.faults.append(fault)
        self.mendable = False
        self._doubtful_end = token.end if fault.repair is None else -1

    def missing(self, mark: str, at: int, between: str) -> None:
        """Note that a comma or colon is missing at `at`."""
        text = self._text
        # Without a blank between them, two strings may also be one that holds a quote; and after a word that cannot be
        # understood, what is missing is not certain either.
        apart = text[at - 1] in "]}" or text[at] in " \t\r\n/#{[" or text[at] in WIDE_BLANKS
        repair = Edit(at, at, mark) if apart and at != self._doubtful_end else None
        self.faults.append(Fault("RT105", at, 1, f"{mark} is missing between {between}", f"write {mark} here", repair))
        if text[at] in " \t\r\n":
            self.patches.append(Edit(at, at + 1, mark))
        else:
            self.mendable = False

    def check_surrogates(self, token: Token) -> None:
        """Note half a surrogate pair in a string: Python lets it pass, HCCL's parser does not."""
        raw = self._text[token.start : token.end]
        if raw.startswith('"') and "\\u" in raw and any("\ud800" <= char <= "\udfff" for char in str(json.loads(raw))):
            message = "this string holds half a surrogate pair, which is not a character"
            self.faults.append(Fault("RT106", token.start, len(raw), message, "write the character itself"))
            self.mendable = False
