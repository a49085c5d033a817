"""The layouts of an elastic run: what becomes of dp·mp·pp when devices are lost, and when they come back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from launcher.core.records import Layout
from launcher.mesh.layouts import nearest_layouts


def elastic_layouts(
    wanted: Layout, device_count: int, fits: Callable[[Layout], bool] = lambda _: True
) -> tuple[Layout | None, ...]:
    """Return the layout for each number of devices from 0 to `device_count`; None where no layout fits so few.

    mp and pp stay as wanted and dp shrinks; where too few devices are left for mp·pp, these shrink, to what `fits` and uses
    the most devices. The global batch stays as it is: each copy computes more micro batches, as large as before.
    """
    return tuple(_layout_for(wanted, count, fits) for count in range(device_count + 1))


def _layout_for(wanted: Layout, device_count: int, fits: Callable[[Layout], bool]) -> Layout | None:
    if copies := min(wanted.dp, device_count // (wanted.mp * wanted.pp)):
        candidates = [replace(wanted, dp=copies)]
    else:
        candidates = [
            layout
            for count in range(device_count, 0, -1)
            for layout in nearest_layouts(wanted, count, limit=count * count)
            if layout.dp <= wanted.dp and wanted.mp % layout.mp == 0 and layout.pp <= wanted.pp
        ]
    parts = wanted.dp * wanted.micro_batches
    same_batch = (replace(layout, micro_batches=-(-parts // layout.dp)) for layout in candidates)
    return next(filter(fits, same_batch), None)
