"""Decides before an elastic run starts which devices it may use, and under which layouts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from launcher.cli.launch.options import RunOptions
from launcher.cli.text.membership_text import attempt_text
from launcher.cli.training.trainer_program import fits_recipe
from launcher.control.membership import Membership
from launcher.core.devices import devices_named
from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.records import Allotment, Cluster, Elastic, Layout, Server, whole_allotment
from launcher.core.text import shell_word
from launcher.engines.assemble import Request
from launcher.mesh.elastic import elastic_layouts


def elastic_of(options: RunOptions, cluster: Cluster, layout: Layout, recipe: str | None) -> Elastic:
    """Return which devices the run may use, and under which layout so many of them compute.

    Raises:
        UsageError: --exclude names no device.
        RefusedLayoutError: no layout fits what --exclude leaves.
    """
    excluded = frozenset[int]().union(*(_excluded(name, cluster.servers) for name in options.exclude))
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


def _excluded(name: str, servers: Sequence[Server]) -> frozenset[int]:
    try:
        return devices_named(name, servers)
    except UsageError as error:
        if "," in name:
            once_each = " ".join(f"--exclude {shell_word(each)}" for each in name.split(",") if each)
            raise UsageError(error.message, hint=f"once for each device: {once_each}") from None
        raise


def notes_of_first(elastic: Elastic, layout: Layout, servers: Sequence[Server]) -> Iterator[str]:
    """Yield the line of the first attempt where it has the devices that it had without --exclude; others are told anyway."""
    allotment = Membership(elastic).next(range(len(servers)))
    if allotment is not None and allotment == whole_allotment(layout):
        yield attempt_text(0, allotment, servers)


def first_allotment(request: Request) -> Allotment | None:
    """Return the devices and the layout that the first attempt of an elastic run has, once all servers have come.

    None where each rank is on the device that the rank table gives it, as in a run that is not elastic.
    """
    elastic = request.supervision.elastic
    allotment = None if elastic is None else Membership(elastic).next(range(len(request.cluster.servers)))
    return None if allotment == whole_allotment(request.layout) else allotment
