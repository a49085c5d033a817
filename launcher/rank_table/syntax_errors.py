"""Faults of a text that is not JSON, with messages and repairs."""

from __future__ import annotations

import json
import re
from enum import Enum
from typing import NamedTuple

from launcher.core.text import printable
from launcher.rank_table.positions import Edit
from launcher.rank_table.tokens import CLOSING, MEANT, WIDE_BLANKS, Token, string_body_end

_BRACKET = re.compile(r'"[^"\\\n]*(?:\\.[^"\\\n]*){0,1000}"|([{}\[\]])')  # skips strings
# An unquoted name or address, but not True, None, NaN or <address>.
_PLAIN_WORD = re.compile(r"(?:[A-Za-z_][\w.-]*|[0-9]{1,3}(?:\.[0-9]{1,3}){3})\Z", re.ASCII)
_OTHER_WORDS = frozenset({"true", "false", "none", "null", "nil", "nan", "infinity", "inf", "undefined"})
_AFTER_STRING = re.compile(r"[ \t\r\n]*[,:\]}]")
QUOTE = '"'
_PUNCTUATION = " \t{}[],:"


class Remedy(Enum):
    """A way to repair an unmatched bracket. For a given text, at most one way works."""

    REMOVE = "remove it"
    REPLACE = "write the other kind in its place"
    CLOSE_BEFORE = "close what is open before it"


def remedy(text: str, at: int, opened: str) -> Remedy | None:
    """Return a hint to repair the bracket at position `at`. It does not match the last open bracket in `opened`.

    Returns None if no change makes the rest of the text match. Reads the rest up to a bracket that cannot match.

    >>> remedy("[1, 2}", 5, "[").name, remedy("[1}, 2]", 2, "[").name, remedy("{[1}", 3, "{[").name
    ('REPLACE', 'REMOVE', 'CLOSE_BEFORE')
    """
    ways = {Remedy.REMOVE: opened, Remedy.REPLACE: opened[:-1]}
    if len(opened) > 1 and CLOSING[opened[-2]] == text[at]:
        ways[Remedy.CLOSE_BEFORE] = opened[:-2]
    return next((way for way, left in ways.items() if _match(text, at + 1, left)), None)


def _match(text: str, at: int, opened: str) -> bool:
    """Return True if the brackets starting at position `at` match, and close all open brackets in `opened`."""
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


class Fault(NamedTuple):
    code: str
    offset: int
    width: int
    message: str
    hint: str | None = None
    repair: Edit | None = None  # a lasting repair; None if a person must decide


def comment(text: str, token: Token) -> Fault:
    hint = "remove it: HCCL stops at the first comment"
    end = token.end - text.endswith("\r", token.start, token.end)  # keep the line ending
    repair = Edit(token.start, end, "")
    return Fault("RT104", token.start, min(token.end - token.start, 40), "JSON does not allow comments", hint, repair)


def single_quoted(text: str, token: Token, repair: str) -> Fault:
    message, hint = "JSON strings need double quotes", in_quotes(text[token.start : token.end])
    return Fault("RT107", token.start, token.end - token.start, message, hint, Edit(token.start, token.end, repair))


def unquoted(text: str, token: Token) -> Fault:
    word = text[token.start : token.end]
    bare, repair = word.removesuffix(QUOTE), None
    # Repair only what is certainly a string without its closing quote or both quotes.
    is_text = _PLAIN_WORD.match(bare) is not None and bare.lower() not in _OTHER_WORDS
    if is_text and (bare == word or _AFTER_STRING.match(text, token.end) is not None):
        repair = Edit(token.start, token.end, f'"{bare}"')
    return Fault("RT107", token.start, len(word), f"{shown(word)} is not JSON", in_quotes(word), repair)


def typographic(text: str, token: Token, repair: str | None) -> Fault:
    """Report a typographic quote, or a full-width blank, comma or colon."""
    char = text[token.start]
    message = f"{shown(char)} (U+{ord(char):04X}) is not JSON punctuation"
    edit = None if repair is None else Edit(token.start, token.end, repair)
    return Fault("RT102", token.start, 1, message, f"write {MEANT[char]}", edit)


def broken_string(text: str, token: Token) -> Fault:
    end = string_body_end(text, token.start)
    if end == len(text):
        hint = "copy the file again: it is cut off"
        return Fault("RT108", token.start, 1, "the file ends inside this string", hint)
    if text[end] in "\r\n":
        hint = 'write the missing "' if text[token.start + 1 : end].strip(_PUNCTUATION) else "remove this quote"
        return Fault("RT106", token.start, 1, "this string is not closed on its line", hint)
    if text[end] == "\\":
        message = f"{shown(text[end : end + 2])} is not a JSON escape"
        return Fault("RT106", end, 2, message, "write \\\\ for a backslash")
    message = f"a string holds the control character U+{ord(text[end]):04X}"
    return Fault("RT106", end, 1, message, "remove it")


