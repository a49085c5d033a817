"""Pointers to values in a JSON document, and their positions in the text: offsets, lines and columns."""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable
from itertools import accumulate
from typing import Any, NamedTuple

Pointer = tuple[str | int, ...]  # ("server_list", 0, "server_id"): the path from the root to a value
_BLOCK = 4096  # characters that are searched for one position
_FOUND = -1  # the key of a trie node's own pointer; it cannot be a list index or an object key
_BLANK = re.compile(r"[ \t\n\r]*")
_SCALAR = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[^\s,\]}]+')
# Skips everything up to the next bracket, in steps of limited length.
_BRACKET = re.compile(r'(?:[^"\[\]{}]+|"[^"\\]*(?:\\.[^"\\]*)*"){0,1000}(?:([\[{])|([\]}])|)')
Trie = dict[str | int, Any]


class Place(NamedTuple):
    """The start and end of a value in the text, as character offsets."""

    key: int | None  # the start of its key; None for list items and the document itself
    start: int
    end: int  # the end of its first token: a container's position is its opening bracket


class RepeatedKey(NamedTuple):
    pointer: Pointer
    first: int  # offset of the first use of the key
    again: int  # offset of a later use, which replaces it


def json_pointer(pointer: Pointer) -> str:
    """Return a pointer in the notation of RFC 6901.

    >>> json_pointer(("server_list", 0, "a/b"))
    '/server_list/0/a~1b'
    """
    return "".join(f"/{str(name).replace('~', '~0').replace('/', '~1')}" for name in pointer)


class Lines:
    """Converts between offsets and line numbers of a text. It keeps one line count for each block of the text."""

    def __init__(self, text: str) -> None:
        self._text = text
        counts = (text.count("\n", at, at + _BLOCK) for at in range(0, len(text), _BLOCK))
        self._ended = [0, *accumulate(counts)]  # lines that end before block i

    def position(self, offset: int) -> tuple[int, int]:
        """Return the line number of a character, counted from 1, and the offset at which the line starts."""
        block = min(offset, len(self._text)) // _BLOCK
        ended = self._ended[block] + self._text.count("\n", block * _BLOCK, offset)
        if ended == 0:
            return 1, 0
        at = self._block_of_end(ended) * _BLOCK
        return ended + 1, self._text.rindex("\n", at, min(at + _BLOCK, offset)) + 1

    def start(self, number: int) -> int:
        """Return the offset of the first character of a line. The line must exist."""
        if number == 1:
            return 0
        block = self._block_of_end(number - 1)
        at = block * _BLOCK - 1
        for _ in range(number - 1 - self._ended[block]):
            at = self._text.index("\n", at + 1)
        return at + 1

    def _block_of_end(self, ended: int) -> int:
        """Return the index of the block in which line `ended` ends."""
        return bisect_left(self._ended, ended) - 1


def locate(text: str, pointers: Collection[Pointer], *, repeated_keys: bool = False) -> dict[Pointer, Place]:
    """Return the positions of the values at `pointers`. Values that do not exist are omitted.

    If a key is repeated, its last use counts. Set `repeated_keys` if the text may have repeated keys: the search then
    cannot stop early. The recursion depth is the length of the longest pointer.
    """
    first = _blank_end(text, 0)
    if not pointers or first == len(text):
        return {}
    if set(pointers) == {()}:  # only the document itself
        return {(): Place(None, first, first + 1 if text[first] in "{[" else _scalar_end(text, first))}
    locator = _Locator(text, endless=repeated_keys)
    # A trie of nested dictionaries; a pointer's last node holds the pointer under _FOUND.
    top: Trie = {}
    for pointer in pointers:
        node = top
        for name in pointer:
            node = node.setdefault(name, {})
        node[_FOUND] = pointer
    locator.walk(first, top, None, len(set(pointers)))
    return locator.places


class _Locator:
    def __init__(self, text: str, *, endless: bool) -> None:
        self.text = text
        self.places: dict[Pointer, Place] = {}
        self._endless = endless

    def walk(self, at: int, wanted: Trie, key_at: int | None, goal: int) -> int:
        """Record the positions of wanted values inside the value at `at`. Return the offset where this value ends."""
        opening = self.text[at]
        is_container = opening in "{["
        if _FOUND in wanted:
            self.places[wanted[_FOUND]] = Place(key_at, at, at + 1 if is_container else _scalar_end(self.text, at))
        if not is_container:
            return _scalar_end(self.text, at)
        at, index = at + 1, 0
        while (self._endless or len(self.places) < goal) and self.text[at := _separator_end(self.text, at)] not in "}]":
            value_at, below = at, wanted.get(index)
            if opening == "{":
                key_end = _scalar_end(self.text, at)
                raw = self.text[at:key_end]
                value_at = _separator_end(self.text, key_end)
                below = wanted.get(str(json.loads(raw)) if "\\" in raw else raw[1:-1])
            if below is None:
                at = value_end(self.text, value_at)
            else:
                at = self.walk(value_at, below, at if opening == "{" else None, goal)
            index += 1
        return at + 1


