"""Choose and check dp·mp·pp for a given number of devices, or for every number in an elastic run; suggest layouts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import islice

from launcher.core.errors import RefusedLayoutError
from launcher.core.records import Layout
from launcher.core.text import counted

SUGGESTED = 3  # layouts in a hint


def resolve_layout(
    device_count: int,
    *,
    dp: int | None = None,
    mp: int = 1,
    pp: int = 1,
    micro_batches: int = 1,
    allow_idle_devices: bool = False,
    fits: Callable[[Layout], bool] = lambda _: True,
) -> Layout:
    """Return the layout for `device_count` devices. By default, `dp` is as large as the devices allow.

    Hints suggest layouts for which `fits` returns True.

    Raises:
        RefusedLayoutError: an axis below 1, more ranks than devices, or idle devices that are not allowed.
    """
    for name, value in (("dp", dp), ("mp", mp), ("pp", pp), ("micro batches", micro_batches)):
        if value is not None and value < 1:
            raise RefusedLayoutError(f"{name} is {value}; every axis needs at least 1")
    if dp is None:
        dp = max(1, device_count // (mp * pp))
    layout = Layout(dp=dp, mp=mp, pp=pp, micro_batches=micro_batches)
    product = f"dp * mp * pp = {dp} * {mp} * {pp} = {layout.world_size}"
    if layout.world_size > device_count:
        raise RefusedLayoutError(
            f"{product} is more than {counted(device_count, 'device')}", hint=_fitting(layout, device_count, fits)
        )
    if layout.world_size < device_count and not allow_idle_devices:
        idle = device_count - layout.world_size
        raise RefusedLayoutError(
            f"{product} leaves {counted(idle, 'device')} of {device_count} idle",
            hint=f"{_fitting(layout, device_count, fits)}, or pass --allow-idle-devices",
        )
    return layout


def nearest_layouts(wanted: Layout, device_count: int, limit: int | None = None) -> tuple[Layout, ...]:
    """Return layouts that use every device, sorted by their distance to `wanted`.

    The distance counts doublings, so mp=4 is as far from mp=2 as mp=1 is:  Σ |log2(axis / wanted axis)|.
    In a tie the closest mp wins, then the closest pp, since changing dp changes no tensor shape of the model.

    >>> [str(layout) for layout in nearest_layouts(Layout(dp=3, mp=2, pp=2), 8, limit=2)]
    ['dp=2 mp=2 pp=2', 'dp=4 mp=2 pp=1']
    """
    candidates = [
        Layout(dp=device_count // (mp * pp), mp=mp, pp=pp, micro_batches=wanted.micro_batches)
        for mp in _divisors(device_count)
        for pp in _divisors(device_count // mp)
    ]
    return tuple(sorted(candidates, key=lambda candidate: _distance(candidate, wanted))[:limit])


def _distance(candidate: Layout, wanted: Layout) -> tuple[float, float, float]:
    doublings = {
        axis: abs(math.log2(getattr(candidate, axis)) - math.log2(getattr(wanted, axis))) for axis in ("dp", "mp", "pp")
    }
    return (round(sum(doublings.values()), 9), doublings["mp"], doublings["pp"])


def _divisors(number: int) -> list[int]:
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})


def _fitting(wanted: Layout, device_count: int, fits: Callable[[Layout], bool]) -> str:
    layouts = nearest_layouts(wanted, device_count)
    nearest = [*islice(filter(fits, layouts), SUGGESTED)] or layouts[:SUGGESTED]
    choices = ", ".join(f"--dp {near.dp} --mp {near.mp} --pp {near.pp}" for near in nearest)
    return f"the nearest that fit {counted(device_count, 'device')}: {choices}"


def elastic_layouts(
    wanted: Layout, device_count: int, fits: Callable[[Layout], bool] = lambda _: True
) -> tuple[Layout | None, ...]:
    """Return one entry for each number of devices from 0 to `device_count`: a layout, or None if no layout fits.

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
            for layout in nearest_layouts(wanted, count)
            if layout.dp <= wanted.dp and wanted.mp % layout.mp == 0 and layout.pp <= wanted.pp
        ]
    parts = wanted.dp * wanted.micro_batches
    same_batch = (
        replace(layout, micro_batches=micro_batches)
        for layout in candidates
        for micro_batches in (-(-parts // layout.dp), wanted.micro_batches)
    )
    return next(filter(fits, same_batch), None)