def unpaired_quote(text: str, before: Token, after: Token) -> Fault:
    """Report two values that touch because a quote is missing before or inside the first value."""
    first, second = text[before.start : before.end], text[after.start : after.end]
    if not first.startswith(QUOTE):
        width = len(first) + second.startswith(QUOTE)  # the second value starts with the quote that closes the first
        return Fault("RT106", before.start, width, "the opening quote is missing", in_quotes(first))
    message = f"the quotes do not pair up: {shown(first)} and {shown(second)} touch"
    return Fault("RT106", before.start, len(first), message, 'write the missing " after the first text')


def unmatched(
    text: str, token: Token, opened: tuple[str, int], way: Remedy | None, *, comma: int | None, needless_comma: str
) -> Fault:
    """Report a closing bracket that does not match the last open bracket. `opened` has the open bracket and its line.

    `comma` is the position of the comma before the bracket. `needless_comma` is "before" or "after": the comma that
    becomes superfluous when the bracket is removed. If `way` makes the rest of the text match, it is the repair.
    """
    at, after_comma = token.start, comma is not None
    bracket, line = opened
    message = f"{token.kind} does not match {bracket} of line {line}, which is still open"
    no_comma = ", and remove the comma before that" if after_comma else ""
    if way is Remedy.REMOVE:
        hint = f"remove it and the comma {needless_comma} it" if needless_comma else "remove it"
    elif way is Remedy.REPLACE:
        hint = f"write {CLOSING[bracket]} in its place{no_comma}"
    else:
        kind = "object" if bracket == "{" else "list"
        hint = f"write {CLOSING[bracket]} at the end of that {kind}{no_comma}"
    repair = None
    if way is Remedy.REMOVE:
        end = text.index(",", at) + 1 if needless_comma == "after" else at + 1
        start = comma if needless_comma == "before" and comma is not None else at
        repair = Edit(start, end, text[start:at].removeprefix(",").rstrip(" \t\r\n"))
    elif way is not None:
        start = at if comma is None else comma
        repair = Edit(start, at + (way is Remedy.REPLACE), text[start:at].removeprefix(",") + CLOSING[bracket])
    return Fault("RT112", at, 1, message, hint, repair)


def closed_before_key(text: str, key: int, colon_end: int, opened: str) -> Edit | None:
    """Return an edit that inserts "]" before the comma that precedes the key, or None if brackets remain unmatched."""
    before = text[:key].rstrip(" \t\r\n")
    if not before.endswith(",") or not _match(text, colon_end, opened[:-1]):
        return None
    return Edit(len(before) - 1, len(before) - 1, "]")


def in_quotes(word: str) -> str:
    if word.strip(",").lower() in _OTHER_WORDS:
        return 'write a value in double quotes, "" if there is none, or leave the key out'
    bare = word.strip("'\"")
    return f'write "{bare[:40]}"' if bare else "write the value in double quotes"


def shown(text: str) -> str:
    """Return the start of `text` in quotes, for a message."""
    return printable(text if len(text) <= 40 else f"{text[:39]}…")


class ErrorLog:
    """The faults of a text, and the patches that let scanning continue."""

    def __init__(self, text: str) -> None:
        self.faults: list[Fault] = []
        # Each replaces a part of the text by one of equal length, so that scanning can continue as if there was no
        # fault. Files are changed only by a fault's `repair`.
        self.patches: list[Edit] = []
        self.mendable = True  # the patches produce the intended JSON
        self.stopped = False  # before the end: the meaning of the text so far is uncertain
        self._text = text
        self._doubtful_end = -1  # end of the last word that cannot be repaired

    def overwrite(self, fault: Fault | None, start: int, end: int, replacement: str = "") -> None:
        """Record the fault, if any. Replace the faulty text by `replacement` or, if that is empty, by blanks."""
        if fault is not None:
            self.faults.append(fault)
        self.patches.append(Edit(start, end, replacement or " " * (end - start)))

    def stop(self, fault: Fault) -> None:
        """Record a fault after which scanning cannot continue."""
        self.faults.append(fault)
        self.stopped, self.mendable = True, False

    def unquoted(self, token: Token) -> None:
        fault = unquoted(self._text, token)
        self.faults.append(fault)
        self.mendable = False
        self._doubtful_end = token.end if fault.repair is None else -1

    def missing(self, mark: str, at: int, between: str) -> None:
        """Record a missing comma or colon at `at`."""
        text = self._text
        # Two strings without a blank between them may be one string that contains a quote. After an unknown word, it is
        # also uncertain what is missing.
        apart = text[at - 1] in "]}" or text[at] in " \t\r\n/#{[" or text[at] in WIDE_BLANKS
        repair = Edit(at, at, mark) if apart and at != self._doubtful_end else None
        self.faults.append(Fault("RT105", at, 1, f"{mark} is missing between {between}", f"write {mark} here", repair))
        if text[at] in " \t\r\n":
            self.patches.append(Edit(at, at + 1, mark))
        else:
            self.mendable = False

    def check_surrogates(self, token: Token) -> None:
        """Record a lone surrogate in a string: Python accepts it, but HCCL's parser does not."""
        raw = self._text[token.start : token.end]
        if raw.startswith('"') and "\\u" in raw and any("\ud800" <= char <= "\udfff" for char in str(json.loads(raw))):
            message = "this string contains a lone surrogate, which is not a character"
            self.faults.append(Fault("RT106", token.start, len(raw), message, "write the character itself"))
            self.mendable = False