def _separator_end(text: str, at: int) -> int:
    """Return the offset after a comma or colon and the blanks around it."""
    at = _blank_end(text, at)
    return _blank_end(text, at + 1) if text[at] in ",:" else at


def _blank_end(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return match.end() if match else at


def _scalar_end(text: str, at: int) -> int:
    match = _SCALAR.match(text, at)
    return match.end() if match else at


def value_end(text: str, at: int) -> int:
    if text[at] not in "{[":
        return _scalar_end(text, at)
    depth = 0
    for match in _BRACKET.finditer(text, at):
        depth += (match.lastindex == 1) - (match.lastindex == 2)
        if depth == 0:
            return match.end()
    return len(text)


_PUNCTUATION = frozenset("{}[],: \t\r\n")
_LINE_END = re.compile(r"\r?\n|\Z")


class Edit(NamedTuple):
    """A replacement of the characters from `start` to `end` by `text`. Also used for removals and insertions."""

    start: int
    end: int
    text: str


def apply_edits(text: str, edits: Iterable[Edit]) -> tuple[str, list[Edit]]:
    """Apply the edits, and remove blanks that become superfluous. Return the new text and the edits made.

    Edits must not overlap.

    >>> apply_edits("[1, 2, /* two */ ]", [Edit(5, 6, ""), Edit(7, 16, "")])[0]
    '[1, 2 ]'
    """
    joined: list[Edit] = []
    # Removals separated only by blanks are merged, so that no blank is removed twice.
    for edit in sorted(edits):
        last = joined[-1] if joined else None
        if last and _is_removal(last) and _is_removal(edit) and not text[last.end : edit.start].strip(" \t"):
            joined[-1] = Edit(last.start, edit.end, "")
        else:
            joined.append(edit)
    made: list[Edit] = []
    for index, edit in enumerate(joined):
        tidied = _tidied(text, edit)
        # An edit does not remove blanks that a neighbour removes.
        lowest = made[-1].end if made else 0
        highest = joined[index + 1].start if index + 1 < len(joined) else len(text)
        made.append(tidied._replace(start=max(tidied.start, lowest), end=min(tidied.end, highest)))
    return overwritten(text, made), made


def overwritten(text: str, edits: Iterable[Edit]) -> str:
    """Apply the edits without any other change, and return the new text. The edits must be in ascending order."""
    parts, at = [], 0
    for edit in edits:
        parts += [text[at : edit.start], edit.text]
        at = edit.end
    return "".join([*parts, text[at:]])


class Origins:
    """A map from positions in an edited text to positions in the original text."""

    def __init__(self, made: Iterable[Edit]) -> None:
        self._edits = list(made)
        shifts = accumulate((len(edit.text) - (edit.end - edit.start) for edit in self._edits), initial=0)
        # The range of each edit's new text, after the edits.
        self._starts = [edit.start + shift for edit, shift in zip(self._edits, shifts, strict=False)]

    def offset(self, offset: int) -> int:
        """Convert an offset in the new text to the original text. For inserted text, return the insertion's start."""
        index = bisect_right(self._starts, offset) - 1
        if index < 0:
            return offset
        edit, since = self._edits[index], offset - self._starts[index]
        return edit.start if since < len(edit.text) else edit.end + since - len(edit.text)


def _is_removal(edit: Edit) -> bool:
    return not edit.text and edit.start < edit.end


def _tidied(text: str, edit: Edit) -> Edit:
    """Extend a removal to the blanks around it that become superfluous. If the line becomes blank, remove all of it."""
    if not _is_removal(edit):
        return edit
    left, right = edit.start, edit.end
    while left and text[left - 1] in " \t":
        left -= 1
    while right < len(text) and text[right] in " \t":
        right += 1
    starts_line = left == 0 or text[left - 1] == "\n"
    line_end = _LINE_END.match(text, right)
    if line_end:
        return Edit(left, line_end.end() if starts_line else right, "")
    if starts_line or left < edit.start or text[left - 1] in "[{":
        return Edit(edit.start, right, "")
    joins_words = text[left - 1] not in _PUNCTUATION and text[edit.end] not in _PUNCTUATION
    return edit._replace(text=" ") if joins_words else edit
