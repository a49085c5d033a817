"""Repair those faults in a table's text that need no decision by a person.

Repairs are made in passes, because one repair can uncover further faults: first the JSON syntax, then single values and
missing counts, then the order of entries. Everything else stays the same, byte for byte: indentation, the order of
keys, line endings, a byte order mark. Ranks, ids and addresses keep their values.

A wrong count may be the only trace of a lost entry. So a corrected count is only offered, and written on request.
"""

from __future__ import annotations

import codecs
import difflib
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from launcher.core.frozen import frozen
from launcher.core.text import printable
from launcher.rank_table.catalogue import Addition, Finding, Found
from launcher.rank_table.check import check_document
from launcher.rank_table.document import Document, parse_document
from launcher.rank_table.model import Table
from launcher.rank_table.positions import Edit, Origins, Place, Pointer, apply_edits, value_end
from launcher.rank_table.profile import Profile
from launcher.rank_table.syntax_errors import shown
from launcher.rank_table.table_format import RANKED
from launcher.rank_table.table_reader import AS_HCCL, TableReport, parse_rank_table

MAX_DIFF_LINES = 5_000  # limit for comparing lines: the time grows with the square of the changes
MAX_PASSES = 20  # four are needed: text, values, inner lists, outer lists
# Keys that identify a process, a device or a network location: their notation may change, but not their value.
_IDENTITY = re.compile(r"(?:^|_)(?:id|ids|ip|addr|address|port|rank)$")
OF_SHAPE = frozenset({"RT201", "RT202", "RT205"})  # a document or value of the wrong kind
_WHOLE_NUMBER = re.compile(r'"?\s*\+?(-?)0*([0-9]+)\s*"?')
_BLANKS = " \t\r\n"


class Repair(NamedTuple):
    code: str | None  # of the problem; None for the order of entries, which HCCL accepts
    line: int  # from 1, in the original text
    message: str


class _Step(NamedTuple):
    code: str | None
    message: str
    edits: tuple[Edit, ...]


@frozen
class Fixed:
    """A repaired table. `data` is the file's new content, or `original` itself if there is nothing to repair."""

    original: bytes
    data: bytes
    before: str  # `before` and `after`: the texts, without a byte order mark
    after: str
    repairs: tuple[Repair, ...]
    report: TableReport  # of `data`
    offers: tuple[Repair, ...] = ()  # repairs that were not made, because they may hide a fault

    @property
    def changed(self) -> bool:
        return self.data != self.original

    def diff(self, name: str) -> str:
        """Return the changes as a unified diff. The diff is empty if only the encoding changes.

        If either text has more than `MAX_DIFF_LINES` lines, return the number of changed lines and a command that
        compares the texts.
        """
        if self.before == self.after:
            return ""
        # Unlike str.splitlines, split only at line feeds.
        old, new = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in (self.before, self.after))
        if max(len(old), len(new)) > MAX_DIFF_LINES:
            changed = (Counter(new) - Counter(old)).total()
            command = f"tlaunch table fix - --write < {name} | diff {name} -"
            return f"{name}: {changed:,} of {len(new):,} lines change, too many to show here\nhint: run `{command}`\n"
        lines = difflib.unified_diff(old, new, name, name)
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def fix_table(data: bytes, path: Path, profile: Profile = AS_HCCL, *, sort: bool = True, unsafe: bool = False) -> Fixed:
    """Return the table in `data` with its faults repaired. The file at `path` is neither read nor written.

    With `sort`, entries are sorted by rank unless this breaks a rule of the reader in `profile`. With `unsafe`, repairs
    that may hide a fault are made as well. UTF-16 and UTF-32 are converted to UTF-8. Text that cannot be decoded is not
    changed.
    """
    readable, repairs = _as_utf8(data)
    document = parse_document(readable)
    if any(fault.code == "RT101" for fault in document.faults):
        return Fixed(data, data, document.text, document.text, (), parse_rank_table(data, path, profile))
    before, mark = document.text, codecs.BOM_UTF8 if readable.startswith(codecs.BOM_UTF8) else b""
    first, in_text = document, list(repairs)
    history: list[Origins] = []
    offers: list[_Step] = []
    for _ in range(MAX_PASSES):
        steps, offers = _next_pass(document, path, profile, sort=sort, unsafe=unsafe)
        if not steps:
            break
        in_text += _as_repairs(steps, first, history)
        text, made = apply_edits(document.text, [edit for step in steps for edit in step.edits])
        history.append(Origins(made))
        document = parse_document(_encoded(text))
    fixed = mark + document.text.encode()
    report = parse_rank_table(fixed, path, profile)
    in_order = sorted(in_text, key=lambda repair: repair.line)
    offered = _as_repairs(offers, first, history)
    return Fixed(data, fixed, before, document.text, tuple(in_order), report, tuple(offered))


