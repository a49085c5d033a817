"""Changes to a text that leave everything else in it as it is, byte for byte."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

_PUNCTUATION = frozenset("{}[],: \t\r\n")
_LINE_END = re.compile(r"\r?\n|\Z")


class Edit(NamedTuple):
    """Replace text[start:end] by `text`: a removal where that is empty, an insertion where start == end."""

    start: int
    end: int
    text: str


def apply_edits(text: str, edits: Iterable[Edit]) -> tuple[str, list[Edit]]:
    """Return the changed text and the edits as made, ascending: removals take the blanks that only they needed.

    No two edits may overlap.

    >>> apply_edits("[1, 2, /* two */ ]", [Edit(5, 6, ""), Edit(7, 16, "")])[0]
    '[1, 2 ]'
    """
    made = _tidied_apart(text, list(_joined(text, sorted(edits))))
    parts, at = [], 0
    for edit in made:
        parts += [text[at : edit.start], edit.text]
        at = edit.end
    return "".join([*parts, text[at:]]), made


class Origins:
    """The places in the text before edits, as `apply_edits` made them, of places after them."""

    def __init__(self, made: Iterable[Edit]) -> None:
        self._starts: list[int] = []  # of each edit's text, after the edits
        self._edits: list[Edit] = []
        shift = 0
        for edit in made:
            self._starts.append(edit.start + shift)
            self._edits.append(edit)
            shift += len(edit.text) - (edit.end - edit.start)

    def offset(self, offset: int) -> int:
        """Return the place before the edits of what is at `offset` now; the start of an edit for what is new."""
        index = bisect_right(self._starts, offset) - 1
        if index < 0:
            return offset
        edit, since = self._edits[index], offset - self._starts[index]
        return edit.start if since < len(edit.text) else edit.end + since - len(edit.text)


def _tidied_apart(text: str, edits: Sequence[Edit]) -> list[Edit]:
    """Return each edit with the blanks that it takes along, but none that belong to its neighbours."""
    made: list[Edit] = []
    for index, edit in enumerate(edits):
        tidied = _tidied(text, edit)
        lowest = made[-1].end if made else 0
        highest = edits[index + 1].start if index + 1 < len(edits) else len(text)
        made.append(tidied._replace(start=max(tidied.start, lowest), end=min(tidied.end, highest)))
    return made


def _joined(text: str, edits: Iterable[Edit]) -> Iterator[Edit]:
    """Join removals with only blanks between them, so that no blank is counted for both."""
    last: Edit | None = None
    for edit in edits:
        if last is None:
            last = edit
        elif _is_removal(last) and _is_removal(edit) and not text[last.end : edit.start].strip(" \t"):
            last = Edit(last.start, edit.end, "")
        else:
            yield last
            last = edit
    if last is not None:
        yield last


def _is_removal(edit: Edit) -> bool:
    return not edit.text and edit.start < edit.end


def _tidied(text: str, edit: Edit) -> Edit:
    """Return a removal with the blanks around it, with its whole line where it stands alone. Never join two words."""
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
