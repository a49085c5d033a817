"""Every code that a problem can carry, in one place: what it is called and what HCCL calls it.

RT1xx  the text is no JSON           (found by `scanner`)
RT2xx  the JSON is no table          (found by `formats` and `schema`)
RT3xx  the table contradicts itself  (found by the functions in `rules`)
RT4xx  warnings: HCCL would go on, people should look
A code is never given a second meaning, and never renumbered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from launcher.rank_table.diagnostics import Severity
from launcher.rank_table.places import Pointer
from launcher.rank_table.table import Table


@dataclass(frozen=True)
class Finding:
    """What a rule found: where, what, and the value to write instead."""

    pointer: Pointer
    message: str
    hint: str | None = None
    earlier: Pointer | None = None  # the other place that this one collides with; its line is added to the message
    at_key: bool = False  # underline the key, not its value


Check = Callable[[Table], Iterator[Finding]]


@dataclass(frozen=True)
class Entry:
    """One code of the catalogue."""

    code: str
    severity: Severity
    title: str
    hccl_code: str | None = None  # the error code that HCCL reports for the same fault
    check: Check | None = None  # None where the scanner, the formats or the schema find it

    @property
    def explanation(self) -> str:
        """A paragraph for `explain`: what the rule says and why. Empty where the title says it all."""
        return " ".join((self.check.__doc__ or "").split()) if self.check else ""


CATALOGUE: dict[str, Entry] = {}


def rule(
    code: str, title: str, *, hccl_code: str | None = "EI0014", severity: Severity = Severity.ERROR
) -> Callable[[Check], Check]:
    """Enter a function into the catalogue. Its docstring is the explanation that people read."""

    def enter(check: Check) -> Check:
        _enter(Entry(code, severity, title, hccl_code, check))
        return check

    return enter


def _enter(entry: Entry) -> None:
    if entry.code in CATALOGUE:
        raise ValueError(f"{entry.code} has two meanings: {CATALOGUE[entry.code].title!r} and {entry.title!r}")
    CATALOGUE[entry.code] = entry


for _code, _title in (
    ("RT101", "the file is not UTF-8"),
    ("RT102", "something stands where JSON expects something else"),
    ("RT103", "a comma with nothing before or after it"),
    ("RT104", "a comment"),
    ("RT105", "a comma or colon is missing"),
    ("RT106", "a string that JSON does not allow"),
    ("RT107", "a word without double quotes"),
    ("RT108", "the file is cut off"),
    ("RT109", "text after the table"),
    ("RT110", "nested too deeply"),
    ("RT111", "the file is empty"),
    ("RT112", "brackets that do not match"),
    ("RT113", "an ellipsis"),
):
    _enter(Entry(_code, Severity.ERROR, _title, "EI0004"))
for _code, _title, _hccl_code in (
    ("RT201", "the document is not an object", "EI0004"),
    ("RT202", "a format that is known but not read", None),
    ("RT203", "an unknown version", "EI0014"),
    ("RT204", "a key is missing", "EI0017"),
    ("RT205", "a value of the wrong type", "EI0017"),
    ("RT206", "an empty list", "EI0014"),
):
    _enter(Entry(_code, Severity.ERROR, _title, _hccl_code))
_enter(Entry("RT405", Severity.WARNING, "a key is written twice in one object"))
_enter(Entry("RT406", Severity.WARNING, "the file's name does not end in .json", "EI0004"))