def _as_utf8(data: bytes) -> tuple[bytes, tuple[Repair, ...]]:
    codec = json.detect_encoding(data)
    if codec.startswith("utf-8"):
        return data, ()
    try:
        text = data.decode(codec).removeprefix("\ufeff")
        encoded = text.encode()
    except UnicodeError:
        return data, ()
    is_table = text.lstrip(_BLANKS).startswith(("{", "[")) and 2 * len(text.encode("ascii", "ignore")) > len(text)
    if not is_table:  # any data with zero bytes looks like UTF-16
        return data, ()
    return encoded, (Repair("RT101", 1, f"converted {codec[:6].upper()} to UTF-8"),)


def _as_repairs(steps: Iterable[_Step], first: Document, history: Sequence[Origins]) -> list[Repair]:
    """Convert the steps to repairs, with line numbers in the original document `first`."""
    repairs = []
    for step in steps:
        offset = step.edits[0].start
        for origins in reversed(history):
            offset = origins.offset(offset)
        repairs.append(Repair(step.code, first.position(offset).line, step.message))
    return repairs


def _encoded(text: str) -> bytes:
    """Encode the text as UTF-8 after a byte order mark. A reader then removes this mark, not one in the text itself."""
    return codecs.BOM_UTF8 + text.encode()


def _next_pass(
    document: Document, path: Path, profile: Profile, *, sort: bool, unsafe: bool
) -> tuple[list[_Step], list[_Step]]:
    """Return two lists: the repairs to make now, and the repairs to offer to the user because they need `unsafe`."""
    repairs = [(fault.code, fault.repair) for fault in document.faults if fault.repair is not None]
    steps = _apart(_Step(code, _described(document.text, repair), (repair,)) for code, repair in repairs)
    if any(step.code == "RT112" for step in steps) and not _fits_format(document, steps, path, profile):
        steps = []
    if steps or not document.checkable:
        return steps, []
    checked = check_document(document, path, profile, at_most=sys.maxsize)
    doubtful = [] if unsafe else [found for found in checked.findings if found[1].doubt]
    steps = _apart(_value_steps(document, (found for found in checked.findings if unsafe or not found[1].doubt)))
    offers = _apart(_value_steps(document, doubtful, "write"))
    if steps or not sort or checked.table is None:
        return steps, offers
    order = list(_moves_by_rank(document, checked.table))
    if not order:
        return [], offers
    # A reader may require an order other than by rank.
    text, _ = apply_edits(document.text, [edit for step in order for edit in step.edits])
    before, after = (parse_rank_table(_encoded(each), path, profile) for each in (document.text, text))
    does_harm = len(after.errors) > len(before.errors) or len(after.problems) > len(before.problems)
    return ([] if does_harm else order), offers


def _fits_format(document: Document, steps: Sequence[_Step], path: Path, profile: Profile) -> bool:
    """Apply the steps to a copy of the text. Return True if the result has the structure that its format requires."""
    text, _ = apply_edits(document.text, [edit for step in steps for edit in step.edits])
    errors = parse_rank_table(_encoded(text), path, profile).errors
    return not any(error.code in OF_SHAPE for error in errors)


def _apart(steps: Iterable[_Step]) -> list[_Step]:
    """Return the steps in file order. If several steps edit the same characters, only the first is kept."""
    kept: list[_Step] = []
    end = 0
    for step in sorted(steps, key=lambda step: step.edits):
        if step.edits[0].start >= end:
            kept.append(step)
            end = step.edits[-1].end
    return kept


