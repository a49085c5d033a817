"""`tlaunch table explain`: explain a problem code of tlaunch, or an error code of HCCL."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import click

from launcher.cli.options.completion import one_of
from launcher.cli.text.stdout import write_out
from launcher.core.codec import encode, json_text
from launcher.core.errors import UsageError
from launcher.core.text import slips
from launcher.rank_table import check  # noqa: F401 - registers all codes in the catalogue
from launcher.rank_table.catalogue import CATALOGUE, HCCL_CODES, Entry

EPILOG = """\b
Examples:
  tlaunch table explain RT301
  tlaunch table explain EI0014
  tlaunch table explain

Exit codes: 0 success; 2 wrong usage, or a code that does not exist.
"""
SECTIONS = {
    "RT1": "the text is not JSON",
    "RT2": "the JSON is not a table",
    "RT3": "HCCL refuses the table",
    "RT4": "HCCL accepts the table, but check it",
    "RT5": "requirements of one reader beyond HCCL's (tlaunch validate --for)",
    "RT6": "HCCL refuses the table (rules of one format)",
}
MAX_COLUMNS = 100  # longer lines are hard to read
FAMILIES = ("RT", "EI", "EJ")  # RT: tlaunch; EI, EJ: HCCL
NEAR = 5  # number of suggestions for an unknown code
NEXT = 3  # largest difference between the numbers of an unknown code and a suggestion
FAR = 10**9
SHOWN = ("code", "severity", "title", "hccl_code", "consumer", "explanation")  # in JSON


@click.command(epilog=EPILOG)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array with one element per code.")
@click.argument(
    "codes", nargs=-1, metavar="[CODE]...", shell_complete=one_of(lambda: sorted({*CATALOGUE, *HCCL_CODES}))
)
def explain(codes: tuple[str, ...], *, as_json: bool) -> None:
    """Explain what a code of `tlaunch validate` means.

    For an error code of HCCL, such as EI0014, also explain all codes that it covers. Without CODE, list all codes of
    `tlaunch validate`.
    """
    catalogue = dict(sorted(CATALOGUE.items()))
    wanted = list(dict.fromkeys(code.upper() for code in codes))
    for code in wanted:
        if code not in catalogue and code not in HCCL_CODES:
            raise UsageError(f"unknown code {code!r}", hint=_nearest(code, [*catalogue, *HCCL_CODES]))
    if as_json:
        write_out(json_text(_to_json(wanted or list(catalogue), catalogue)))
        return
    entries = list(catalogue.values())
    pages = [
        _of_tlaunch(catalogue[code])
        if code in catalogue
        else _of_hccl(code, [entry for entry in entries if entry.hccl_code == code])
        for code in wanted
    ] or [_overview(entries)]
    write_out("\n".join("".join(f"{line}\n" for line in page) for page in pages))


def _nearest(code: str, known: Sequence[str]) -> str:
    """Return a hint that suggests known codes similar to `code`, the nearest first."""
    wanted = code if code.startswith(FAMILIES) else f"RT{code}"
    near = [name for name in known if name.startswith(wanted) and wanted not in FAMILIES]
    close = (name for name in known if slips(name, code) == 1 or _apart(name, wanted) <= NEXT)
    near = near or sorted(close, key=lambda name: _apart(name, wanted))
    return f"did you mean {', '.join(near[:NEAR])}?" if near else "list all codes with `tlaunch table explain`"


def _apart(name: str, wanted: str) -> int:
    """Return the difference between the numbers of two codes, or `FAR` if they cannot be compared."""
    one, other = name[2:], wanted[2:]
    is_comparable = name[:2] == wanted[:2] and one.isdecimal() and other.isdecimal()
    return abs(int(one) - int(other)) if is_comparable else FAR


def _overview(entries: Sequence[Entry]) -> Iterator[str]:
    for index, (hundred, members) in enumerate(groupby(entries, key=lambda entry: entry.code[:3])):
        yield from ([""] if index else [])
        yield f"{hundred}xx {SECTIONS.get(hundred, '')}".rstrip()
        for entry in members:
            yield f"  {entry.code}  {entry.severity.value:<7}  {entry.hccl_code or '':<6}  {entry.title}"


def _of_hccl(code: str, members: Sequence[Entry]) -> Iterator[str]:
    """Yield an HCCL code's meaning, the tlaunch codes that it covers, and how to find the code that applies."""
    meaning = HCCL_CODES[code]
    yield from (f"{code}: {meaning.title}", "reported by HCCL", "", _filled(meaning.explanation), "")
    if members:
        yield from (*_overview(members), "")
        yield "run `tlaunch validate FILE` to find the code, and `tlaunch table explain RTnnn` to explain it"
    else:
        yield "a fault of the table does not cause this code; `tlaunch validate FILE` finds other faults"


def _of_tlaunch(entry: Entry) -> Iterator[str]:
    hccl = f"HCCL reports {entry.hccl_code}" if entry.hccl_code else "HCCL has no code for it"
    only = f"; only with --for {entry.consumer}" if entry.consumer else ""
    yield f"{entry.code}: {entry.title}"
    yield f"{entry.severity.value}; {hccl}{only}"
    yield from ("", _filled(entry.explanation))


def _filled(text: str) -> str:
    width = min(MAX_COLUMNS, shutil.get_terminal_size().columns)
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


def _to_json(codes: Sequence[str], catalogue: Mapping[str, Entry]) -> list[dict[str, Any]]:
    """Return a JSON object for each code. An HCCL code is followed by the tlaunch codes that it covers."""
    shown: dict[str, dict[str, Any]] = {}
    for code in codes:
        if code in HCCL_CODES:
            meaning = HCCL_CODES[code]
            own = {"code": code, "severity": None, "title": meaning.title, "hccl_code": code, "consumer": None}
            shown[code] = {**own, "explanation": meaning.explanation}
        members = [entry for entry in catalogue.values() if code in {entry.code, entry.hccl_code}]
        shown |= {entry.code: {name: encode(getattr(entry, name)) for name in SHOWN} for entry in members}
    return list(shown.values())
