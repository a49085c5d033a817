"""Devices and layouts for elastic runs and their attempts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from launcher.core.devices import devices_named
from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.records import Cluster, DeviceAssignment, Elastic, Layout, RunSpec, Server, full_assignment
from launcher.core.text import shell_word
from launcher.engines.assemble import Request, allotted_cluster, assemble_attempt, attempt_table
from launcher.mesh.layouts import elastic_layouts


def elastic_of(exclude: Sequence[str], cluster: Cluster, layout: Layout, fits: Callable[[Layout], bool]) -> Elastic:
    """Return the devices that the run may use, and the layout to use for each number of devices.

    Raises UsageError if --exclude does not name a device, and RefusedLayoutError if no layout fits the other devices.
    """
    excluded = frozenset[int]().union(*(_excluded(name, cluster.servers) for name in exclude))
    servers = {device.global_rank: index for index, server in enumerate(cluster.servers) for device in server.devices}
    count = cluster.device_count
    layouts = elastic_layouts(layout, count, fits)
    left = count - len(excluded)
    if layouts[left] is None:
        fewest = next(number for number, found in enumerate(layouts) if found is not None)
        raise RefusedLayoutError(
            f"--exclude leaves {left} of {count} devices, but layout {layout} cannot shrink below {fewest}",
            hint="exclude fewer devices, or reduce --mp or --pp",
        )
    return Elastic(tuple(servers[device] for device in range(count)), layouts, tuple(sorted(excluded)))


def _excluded(name: str, servers: Sequence[Server]) -> frozenset[int]:
    try:
        return devices_named(name, servers)
    except UsageError as error:
        if "," in name:
            once_each = " ".join(f"--exclude {shell_word(each)}" for each in name.split(",") if each)
            raise UsageError(error.message, hint=f"repeat --exclude for each device: {once_each}") from None
        raise


def notes_of_first(elastic: Elastic, layout: Layout, servers: Sequence[Server]) -> Iterator[str]:
    """If the first attempt uses all devices, yield a line about it. Otherwise, the console prints this line."""
    from launcher.cli.text.membership_text import attempt_text  # only for elastic runs

    allotment = _first(elastic, len(servers))
    if allotment is not None and allotment == full_assignment(layout):
        yield attempt_text(0, allotment, servers)


def first_allotment(request: Request) -> DeviceAssignment | None:
    """Return the devices and layout of the first attempt of an elastic run.

    Return None if every rank uses its device from the rank table, as in a run that is not elastic.
    """
    elastic = request.supervision.elastic
    allotment = None if elastic is None else _first(elastic, len(request.cluster.servers))
    return None if allotment == full_assignment(request.layout) else allotment


def _first(elastic: Elastic, server_count: int) -> DeviceAssignment | None:
    from launcher.control.membership import Membership  # only for elastic runs

    return Membership(elastic).next(range(server_count))


def attempt_spec(
    request: Request, table_format: str, allotment: DeviceAssignment, number: int, *, name: str, master_port: int
) -> tuple[RunSpec, Mapping[str, str]]:
    """Return the spec of an attempt, and the name and text of a file with the rank table of the attempt's devices."""
    spec = assemble_attempt(request, allotment, number, name=name, master_port=master_port)
    if request.cluster.source is None:
        return spec, {}
    part = allotted_cluster(request.cluster, allotment.devices)
    return spec, {attempt_table(number): table_of_part(part, table_format)}


def table_of_part(part: Cluster, table_format: str) -> str:
    """Return a rank table for part of the devices, in the original table's format if tlaunch can write this format."""
    from launcher.rank_table.convert import convert_cluster, rewritten_format  # most runs use every device

    return convert_cluster(part, rewritten_format(table_format)).text
