"""Every code that a problem can carry, in one place: what it is called, what HCCL calls it, and who asks for it.

RT1xx  the text is no JSON                  (found by `scanner`)
RT2xx  the JSON is no table                 (found by `formats` and `shape`, RT207 by a rule)
RT3xx  the table contradicts itself
RT4xx  warnings: HCCL continues, users should look
RT5xx  what one reader asks for beyond HCCL (only when that reader is named)
RT6xx  what HCCL asks for in one format only
Where no function in `rules` finds a code, `text_faults` explains it. A code is never given a second meaning, and never
renumbered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from typing import NamedTuple

from launcher.core.frozen import frozen
from launcher.rank_table.model import Table
from launcher.rank_table.positions import Pointer
from launcher.rank_table.profile import Chip
from launcher.rank_table.table_format import Format


class Severity(Enum):
    ERROR = "error"
    WARNING = "warning"


class Addition(NamedTuple):
    """A member for the object at a finding's pointer, which may be put in front of another one of its members."""

    key: str
    value: str  # as JSON
    before: str  # the key of that other member


@frozen
class Finding:
    """The finding of a rule: where, what, and the value to write instead."""

    pointer: Pointer
    message: str
    hint: str | None = None
    earlier: Pointer | None = None  # the other place that this one collides with; its line is added to the message
    at_key: bool = False  # underline the key, not its value
    rewrite: str | None = None  # JSON that may replace the value; safe to apply unless there is a `doubt`
    doubt: str | None = None  # what else may be wrong, which the rewrite would hide
    addition: Addition | None = None  # what may be added without a decision by a person


Found = tuple[str, Finding]  # a code of the catalogue and what was found under it


Check = Callable[[Table], Iterator[Finding]]


@frozen
class Entry:
    """One code of the catalogue."""

    code: str
    severity: Severity
    title: str
    explanation: str  # a paragraph: what the rule says and why
    hccl_code: str | None = None  # the error code that HCCL reports for the same fault
    check: Check | None = None  # None where the scanner, the formats or the shapes find it
    formats: frozenset[Format] | None = None  # None: every format that is read
    consumer: str | None = None  # asked for by this reader alone
    ascend_only: bool = False  # only HCCL asks for it: a warning on other hardware
    replaces: str | None = None  # the code of a warning that is not worth saying beside this rule of a consumer

    def severity_on(self, chip: Chip) -> Severity:
        """Return the severity of the problem for processes on `chip`."""
        return Severity.WARNING if self.ascend_only and not chip.is_ascend else self.severity

    def concerns(self, table: Table) -> bool:
        """Return whether the rule applies to tables of this format, read by this consumer."""
        of_format = self.formats is None or table.format in self.formats
        return of_format and self.consumer in (None, table.consumer)


CATALOGUE: dict[str, Entry] = {}


def rule(
    code: str,
    title: str,
    *,
    hccl_code: str | None = "EI0014",
    severity: Severity = Severity.ERROR,
    formats: frozenset[Format] | None = None,
    consumer: str | None = None,
    ascend_only: bool = False,
    replaces: str | None = None,
) -> Callable[[Check], Check]:
    """Enter a function into the catalogue. Its docstring is the explanation shown to users."""

    def enter_check(check: Check) -> Check:
        explanation = " ".join((check.__doc__ or "").split())
        enter(Entry(code, severity, title, explanation, hccl_code, check, formats, consumer, ascend_only, replaces))
        return check

    return enter_check


# What HCCL accepts, and users should look at.
warning = partial(rule, severity=Severity.WARNING, hccl_code=None)


def enter(entry: Entry) -> None:
    """Add an entry.

    Raises:
        ValueError: its code has a meaning already, or nothing explains it.
    """
    if entry.code in CATALOGUE:
        raise ValueError(f"{entry.code} has two meanings: {CATALOGUE[entry.code].title!r} and {entry.title!r}")
    if not entry.explanation:
        raise ValueError(f"{entry.code} is not explained")
    CATALOGUE[entry.code] = entry