def _value_steps(document: Document, found: Iterable[Found], verb: str = "wrote") -> Iterator[_Step]:
    wanted = [(code, finding) for code, finding in found if finding.rewrite or finding.addition]
    pointers = {finding.pointer for _, finding in wanted}
    pointers |= {(*finding.pointer, finding.addition.before) for _, finding in wanted if finding.addition}
    places = document.locate(pointers)
    for code, finding in wanted:
        if finding.addition:
            place = places.get((*finding.pointer, finding.addition.before))
            edit = None if place is None else _added(document.text, finding.addition, place)
        else:
            place = places.get(finding.pointer)
            edit = None if place is None else _rewritten(document.text, finding, place)
        if edit is not None:
            message = _described(document.text, edit, verb)
            yield _Step(code, f"{message}: {finding.doubt}" if finding.doubt else message, (edit,))


def _rewritten(text: str, finding: Finding, place: Place) -> Edit | None:
    """Return an edit that writes the suggested value, or None if this would change the meaning of a name or id.

    For example, "+07" becomes "7", but "7x" is left to a person although HCCL reads it as 7.
    """
    source, rewrite = text[place.start : place.end], finding.rewrite
    if rewrite in (None, source) or source[0] in "{[":
        return None
    if _IDENTITY.search(str(finding.pointer[-1])) or source.startswith('"') != rewrite.startswith('"'):
        before, after = _WHOLE_NUMBER.fullmatch(source), _WHOLE_NUMBER.fullmatch(rewrite)
        if before is None or after is None or before.groups() != after.groups():
            return None
    return Edit(place.start, place.end, rewrite)


def _added(text: str, addition: Addition, place: Place) -> Edit | None:
    """Return the edit that inserts `addition` before the member at `place`, or None if this is not possible."""
    at, neighbour = place.key or 0, json.dumps(addition.before)
    if not text.startswith(neighbour, at):
        return None
    between = text[at + len(neighbour) : place.start]
    gap = text[len(text[:at].rstrip(_BLANKS)) : at]
    if not gap and between.endswith(" "):
        gap = " "
    return Edit(at, at, f"{json.dumps(addition.key)}{between}{addition.value},{gap}")


def _described(text: str, edit: Edit, verb: str = "wrote") -> str:
    old, new = text[edit.start : edit.end], edit.text.rstrip(_BLANKS + ",") or edit.text
    if not old:
        return f"added {shown(new)}"
    return f"{verb} {shown(new)} for {shown(old)}" if new else f"removed {printable(shown(old))}"


def _moves_by_rank(document: Document, table: Table) -> Iterator[_Step]:
    """For each list that is not sorted by rank, yield a step with the edits that sort it.

    A list that contains another unsorted list is left for the next pass. If the table has no ranks or invalid ranks,
    nothing is yielded.
    """
    if table.format not in RANKED or not table.ranks_are_sound:
        return
    # For every list on the path to a device: the lowest rank of each entry, by index.
    lists: defaultdict[Pointer, dict[int, int]] = defaultdict(dict)
    for device in table.devices:
        for depth, index in enumerate(device.pointer):
            if isinstance(index, int) and device.global_rank is not None:
                ranks = lists[device.pointer[:depth]]
                ranks[index] = min(device.global_rank, ranks.get(index, device.global_rank))
    # Only lists whose entries all have a rank, and whose ranks are not ascending.
    unsorted = {}
    for pointer, ranks in lists.items():
        order = sorted(ranks, key=ranks.__getitem__)
        if sorted(ranks) == list(range(len(ranks))) != order:
            unsorted[pointer] = order
    around = {pointer[:length] for pointer in unsorted for length in range(len(pointer))}
    inner = {pointer: order for pointer, order in unsorted.items() if pointer not in around}
    places = document.locate((*pointer, index) for pointer, order in inner.items() for index in order)
    for pointer, order in inner.items():
        starts = [places[(*pointer, index)].start for index in range(len(order))]
        spans = [(start, value_end(document.text, start)) for start in starts]
        moved = ((spans[index], spans[source]) for index, source in enumerate(order) if index != source)
        name = pointer[-1] if pointer else "the list"
        message = f"put the {len(order)} entries of {name} in the order of their ranks"
        yield _Step(None, message, tuple(Edit(*to, document.text[slice(*of)]) for to, of in moved))
