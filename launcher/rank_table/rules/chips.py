"""Which hardware reads which format, and what an A2 asks for."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.rank_table.catalogue import Finding, rule
from launcher.rank_table.diagnostics import Severity
from launcher.rank_table.formats import STRINGS, Format
from launcher.rank_table.rows import Table

A2, HALF = "a2", 8  # devices of a module, of which a server has one or two
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


# A warning: a variable that the processes are given, or cards that are joined by nothing but a network, make it right.
@rule(
    "RT428",
    "two halves of an A2 server that are not used alike",
    hccl_code=None,
    severity=Severity.WARNING,
    formats=STRINGS - {Format.V1_1},
)
def halves_unlike(table: Table) -> Iterator[Finding]:
    """An A2 server of sixteen devices is two modules of eight, and a device is joined to the one eight above it.

    HCCL refuses a table of one such server that does not use the same places of both, unless HCCL_INTRA_ROCE_ENABLE=1
    sends what is between them over the network.
    """
    if table.chip.name != A2 or len(table.servers) != 1:
        return
    ids = sorted({device.device_id for device in table.devices if device.device_id is not None})
    low, high = [one for one in ids if one < HALF], [one for one in ids if one >= HALF]
    if low and high and low != [one - HALF for one in high]:
        message = (
            f"devices {_listed(low)} and {_listed(high)} of an A2 server are not at the same places of its two halves"
        )
        hint = f"use devices {_listed([one + HALF for one in low])} of the second half, or set HCCL_INTRA_ROCE_ENABLE=1"
        yield Finding(table.servers[0].at("device"), message, hint)


def _listed(ids: list[int]) -> str:
    return ", ".join(map(str, ids))
