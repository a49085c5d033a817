"""Choose the layouts of an elastic run for every possible number of devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from launcher.core.records import Layout
from launcher.mesh.layouts import nearest_layouts


def elastic_layouts(
    wanted: Layout, device_count: int, fits: Callable[[Layout], bool] = lambda _: True
) -> tuple[Layout | None, ...]:
    """Return the layout for each number of devices from 0 to `device_count`; None if no layout fits that few.

    mp and pp stay as wanted, and dp shrinks to the largest number of copies that `fits`. If there are too few devices
    for mp·pp, these shrink as well, to the layout that `fits` and uses the most devices.

    Each remaining copy computes more micro batches, so that the total stays the same: dp=4 with 1 becomes dp=3 with 2.
    The total grows if dp does not divide it. A program without micro batches keeps its number.
    """
    return tuple(_layout_for(wanted, count, fits) for count in range(device_count + 1))


def _layout_for(wanted: Layout, device_count: int, fits: Callable[[Layout], bool]) -> Layout | None:
    if copies := min(wanted.dp, device_count // (wanted.mp * wanted.pp)):
        candidates = [replace(wanted, dp=dp) for dp in range(copies, 0, -1)]
    else:
        candidates = [
            layout
            for count in range(device_count, 0, -1)
            for layout in nearest_layouts(wanted, count, limit=count * count)
            if layout.dp <= wanted.dp and wanted.mp % layout.mp == 0 and layout.pp <= wanted.pp
        ]
    parts = wanted.dp * wanted.micro_batches
    same_batch = (
        replace(layout, micro_batches=micro_batches)
        for layout in candidates
        for micro_batches in (-(-parts // layout.dp), wanted.micro_batches)
    )
    return next(filter(fits, same_batch), None)
