"""Gives each attempt of an elastic run its spec, and a table of the devices that it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from launcher.core.records import Allotment, Cluster, RunSpec
from launcher.engines.assemble import Request, allotted_cluster, assemble_attempt, attempt_table

if TYPE_CHECKING:
    from launcher.supervise.share import SpecifyAttempt


def attempt_specs(request: Request, table_format: str, run_name: str, master_port: int) -> SpecifyAttempt | None:
    """Return the function that gives attempts on other devices their specs, and their tables in `table_format`.

    A run that is not elastic has no such attempts, and gets None.
    """
    if request.supervision.elastic is None:
        return None

    def specify(allotment: Allotment, number: int) -> tuple[RunSpec, Mapping[str, str]]:
        spec = assemble_attempt(request, allotment, number, name=run_name, master_port=master_port)
        if request.cluster.source is None:
            return spec, {}
        part = allotted_cluster(request.cluster, allotment.devices)
        return spec, {attempt_table(number): table_of_part(part, table_format)}

    return specify


def table_of_part(part: Cluster, table_format: str) -> str:
    """Return the text of a table of some devices of a cluster, in the format of the whole table unless that is only read."""
    from launcher.rank_table.convert import convert_cluster, rewritten_format  # most runs use every device

    return convert_cluster(part, rewritten_format(table_format)).text
