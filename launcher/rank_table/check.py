"""From a parsed document to findings: which format, which shape, which rules. Loads every rule."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from launcher.core.frozen import frozen
from launcher.core.records import Cluster
from launcher.rank_table.catalogue import CATALOGUE, Finding, Found
from launcher.rank_table.document import Document
from launcher.rank_table.formats.group_list import group_list_reader as group_list
from launcher.rank_table.formats.group_list import group_list_rules
from launcher.rank_table.formats.node_list import node_list_reader as node_list
from launcher.rank_table.formats.node_list import node_list_rules
from launcher.rank_table.formats.rank_list import layer_rules, rank_list_rules
from launcher.rank_table.formats.rank_list import rank_list_reader as rank_list
from launcher.rank_table.formats.server_list import server_list_reader as server_list
from launcher.rank_table.formats.server_list import server_list_rules, super_pods
from launcher.rank_table.model import COMPLETED, Fields, Table, text_at
from launcher.rank_table.profile import CHIPS, Chip, Profile
from launcher.rank_table.rules import addresses, beyond_hccl
from launcher.rank_table.rules import table_rules as tables
from launcher.rank_table.schema import MAX_FAULTS, Shapes
from launcher.rank_table.table_format import VERSIONS, Format, recognise

# Importing these enters their codes into the catalogue.
RULES = (
    tables,
    addresses,
    beyond_hccl,
    server_list_rules,
    super_pods,
    node_list_rules,
    rank_list_rules,
    layer_rules,
    group_list_rules,
)
SUFFIX = ".json"
MAX_COUNTED = 10_000  # findings of one rule beyond those that are kept
_CHIP_OF_FORMAT = {Format.LAB: "910", Format.CLOUD: "910", Format.V1_2: "a3", Format.V2_0: "a5"}


@frozen
class Checked:
    """Everything known about a document before its findings are given lines and columns."""

    format: Format | None
    table: Table | None  # None where the document is no rank table
    chip: Chip
    findings: tuple[Found, ...]


def check_document(document: Document, path: Path, profile: Profile, *, at_most: int = MAX_FAULTS) -> Checked:
    """Find what is wrong with `document` as far as its text can be read: `at_most` faults of shape, and of each rule."""
    found = recognise(document.value) if document.checkable else None
    named = tuple(_file_findings(path, found))
    if not document.checkable:
        return Checked(None, None, profile.hardware, named)
    if found is None or not found.is_rank_table:
        return Checked(found, None, profile.hardware, (*named, _no_table(document.value, found)))
    shapes = Shapes(at_most)
    table = READERS[found].read(document.value, shapes, profile)
    chip = table.chip
    if chip.name == "auto":
        chip = CHIPS["none" if table.is_without_ascend else _CHIP_OF_FORMAT.get(found, "auto")]
    table = replace(table, chip=chip, keys=frozenset(shapes.keys), complete=shapes.complete)
    of_rules = () if shapes.full else _rule_findings(table, at_most)  # what is missing there would be rules' nonsense
    if found is Format.V2_0 and any(fault.code == "RT109" for fault in document.faults):
        message = "HCCL reads a v2.0 file to its end, and there is text after the table"
        named += (("RT208", Finding((), message, "remove what follows the last bracket of the table")),)
    # Of a table that its writer has only begun, HCCL looks at the status alone.
    has_begun = text_at(table.fields, "status") not in {None, COMPLETED} and found is not Format.V2_0
    of_shape = (
        (code, finding)
        for code, finding in shapes.findings()
        if not (has_begun and len(finding.pointer) <= 1 and code in {"RT204", "RT205", "RT206"})
    )
    return Checked(found, table, table.chip, (*named, *of_shape, *of_rules))


def _rule_findings(table: Table, at_most: int) -> Iterator[Found]:
    """Yield at most `at_most` findings of each rule; the last one gives the number of the others, as far as counted."""
    entries = [entry for entry in CATALOGUE.values() if entry.concerns(table)]
    replaced = {entry.replaces for entry in entries}
    for entry in entries:
        if entry.check is None or entry.code in replaced:
            continue
        findings = entry.check(table)
        kept = list(islice(findings, at_most))
        left_out = sum(1 for _ in islice(findings, MAX_COUNTED))
        if left_out:
            more = f"at least {left_out}" if left_out == MAX_COUNTED else str(left_out)
            kept[-1] = replace(kept[-1], message=f"{kept[-1].message} (and {more} more like it)")
        yield from ((entry.code, finding) for finding in kept)


def _no_table(document: Any, found: Format | None) -> Found:
    if found is not None:
        message = f"this is not a rank table: it looks like a {found.title}"
        return "RT202", Finding((), message, found.use)
    if isinstance(document, dict) and "version" not in document:
        hint = 'a rank table starts with "version": "1.0" and has server_list'
        return "RT203", Finding((), "there is no version, and no other key of a rank table", hint)
    if isinstance(document, dict):
        message = f'version "{str(document["version"])[:20]}" is not known'
        return "RT203", Finding(("version",), message, 'write one of "' + '", "'.join(VERSIONS) + '"')
    kinds = {list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    kind = kinds.get(type(document), "a number")
    hint = "a rank table starts with { and has the keys version, status, server_count, server_list"
    return "RT201", Finding((), f"a rank table is a JSON object, this is {kind}", hint)


def _file_findings(path: Path, found: Format | None) -> Iterator[Found]:
    """Warn of a name that HCCL refuses.

    HCCL resolves links, and wants the first ".json" of the path to be its end.
    """
    if str(path) == "-" or found is Format.V2_0:
        return
    real = os.path.realpath(path)
    first, whole = real.find(SUFFIX), len(real) - len(SUFFIX)
    if first < 0:
        message = f'the name "{Path(real).name}" does not end in .json, and HCCL refuses such a file'
        yield "RT406", Finding((), message, f"rename it to {Path(real).with_suffix(SUFFIX).name}")
    elif first != whole:
        message = (
            f'"{real[: first + len(SUFFIX)][-60:]}" ends in .json before the path does, and HCCL refuses such a path'
        )
        yield "RT406", Finding((), message, "take the first .json out of the name of the file or its directory")


class Reader(NamedTuple):
    read: Callable[[Fields, Shapes, Profile], Table]
    cluster: Callable[[Table], Cluster]  # only for a table without errors


READERS = {
    Format.V1_0: Reader(server_list.read, server_list.cluster),
    Format.V1_1: Reader(node_list.read, node_list.cluster),
    Format.V1_2: Reader(server_list.read, server_list.cluster),
    Format.V2_0: Reader(rank_list.read, rank_list.cluster),
    Format.LAB: Reader(group_list.read_lab, group_list.lab_cluster),
    Format.CLOUD: Reader(group_list.read_cloud, group_list.cloud_cluster),
}
