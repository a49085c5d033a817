"""Faults of a JSON text: how they are worded, and how some of them are mended in place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from launcher.rank_table.lexer import Token, string_body_end

TYPOGRAPHIC = {"“": '"', "”": '"', "‘": '"', "’": '"', "，": ",", "：": ":", "\u00a0": "a plain blank"}  # noqa: RUF001


class Fault(NamedTuple):
    """Something that makes the text no JSON, or the JSON no table."""

    code: str
    offset: int
    width: int
    message: str
    hint: str | None = None


class Patch(NamedTuple):
    """Overwrite text[start:end] by `text`, which is as long, to go on as if a fault had not been made."""

    start: int
    end: int
    text: str


def mended(text: str, patches: Iterable[Patch]) -> str:
    """`text` with the patches laid over it; every offset stays what it was."""
    parts, at = [], 0
    for patch in sorted(patches):
        parts += [text[at : patch.start], patch.text]
        at = patch.end
    return "".join([*parts, text[at:]])


def comment(token: Token) -> Fault:
    hint = "remove it: a rank table has no place for remarks, HCCL stops at the first one"
    return Fault("RT104", token.start, min(token.end - token.start, 40), "JSON has no comments", hint)


def open_comment(token: Token) -> Fault:
    return Fault("RT104", token.start, 2, "JSON has no comments, and this one is not closed", "remove it")


def ellipsis(token: Token) -> Fault:
    width = token.end - token.start
    return Fault("RT113", token.start, width, "a part of the table is left out here", "write every entry in full")


def single_quoted(text: str, token: Token) -> Fault:
    message = "JSON strings stand in double quotes"
    return Fault("RT107", token.start, token.end - token.start, message, in_quotes(text[token.start : token.end]))


def unquoted(text: str, token: Token) -> Fault:
    word = text[token.start : token.end]
    return Fault("RT107", token.start, len(word), f"{shown(word)} is not JSON", in_quotes(word))


def unexpected_word(text: str, token: Token, expected: str) -> Fault:
    word = text[token.start : token.end]
    return Fault("RT102", token.start, len(word), f"{shown(word)} is not expected here", expected)


def typographic(text: str, token: Token) -> Fault | None:
    """Quotes, commas and blanks that a word processor or another keyboard puts in."""
    char = text[token.start]
    if char not in TYPOGRAPHIC:
        return None
    message = f"{shown(char)} (U+{ord(char):04X}) is not JSON punctuation"
    return Fault("RT102", token.start, 1, message, f"write {TYPOGRAPHIC[char]}")


def broken_string(text: str, token: Token) -> Fault:
    """Why the string that opens here is none."""
    end = string_body_end(text, token.start)
    if end == len(text):
        hint = "the file is cut off; copy it again"
        return Fault("RT108", token.start, 1, "the file ends inside this string", hint)
    if text[end] in "\r\n":
        return Fault("RT106", token.start, 1, "this string is not closed on its line", 'write the missing "')
    if text[end] == "\\":
        message = f"{shown(text[end : end + 2])} is no escape that JSON knows"
        return Fault("RT106", end, 2, message, "write \\\\ for a backslash")
    message = f"a string holds the control character U+{ord(text[end]):04X}"
    return Fault("RT106", end, 1, message, "remove it")


def half_a_pair(token: Token) -> Fault:
    message = "this string holds half a surrogate pair, which is no character"
    return Fault("RT106", token.start, token.end - token.start, message, "write the character itself")


def missing(mark: str, at: int, between: str) -> Fault:
    return Fault("RT105", at, 1, f"{mark} is missing between {between}", f"write {mark} here")


def trailing_comma(at: int, closing: str) -> Fault:
    hint = "remove this comma, or add the entry that is missing after it"
    return Fault("RT103", at, 1, f"trailing comma before {closing}", hint)


def needless_comma(at: int) -> Fault:
    return Fault("RT103", at, 1, "there is no entry before this comma", "remove the comma")


def misplaced(what: str, at: int, expected: str) -> Fault:
    return Fault("RT102", at, 1, what, expected)


def still_open(at: int, what: str, opened: str, opened_on_line: int, closing: str) -> Fault:
    hint = f"write {closing} before it, where that {'object' if opened == '{' else 'list'} ends"
    return Fault("RT112", at, 1, f"{what}: {opened} of line {opened_on_line} is still open", hint)


def cut_off(at: int, closings: str) -> Fault:
    still = "a bracket is" if len(closings) == 1 else f"{len(closings)} brackets are"
    hint = f"the file is cut off, or lacks {closings[:20]} at its end"
    return Fault("RT108", at, 1, f"the file ends while {still} open", hint)


def nothing() -> Fault:
    return Fault("RT111", 0, 1, "the file holds no table", "copy or generate it again")


def text_after(at: int) -> Fault:
    hint = "remove it; if it is a bracket, one was closed too early above"
    return Fault("RT109", at, 1, "there is text after the end of the table", hint)


def too_deep(at: int, depth: int) -> Fault:
    return Fault("RT110", at, 1, f"nested more than {depth} levels deep", "a rank table needs fewer than 15 levels")


def in_quotes(word: str) -> str:
    bare = word.strip("'\"")
    return f'write "{bare[:40]}"' if bare else "write the value in double quotes"


def shown(text: str) -> str:
    """The start of `text`, as a message may quote it."""
    return printable(text if len(text) <= 40 else f"{text[:39]}…")


def printable(text: str) -> str:
    """`text` with nothing in it that moves a terminal's cursor or turns its direction."""
    return text if text.isprintable() else "".join(_printable(char) for char in text)


def _printable(char: str) -> str:
    return char if char.isprintable() else f"\\u{ord(char):04x}"
