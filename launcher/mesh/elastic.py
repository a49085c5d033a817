"""Chooses the layouts of an elastic run for every number of devices that may be left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from launcher.core.records import Layout
from launcher.mesh.layouts import nearest_layouts


def elastic_layouts(
    wanted: Layout, device_count: int, fits: Callable[[Layout], bool] = lambda _: True
) -> tuple[Layout | None, ...]:
    """Return the layout for each number of devices from 0 to `device_count`; None where no layout fits so few.

    mp and pp stay as wanted and dp shrinks to the most copies that `fits`; where too few devices are left for mp·pp, these
    shrink, to what `fits` and uses the most devices. Each of fewer copies computes more micro batches, so that together they
    compute as many as before, or up to one more each where dp does not divide that number: dp=4 with 1 becomes dp=3 with 2.
    A program that has no micro batches keeps the number that is wanted.
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
