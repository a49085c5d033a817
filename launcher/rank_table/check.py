"""Check a parsed document: recognise its format, check its shape, apply the rules. Importing this loads every rule."""

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
from launcher.rank_table.model import INITIALIZING, Fields, Table, text_at
from launcher.rank_table.profile import CHIPS, Chip, Profile
from launcher.rank_table.rules import addresses, beyond_hccl
from launcher.rank_table.rules import table_rules as tables
from launcher.rank_table.schema import MAX_FAULTS, Shapes
from launcher.rank_table.table_format import VERSIONS, Format, recognise

# Importing these modules registers their codes in the catalogue.
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
MAX_COUNTED = 10_000  # findings of one rule beyond the reported ones
_CHIP_OF_FORMAT = {Format.LAB: "910", Format.CLOUD: "910", Format.V1_2: "a3", Format.V2_0: "a5"}


@frozen
class Checked:
    """The result of checking a document. Its findings have no line and column numbers yet."""

    format: Format | None
    table: Table | None  # None if the document is not a rank table
    chip: Chip
    findings: tuple[Found, ...]


def check_document(document: Document, path: Path, profile: Profile, *, at_most: int = MAX_FAULTS) -> Checked:
    """Check the structure of `document`, then apply the rules, with at most `at_most` findings for each rule."""
    found = recognise(document.value) if document.checkable else None
    named = tuple(_file_findings(path, found))
    if not document.checkable:
        return Checked(None, None, profile.hardware, named)
    if found is None or not found.is_rank_table:
        return Checked(found, None, profile.hardware, (*named, _no_table(document.value, found)))
    shapes = Shapes(at_most)
    table = READERS[found].read(document.value, shapes)
    chip = table.chip if profile.chip == "auto" else profile.hardware
    if chip.name == "auto":
        chip = CHIPS["none" if table.is_without_ascend else _CHIP_OF_FORMAT.get(found, "auto")]
    table = replace(table, chip=chip, consumer=profile.consumer, keys=frozenset(shapes.keys), complete=shapes.complete)
    of_rules = () if shapes.full else _rule_findings(table, at_most)  # skip rules for unread entries
    if found is Format.V2_0 and any(fault.code == "RT109" for fault in document.faults):
        message = "there is text after the table, and HCCL reads a v2.0 file to its end"
        named += (("RT208", Finding((), message, "remove everything after the last bracket of the table")),)
    # A device plugin adds the other fields when the table is completed, and HCCL does not read them before.
    has_begun = text_at(table.fields, "status") == INITIALIZING and found is not Format.V2_0
    of_shape = (
        (code, finding)
        for code, finding in shapes.findings()
        if not (has_begun and len(finding.pointer) <= 1 and code in {"RT204", "RT205", "RT206"})
    )
    return Checked(found, table, table.chip, (*named, *of_shape, *of_rules))


def _rule_findings(table: Table, at_most: int) -> Iterator[Found]:
    """Yield at most `at_most` findings per rule. If there are more, the last finding gives the number omitted."""
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
        hint = 'choose another file, or add the keys of a rank table, such as "version": "1.0" and "server_list"'
        return "RT203", Finding((), "this object has no `version` or other key of a rank table", hint)
    if isinstance(document, dict):
        message = f'version "{str(document["version"])[:20]}" is not a version of rank tables'
        return "RT203", Finding(("version",), message, 'write one of "' + '", "'.join(VERSIONS) + '"')
    kind = {list: "a list", str: "a string", bool: "true or false", type(None): "null"}.get(type(document), "a number")
    hint = "write an object with the keys version, status, server_count and server_list, or choose another file"
    return "RT201", Finding((), f"a rank table must be a JSON object, but this is {kind}", hint)


def _file_findings(path: Path, found: Format | None) -> Iterator[Found]:
    """Warn if HCCL would refuse the file because of its name.

    HCCL resolves symbolic links, and requires the first ".json" in the resolved path to be at the end of the path.
    """
    if str(path) == "-" or found is Format.V2_0:
        return
    real = os.path.realpath(path)
    first, whole = real.find(SUFFIX), len(real) - len(SUFFIX)
    if first < 0:
        message = f'the file name "{Path(real).name}" does not end in .json, so HCCL refuses the file'
        yield "RT406", Finding((), message, f"rename it to {Path(real).with_suffix(SUFFIX).name}")
    elif first != whole:
        start = real[: first + len(SUFFIX)][-60:]
        message = f'"{start}" contains .json before the end of the path, so HCCL refuses the path'
        yield "RT406", Finding((), message, "remove the first .json from the name of the file or its directory")


class Reader(NamedTuple):
    read: Callable[[Fields, Shapes], Table]
    cluster: Callable[[Table], Cluster]  # only for a table without errors


READERS = {
    Format.V1_0: Reader(server_list.read, server_list.cluster),
    Format.V1_1: Reader(node_list.read, node_list.cluster),
    Format.V1_2: Reader(server_list.read, server_list.cluster),
    Format.V2_0: Reader(rank_list.read, rank_list.cluster),
    Format.LAB: Reader(group_list.read_lab, group_list.lab_cluster),
    Format.CLOUD: Reader(group_list.read_cloud, group_list.cloud_cluster),
}
