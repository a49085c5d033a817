"""Faults of a JSON text: how they are worded, and how some of them are mended in place."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import NamedTuple

from launcher.core.text import printable
from launcher.rank_table.lexer import CLOSING, Remedy, Token, string_body_end
from launcher.rank_table.positions import Edit

WIDE_MARKS = {"，": ",", "：": ":"}  # noqa: RUF001
WIDE_BLANKS = frozenset("\u00a0\u3000")
TYPOGRAPHIC = dict.fromkeys("“”„‘’‚", '"') | WIDE_MARKS | dict.fromkeys(WIDE_BLANKS, "a plain blank")  # noqa: RUF001
# What can only be a name or an address without its quotes. True, None, NaN and <address> are something else.
_PLAIN_WORD = re.compile(r"(?:[A-Za-z_][\w.-]*|[0-9]{1,3}(?:\.[0-9]{1,3}){3})\Z", re.ASCII)
_OTHER_WORDS = frozenset({"true", "false", "none", "null", "nil", "nan", "infinity", "inf", "undefined"})
_AFTER_STRING = re.compile(r"[ \t\r\n]*[,:\]}]")
QUOTE = '"'
_PUNCTUATION = " \t{}[],:"


class Fault(NamedTuple):
    """Something that makes the text no JSON, or the JSON no table."""

    code: str
    offset: int
    width: int
    message: str
    hint: str | None = None
    repair: Edit | None = None  # mends it for good; None where a person must decide


class Patch(NamedTuple):
    """Overwrite text[start:end] by `text`, which is as long, to continue as if a fault had not been made.

    Only for reading on: what is written to a file is a fault's `repair`.
    """

    start: int
    end: int
    text: str


def mended(text: str, patches: Iterable[Patch]) -> str:
    """Lay the patches over `text`; every offset stays what it was."""
    parts, at = [], 0
    for patch in sorted(patches):
        parts += [text[at : patch.start], patch.text]
        at = patch.end
    return "".join([*parts, text[at:]])


def comment(text: str, token: Token) -> Fault:
    hint = "remove it: a rank table has no place for remarks, HCCL stops at the first one"
    end = token.end - text.endswith("\r", token.start, token.end)  # the line keeps its end
    repair = Edit(token.start, end, "")
    return Fault("RT104", token.start, min(token.end - token.start, 40), "JSON has no comments", hint, repair)


def open_comment(token: Token) -> Fault:
    return Fault("RT104", token.start, 2, "JSON has no comments, and this one is not closed", "remove it")


def ellipsis(token: Token) -> Fault:
    width = token.end - token.start
    return Fault("RT113", token.start, width, "a part of the table is left out here", "write every entry in full")


def single_quoted(text: str, token: Token) -> Fault:
    message, hint = "JSON strings stand in double quotes", in_quotes(text[token.start : token.end])
    return Fault("RT107", token.start, token.end - token.start, message, hint, _requoted(text, token))


def unquoted(text: str, token: Token) -> Fault:
    word = text[token.start : token.end]
    repair = Edit(token.start, token.end, f'"{word.removesuffix(QUOTE)}"') if _is_certain(text, token) else None
    return Fault("RT107", token.start, len(word), f"{shown(word)} is not JSON", in_quotes(word), repair)


def _is_certain(text: str, token: Token) -> bool:
    """Return whether this word can be nothing but a string, of which at most the opening quote is there."""
    word = text[token.start : token.end]
    bare = word.removesuffix(QUOTE)
    if _PLAIN_WORD.match(bare) is None or bare.lower() in _OTHER_WORDS:
        return False
    return bare == word or _AFTER_STRING.match(text, token.end) is not None


def _requoted(text: str, token: Token) -> Edit:
    return Edit(token.start, token.end, f'"{text[token.start + 1 : token.end - 1]}"')


def unexpected_word(text: str, token: Token, expected: str) -> Fault:
    word = text[token.start : token.end]
    return Fault("RT102", token.start, len(word), f"{shown(word)} is not expected here", expected)


def typographic(text: str, token: Token) -> Fault | None:
    """Report quotes and blanks of a word processor. Only a blank is certain: of a quote, the other half is missing."""
    char = text[token.start]
    if char not in TYPOGRAPHIC:
        return None
    return _no_punctuation(char, token, Edit(token.start, token.end, " ") if char in WIDE_BLANKS else None)


def typographic_string(text: str, token: Token) -> Fault:
    """Report a string in the right place, but in the wrong quotes."""
    return _no_punctuation(text[token.start], token, _requoted(text, token))


def wide_mark(text: str, token: Token) -> Fault:
    """Report a comma or a colon of another keyboard."""
    char = text[token.start]
    return _no_punctuation(char, token, Edit(token.start, token.end, WIDE_MARKS[char]))


def _no_punctuation(char: str, token: Token, repair: Edit | None) -> Fault:
    message = f"{shown(char)} (U+{ord(char):04X}) is not JSON punctuation"
    return Fault("RT102", token.start, 1, message, f"write {TYPOGRAPHIC[char]}", repair)


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


def half_a_pair(token: Token) -> Fault:
    message = "this string holds half a surrogate pair, which is not a character"
    return Fault("RT106", token.start, token.end - token.start, message, "write the character itself")


def unpaired_quote(text: str, before: Token, after: Token) -> Fault:
    """Report two values that touch: the quote that is missing stands before the first, or in it."""
    first, second = text[before.start : before.end], text[after.start : after.end]
    if not first.startswith(QUOTE):
        width = len(first) + second.startswith(QUOTE)  # what follows begins with the quote that closes the first
        return Fault("RT106", before.start, width, "the opening quote is missing", in_quotes(first))
    message = f"the quotes do not pair up: {shown(first)} and {shown(second)} touch"
    return Fault("RT106", before.start, len(first), message, 'write the missing " where the first text ends')


def missing(text: str, mark: str, at: int, between: str) -> Fault:
    # Without a blank between them, two strings may also be one that holds a quote.
    apart = text[at - 1] in "]}" or text[at] in " \t\r\n/#{[" or text[at] in WIDE_BLANKS
    repair = Edit(at, at, mark) if apart else None
    return Fault("RT105", at, 1, f"{mark} is missing between {between}", f"write {mark} here", repair)


def trailing_comma(at: int, closing: str) -> Fault:
    hint = "remove this comma, or add the entry that is missing after it"
    return Fault("RT103", at, 1, f"trailing comma before {closing}", hint, Edit(at, at + 1, ""))


def needless_comma(at: int) -> Fault:
    return Fault("RT103", at, 1, "there is no entry before this comma", "remove the comma", Edit(at, at + 1, ""))


def misplaced(what: str, at: int, expected: str) -> Fault:
    return Fault("RT102", at, 1, what, expected)


def key_in_list(at: int, opened_on_line: int) -> Fault:
    message = f"a key stands in a list: [ of line {opened_on_line} is still open"
    return Fault("RT112", at, 1, message, "write ] before it, where that list ends")


def needless_colon(at: int, *, before_entry: bool) -> Fault:
    """Report a colon where an entry has ended."""
    hint = "write a comma in its place" if before_entry else "remove it"
    return misplaced("there is no key before this colon", at, hint)


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


def cut_off(at: int, closings: str) -> Fault:
    still = "a bracket is" if len(closings) == 1 else f"{len(closings)} brackets are"
    hint = f"the file is cut off, or lacks {closings[:20]} at its end"
    return Fault("RT108", at, 1, f"the file ends while {still} open", hint)


def nothing() -> Fault:
    return Fault("RT111", 0, 1, "the file holds no table", "copy or generate it again")


def text_after(at: int) -> Fault:
    hint = "remove it; if it is a bracket, one was closed too early above"
    return Fault("RT109", at, 1, "there is text after the end of the table", hint)


def too_many(at: int, count: int) -> Fault:
    return Fault(
        "RT114", at, 1, f"{count} faults of the text end here; the rest is not read", "check that this is a rank table"
    )


def too_deep(at: int, depth: int) -> Fault:
    return Fault("RT110", at, 1, f"nested more than {depth} levels deep", "a rank table needs fewer than 15 levels")


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
        self.patches: list[Patch] = []
        self.mendable = True  # the patches turn the text into JSON that says what was meant
        self.stopped = False  # before the end: what was read so far may mean something else
        self._text = text
        self._doubtful_end = -1  # of the last word that cannot be repaired

    def overwrite(self, fault: Fault | None, start: int, end: int, replacement: str = "") -> None:
        """Note a fault, and blanks or a `replacement` of the same length in its place. None: it is not worth one."""
        if fault is not None:
            self.faults.append(fault)
        self.patches.append(Patch(start, end, replacement or " " * (end - start)))

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
        fault = missing(self._text, mark, at, between)
        # After a word that cannot be understood, what is missing is not certain either.
        self.faults.append(fault._replace(repair=None) if at == self._doubtful_end else fault)
        if self._text[at] in " \t\r\n":
            self.patches.append(Patch(at, at + 1, mark))
        else:
            self.mendable = False

    def check_surrogates(self, token: Token) -> None:
        """Note half a surrogate pair in a string: Python lets it pass, HCCL's parser does not."""
        raw = self._text[token.start : token.end]
        if raw.startswith('"') and "\\u" in raw and any("\ud800" <= char <= "\udfff" for char in str(json.loads(raw))):
            self.faults.append(half_a_pair(token))
            self.mendable = False
