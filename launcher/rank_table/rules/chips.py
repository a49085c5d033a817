"""Which hardware reads which format."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.rank_table.catalogue import Finding, rule
from launcher.rank_table.formats import Format
from launcher.rank_table.rows import Table

A5 = "a5"  # has a library of its own, for v2.0 alone


@rule("RT207", "a format that this chip does not read", ascend_only=True)
def format_not_read(table: Table) -> Iterator[Finding]:
    """An A5 reads v2.0 and nothing else, all other chips read every format but v2.0.

    HCCL comes with one library for A5 and one for all earlier chips, and each answers to the other's tables that it
    does not support them. A table of v1.0 that a node got before its hardware was replaced is the usual case.
    """
    chip, is_newest = table.chip, table.format is Format.V2_0
    if chip.name == "auto" or not chip.is_ascend or (chip.name == A5) == is_newest:
        return
    read = "v2.0 only" if chip.name == A5 else "every format but v2.0"
    message = f"{chip.title} reads {read}, and this is another format: {table.format.title}"
    hint = f"describe the cluster in v{'2.0' if chip.name == A5 else '1.0'}, or check it for the chip that it is for"
    yield Finding(("version",) if "version" in table.fields else (), message, hint)
