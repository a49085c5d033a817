"""What an elastic run may use, found out before it starts, and what its attempts on other devices are."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.cli.launch.options import RunOptions
from launcher.cli.launch.program import fits_recipe
from launcher.core.devices import devices_named
from launcher.core.errors import RefusedLayoutError, RefusedTableError
from launcher.core.records import Allotment, Cluster, Elastic, Layout, RunSpec
from launcher.engines.assemble import Request, allotted_cluster, assemble_attempt, attempt_table
from launcher.mesh.elastic import elastic_layouts
from launcher.supervise.attempts import Specify


def elastic_of(options: RunOptions, cluster: Cluster, layout: Layout, recipe: str | None) -> Elastic:
    """Return which devices the run may use, and under which layout so many of them compute.

    Raises:
        UsageError: --exclude names no device.
        RefusedLayoutError: no layout fits what --exclude leaves.
    """
    excluded = frozenset[int]().union(*(devices_named(name, cluster.servers) for name in options.exclude))
    servers = {device.global_rank: index for index, server in enumerate(cluster.servers) for device in server.devices}
    count = cluster.device_count
    layouts = elastic_layouts(layout, count, (lambda _: True) if recipe is None else fits_recipe(options))
    left = count - len(excluded)
    if layouts[left] is None:
        fewest = next(number for number, found in enumerate(layouts) if found is not None)
        raise RefusedLayoutError(
            f"--exclude leaves {left} of {count} devices, and no layout of {layout} fits fewer than {fewest}",
            hint="exclude fewer devices, or smaller --mp and --pp",
        )
    return Elastic(tuple(servers[device] for device in range(count)), layouts, tuple(sorted(excluded)))


def specifier(request: Request, table_format: str, run_name: str, master_port: int) -> Specify:
    """Return what gives the attempts of an elastic run their specs, and their tables in `table_format`."""

    def specify(allotment: Allotment, number: int) -> tuple[RunSpec, Mapping[str, str]]:
        spec = assemble_attempt(request, allotment, number, name=run_name, master_port=master_port)
        if request.cluster.source is None:
            return spec, {}
        part = allotted_cluster(request.cluster, allotment.devices)
        return spec, {attempt_table(number): table_of_part(part, table_format)}

    return specify


def table_of_part(part: Cluster, table_format: str) -> str:
    """Return the text of a table of some devices of a cluster, in the format that the whole table has if that can be."""
    from launcher.rank_table import render_table  # most runs use every device
    from launcher.rank_table.convert import convert_cluster

    try:
        return convert_cluster(part, table_format).text
    except RefusedTableError:  # a format for whole servers only, and some devices of one stay idle
        return render_table(part)
