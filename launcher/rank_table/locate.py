"""Give findings their places: lines and columns, in file order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from launcher.core.text import printable
from launcher.rank_table.catalogue import CATALOGUE, Finding, Found
from launcher.rank_table.chips import Chip
from launcher.rank_table.diagnostics import Problem
from launcher.rank_table.document import Document
from launcher.rank_table.faults import Fault
from launcher.rank_table.places import Place, Pointer, RepeatedKey, json_pointer

Places = Mapping[Pointer, Place]


def located_problems(document: Document, found: Iterable[Found], chip: Chip) -> tuple[Problem, ...]:
    """Faults of the text and findings of the rules, with lines and columns, in file order, as bad as they are on `chip`."""
    findings = list(found)
    pointers = {finding.pointer for _, finding in findings} | {finding.earlier for _, finding in findings}
    places = document.locate(part for pointer in pointers if pointer is not None for part in _with_parents(pointer))
    located = [(fault, "") for fault in document.faults]
    located += [(_repeat_fault(document, repeat), json_pointer(repeat.pointer)) for repeat in document.repeats]
    located += [
        (_finding_fault(document, places, code, finding), json_pointer(finding.pointer)) for code, finding in findings
    ]
    located.sort(key=lambda pair: (pair[0].offset, pair[0].code))
    return tuple(_problem(document, fault, pointer, chip) for fault, pointer in located)


def _with_parents(pointer: Pointer) -> Iterator[Pointer]:
    """The way there: where a pointer leads nowhere, what is there of the way is shown."""
    yield from (pointer[:length] for length in range(len(pointer), -1, -1))


def _finding_fault(document: Document, places: Places, code: str, finding: Finding) -> Fault:
    way = (places[part] for part in _with_parents(finding.pointer) if part in places)
    place = next(way, Place(None, 0, 1))
    message = finding.message
    if finding.earlier is not None and finding.earlier in places:
        message += f", first on line {document.position(places[finding.earlier].start).line}"
    if finding.at_key and place.key is not None:
        return Fault(code, place.key, len(str(finding.pointer[-1])) + 2, message, finding.hint)
    return Fault(code, place.start, place.end - place.start, message, finding.hint)


def _repeat_fault(document: Document, repeat: RepeatedKey) -> Fault:
    key, line = str(repeat.pointer[-1]), document.position(repeat.first).line
    message = f'key "{key[:40]}" is written twice, first on line {line}; the last one counts'
    return Fault("RT405", repeat.again, len(key) + 2, message, "remove one of the two")


def _problem(document: Document, fault: Fault, pointer: str, chip: Chip) -> Problem:
    position, severity = document.position(fault.offset), CATALOGUE[fault.code].severity_on(chip)
    return Problem(
        code=fault.code,
        severity=severity,
        message=printable(fault.message),
        hint=None if fault.hint is None else printable(fault.hint),
        pointer=pointer,
        line=position.line,
        column=position.column,
        width=fault.width,
    )
