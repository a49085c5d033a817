"""What is wrong with a table, and how it is shown: as good compilers do, with the line and a caret."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from enum import Enum

from launcher.core.frozen import frozen
from launcher.core.text import printable
from launcher.rank_table.document import Document

WINDOW = 110  # characters of a source line that are shown around the caret
SHOWN_AT_MOST = 50  # problems printed in full


class Severity(Enum):
    ERROR = "error"
    WARNING = "warning"


@frozen
class Problem:
    """One thing to repair."""

    code: str  # RT101 ...: stable, explained in the catalogue
    severity: Severity
    message: str
    hint: str | None
    pointer: str  # RFC 6901, "" for the document itself
    line: int  # from 1
    column: int  # from 1, in characters
    width: int = 1  # characters to underline


Style = Callable[[str, str, Severity], tuple[str, str]]  # the place and the kind of a problem, marked for a terminal


def plain(place: str, kind: str, _severity: Severity) -> tuple[str, str]:
    """The style without marks."""
    return place, kind


def render_problems(problems: Sequence[Problem], document: Document, name: str) -> str:
    """All problems with their source lines, then one line that counts them. `name` is the file as the user calls it."""
    shown = render_each(problems, document, name)
    return "\n".join([*shown, f"{printable(name)}: {count_problems(problems)}"])


def render_each(problems: Sequence[Problem], document: Document, name: str, style: Style = plain) -> list[str]:
    """A text of several lines for each problem, of the first `SHOWN_AT_MOST`; the last one says how many are left."""
    shown = [_rendered(problem, document, name, style) for problem in problems[:SHOWN_AT_MOST]]
    if len(problems) > SHOWN_AT_MOST:
        shown.append(f"... and {len(problems) - SHOWN_AT_MOST} more")
    return shown


def headline(problem: Problem, name: str, style: Style = plain) -> str:
    """One line: `hccl.json:8:9: warning[RT333]: message`. A file's name may hold anything; nothing moves the cursor."""
    severity = problem.severity
    place = f"{printable(name)}:{problem.line}:{problem.column}:"
    place, kind = style(place, f"{severity.value}[{problem.code}]", severity)
    return f"{place} {kind}: {problem.message}"


def count_problems(problems: Sequence[Problem]) -> str:
    """In words: "2 errors, 1 warning"."""
    counts = ((kind, sum(problem.severity is kind for problem in problems)) for kind in Severity)
    words = [f"{count} {kind.value}{'s' if count > 1 else ''}" for kind, count in counts if count]
    return ", ".join(words) or "no problems"


def _rendered(problem: Problem, document: Document, name: str, style: Style) -> str:
    gutter = f"{problem.line:>5} | "
    source, caret = _excerpt(document.line_text(problem.line), problem.column, problem.width)
    lines = [headline(problem, name, style), f"{gutter}{source}".rstrip(), f"{'':>5} | {caret}"]
    if problem.hint:
        lines.append(f"{'':>5} hint: {problem.hint}")
    return "\n".join(lines)


def _excerpt(line: str, column: int, width: int) -> tuple[str, str]:
    """The part of `line` around `column` and the caret line under it, aligned as a terminal shows them."""
    first = max(0, column - 1 - WINDOW // 2) if len(line) > WINDOW else 0
    part = line[first : first + WINDOW]
    lead = "…" if first else ""
    tail = "…" if first + WINDOW < len(line) else ""
    at = column - 1 - first
    carets = max(1, min(width, len(part) - at))
    padding = len(lead) + sum(_cells(char) for char in part[:at])
    under = sum(_cells(char) for char in part[at : at + carets])
    return f"{lead}{''.join(map(_visible, part))}{tail}", " " * padding + "^" * max(1, under)


def _visible(char: str) -> str:
    """One cell for every control character, so that no table can move the cursor of a terminal."""
    return " " if char == "\t" else char if char.isprintable() else "\N{MIDDLE DOT}"


def _cells(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
