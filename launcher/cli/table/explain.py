"""`tlaunch table explain`: what a code means, and what HCCL calls it."""

from __future__ import annotations

import difflib
import json
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from launcher.core.errors import UsageError

if TYPE_CHECKING:
    from launcher.rank_table.catalogue import Entry

EPILOG = """\b
Examples:
  tlaunch table explain RT301
  tlaunch table explain EI0014
  tlaunch table explain
"""
SECTIONS = {
    "RT1": "the text is no JSON",
    "RT2": "the JSON is no table",
    "RT3": "HCCL refuses the table",
    "RT4": "HCCL goes on, people should look",
    "RT5": "what one reader asks for beyond HCCL (tlaunch validate --for)",
    "RT6": "HCCL refuses what one format adds",
}
WIDEST = 100  # columns; longer lines are hard to read
INDENT = 2
NEAR = 5  # codes that are offered for one that is not there


@click.command(epilog=EPILOG)
@click.option("--json", "as_json", is_flag=True, help="An array, one element per code.")
@click.argument("codes", nargs=-1, metavar="[CODE]...")
def explain(codes: tuple[str, ...], *, as_json: bool) -> None:
    """Explain what a code of `tlaunch validate` means.

    An error code of HCCL gives all codes that it stands for. Without CODE every code is listed, one line each.
    """
    from launcher.cli.console import write_out

    catalogue = _catalogue()
    entries = _chosen(codes, catalogue) if codes else list(catalogue.values())
    if as_json:
        write_out(json.dumps([_to_json(entry) for entry in entries], indent=INDENT) + "\n")
    elif codes:
        write_out("\n".join(_paragraphs(entry) for entry in entries))
    else:
        write_out("\n".join(_overview(entries)) + "\n")


def _catalogue() -> Mapping[str, Entry]:
    """All codes, in their order."""
    from launcher.rank_table import check  # noqa: F401 - what finds problems enters its codes into the catalogue
    from launcher.rank_table.catalogue import CATALOGUE

    return dict(sorted(CATALOGUE.items()))


def _chosen(codes: Sequence[str], catalogue: Mapping[str, Entry]) -> list[Entry]:
    """Raises UsageError for what is neither a code of ours nor one of HCCL's."""
    chosen: dict[str, Entry] = {}
    for code in (code.upper() for code in codes):
        found = [entry for entry in catalogue.values() if code in {entry.code, entry.hccl_code}]
        if not found:
            raise UsageError(f"there is no code {code!r}", hint=_nearest(code, catalogue))
        chosen.update((entry.code, entry) for entry in found)
    return list(chosen.values())


def _nearest(code: str, catalogue: Mapping[str, Entry]) -> str:
    known = [*catalogue, *{entry.hccl_code: None for entry in catalogue.values() if entry.hccl_code}]
    wanted = code if code.startswith(("RT", "EI")) else f"RT{code}"
    near = [name for name in known if name.startswith(wanted)][:NEAR] or difflib.get_close_matches(wanted, known, NEAR)
    return f"near it: {', '.join(near)}" if near else "`tlaunch table explain` lists all codes"


def _overview(entries: Sequence[Entry]) -> Iterator[str]:
    """One line per code, by hundreds."""
    for index, (hundred, members) in enumerate(groupby(entries, key=lambda entry: entry.code[:3])):
        yield from ([""] if index else [])
        yield f"{hundred}xx {SECTIONS.get(hundred, '')}".rstrip()
        for entry in members:
            yield f"  {entry.code}  {entry.severity.value:<7}  {entry.hccl_code or '':<6}  {entry.title}"


def _paragraphs(entry: Entry) -> str:
    hccl = f"HCCL reports {entry.hccl_code}" if entry.hccl_code else "HCCL has no code for it"
    only = f"; only with --for {entry.consumer}" if entry.consumer else ""
    head = f"{entry.code}: {entry.title}\n{entry.severity.value}; {hccl}{only}\n"
    width = min(WIDEST, shutil.get_terminal_size().columns)
    text = textwrap.fill(entry.explanation, width, break_long_words=False, break_on_hyphens=False)
    return f"{head}\n{text}\n" if text else head


def _to_json(entry: Entry) -> dict[str, Any]:
    return {
        "code": entry.code,
        "severity": entry.severity.value,
        "title": entry.title,
        "hccl_code": entry.hccl_code,
        "consumer": entry.consumer,
        "explanation": entry.explanation,
    }
