"""Format problems of a table like compiler errors: the source line, and a caret below the fault."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence

from launcher.core.frozen import frozen
from launcher.core.text import printable
from launcher.rank_table.catalogue import CATALOGUE, Found, Severity
from launcher.rank_table.document import Document
from launcher.rank_table.positions import Place, Pointer, json_pointer
from launcher.rank_table.profile import Chip
from launcher.rank_table.syntax_errors import Fault

MAX_COLUMNS = 120  # limit for a source line with its number
MIN_EXCERPT_COLUMNS = 20  # minimum for a source line, on narrow terminals
MAX_CHARACTERS = 4 * MAX_COLUMNS  # limit for a cut line; combining characters take no column
MAX_SHOWN = 50  # problems printed in full
Style = Callable[[str, str, Severity], tuple[str, str]]  # colours a problem's position and kind


@frozen
class Problem:
    code: str  # a code of the catalogue, such as RT101
    severity: Severity
    message: str
    hint: str | None
    pointer: str  # RFC 6901, "" for the document itself
    line: int  # from 1
    column: int  # from 1, in characters
    width: int = 1  # characters to underline


def plain(place: str, kind: str, _severity: Severity) -> tuple[str, str]:
    return place, kind


def render_problems(problems: Sequence[Problem], document: Document, name: str, *, columns: int | None = None) -> str:
    """Return the text of all problems with their source lines, and a final line with the number of problems.

    `name` is the name of the file as the user gave it. `columns` is the terminal's width, None without a terminal.
    """
    shown = render_each(problems, document, name, columns=columns)
    return "\n".join([*shown, f"{printable(name)}: {count_problems(problems)}"])


def render_each(
    problems: Sequence[Problem], document: Document, name: str, style: Style = plain, *, columns: int | None = None
) -> list[str]:
    """Return the texts of the first `MAX_SHOWN` problems. If there are more, a final text says how many."""
    shown = []
    for problem in problems[:MAX_SHOWN]:
        number = f"{problem.line:>5} | "
        room = max(min(columns or MAX_COLUMNS, MAX_COLUMNS) - len(number), MIN_EXCERPT_COLUMNS)
        source, caret = _excerpt(document.line_text(problem.line), problem.column, problem.width, room)
        lines = [headline(problem, name, style), f"{number}{source}".rstrip(), f"{'| ':>{len(number)}}{caret}"]
        if problem.hint:
            lines.append(f"{'':>5} hint: {problem.hint}")
        shown.append("\n".join(lines))
    if len(problems) > MAX_SHOWN:
        shown.append(f"... and {len(problems) - MAX_SHOWN} more")
    return shown


def headline(problem: Problem, name: str, style: Style = plain) -> str:
    """Return a headline such as `hccl.json:8:9: warning[RT333]: message`. Control characters are escaped."""
    severity = problem.severity
    place, kind = f"{printable(name)}:{problem.line}:{problem.column}:", f"{severity.value}[{problem.code}]"
    place, kind = style(place, kind, severity)
    return f"{place} {kind}: {problem.message}"


def count_problems(problems: Sequence[Problem]) -> str:
    """Return the counts as text, such as "2 errors, 1 warning"."""
    counts = ((kind, sum(problem.severity is kind for problem in problems)) for kind in Severity)
    words = [f"{count} {kind.value}{'s' if count > 1 else ''}" for kind, count in counts if count]
    return ", ".join(words) or "no problems"


def _excerpt(line: str, column: int, width: int, room: int) -> tuple[str, str]:
    """Return at most `room` columns of `line` around `column`, and a second line with carets that underline the fault.

    The fault is in the middle if the line continues on both sides. "…" marks a cut.
    """
    at = min(column - 1, len(line))
    first, end = 0, len(line)
    if end > room or sum(map(_cells, line)) > room:
        first, end = _window(line, at, width, room - 2)
    fault_end = min(at + width, end)
    # Control characters take one cell, so that a table cannot move the terminal's cursor.
    visible = (" " if char == "\t" else char if char.isprintable() else "\N{MIDDLE DOT}" for char in line[first:end])
    lead, tail = "…" if first else "", "…" if end < len(line) else ""
    padding = len(lead) + sum(map(_cells, line[first:at]))
    return f"{lead}{''.join(visible)}{tail}", " " * padding + "^" * max(1, sum(map(_cells, line[at:fault_end])))


def _window(line: str, at: int, width: int, room: int) -> tuple[int, int]:
    """Return the start and end of a part of `line` that fits in `room` columns, centred on the marked characters.

    If the marked characters take more than half of `room`, only their beginning is shown.
    """
    first = end = at
    context = room // 2
    while end < min(at + width, len(line), at + MAX_COLUMNS) and (cells := _cells(line[end])) <= room - context:
        end, room = end + 1, room - cells
    left = right = 0  # columns on each side
    while end - first < MAX_CHARACTERS:
        before = _cells(line[first - 1]) if first > 0 else room + 1
        after = _cells(line[end]) if end < len(line) else room + 1
        if before <= room and (left <= right or after > room):
            first, left, room = first - 1, left + before, room - before
        elif after <= room:
            end, right, room = end + 1, right + after, room - after
        else:
            break
    return first, end


def _cells(char: str) -> int:
    """Return the number of terminal columns that a character takes."""
    if unicodedata.category(char) in {"Mn", "Me"}:  # combines with the previous character
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def located_problems(document: Document, found: Iterable[Found], chip: Chip) -> tuple[Problem, ...]:
    """Return syntax errors and rule findings as problems with lines and columns, in file order.

    `chip` determines the severity of the findings.
    """
    findings = list(found)
    located = [(fault, "") for fault in document.faults]
    for repeat in document.repeats:
        key = str(repeat.pointer[-1])
        first = _first(document, repeat.first, repeat.again)
        message = f'key "{key[:40]}" is written twice, {first}; the last one counts'
        fault = Fault("RT405", repeat.again, len(key) + 2, message, "remove one of the two")
        located.append((fault, json_pointer(repeat.pointer)))
    pointers = {finding.pointer for _, finding in findings} | {finding.earlier for _, finding in findings}
    places = document.locate(part for pointer in pointers if pointer is not None for part in _with_parents(pointer))
    for code, finding in findings:
        place = next((places[part] for part in _with_parents(finding.pointer) if part in places), Place(None, 0, 1))
        message, at, width = finding.message, place.start, place.end - place.start
        if finding.earlier is not None and finding.earlier in places:
            message += f", {_first(document, places[finding.earlier].start, at)}"
        if finding.at_key and place.key is not None:
            at, width = place.key, len(str(finding.pointer[-1])) + 2
        located.append((Fault(code, at, width, message, finding.hint), json_pointer(finding.pointer)))
    located.sort(key=lambda pair: (pair[0].offset, pair[0].code))
    problems = []
    for fault, pointer in located:
        line, column = document.position(fault.offset)
        severity, hint = CATALOGUE[fault.code].severity_on(chip), None if fault.hint is None else printable(fault.hint)
        message = printable(fault.message)
        problems.append(Problem(fault.code, severity, message, hint, pointer, line, column, fault.width))
    return tuple(problems)


def _first(document: Document, earlier: int, again: int) -> str:
    """Return a phrase that says where a value occurs first, such as "first on line 3" or "first in column 5"."""
    line, column = document.position(earlier)
    return f"first in column {column}" if line == document.position(again).line else f"first on line {line}"


def _with_parents(pointer: Pointer) -> Iterator[Pointer]:
    """Yield a JSON pointer, its parent, and so on up to the root."""
    yield from (pointer[:length] for length in range(len(pointer), -1, -1))
